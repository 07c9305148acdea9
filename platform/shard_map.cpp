#include "platform/shard_map.h"

#include <algorithm>
#include <bit>

#include "platform/errors.h"

namespace deepinfer {
namespace {

// The lowest log2(leaves) bits of `leaf` in reverse.
int64_t reversed_bits(int64_t leaf, int64_t leaves) {
  int64_t reversed = 0;
  for (int64_t bit = 1; bit < leaves; bit *= 2) {
    reversed = reversed * 2 + ((leaf & bit) != 0 ? 1 : 0);
  }
  return reversed;
}

// First tree position of rank `rank`.
int64_t first_position(int64_t rank, int64_t ranks, int64_t leaves) {
  return rank * leaves / ranks;
}

}  // namespace

ShardMap::ShardMap(std::string axis, int64_t ranks, int64_t leaves)
    : axis_(std::move(axis)), ranks_(ranks), leaves_(leaves) {
  const auto fail = [&](const char* what, const std::string& expected, int64_t found) {
    throw ConfigError({.what = what,
                       .where = "sharded axis '" + axis_ + "'",
                       .expected = expected,
                       .found = std::to_string(found)});
  };
  if (leaves < 1 || !std::has_single_bit(static_cast<uint64_t>(leaves))) {
    fail("leaves that make no binary tree", "a power of two", leaves);
  }
  if (ranks < 1 || ranks > leaves) {
    fail("a number of ranks that leaves cannot be dealt to",
         "1 to " + std::to_string(leaves) + " (the number of leaves)", ranks);
  }
}

ShardMap ShardMap::contiguous(std::string axis, int64_t units, int64_t ranks, int64_t leaves) {
  ShardMap map(std::move(axis), ranks, leaves);
  if (units < 1) {
    throw ConfigError({.what = "an axis without units",
                       .where = "sharded axis '" + map.axis_ + "'",
                       .expected = "at least 1",
                       .found = std::to_string(units)});
  }
  map.unit_leaf_.reserve(static_cast<size_t>(units));
  for (int64_t unit = 0; unit < units; ++unit) map.unit_leaf_.push_back(unit * leaves / units);
  map.count_units();
  return map;
}

ShardMap ShardMap::interleaved(std::string axis, int64_t ranks, int64_t leaves) {
  ShardMap map(std::move(axis), ranks, leaves);
  map.interleaved_ = true;
  return map;
}

ShardMap ShardMap::explicit_leaves(std::string axis, std::vector<int64_t> unit_leaf, int64_t ranks,
                                   int64_t leaves) {
  ShardMap map(std::move(axis), ranks, leaves);
  for (size_t unit = 0; unit < unit_leaf.size(); ++unit) {
    if (unit_leaf[unit] >= 0 && unit_leaf[unit] < leaves) continue;
    throw ConfigError({.what = "a unit on a leaf that does not exist",
                       .where = "sharded axis '" + map.axis_ + "', unit " + std::to_string(unit),
                       .expected = "0 to " + std::to_string(leaves - 1),
                       .found = std::to_string(unit_leaf[unit])});
  }
  map.unit_leaf_ = std::move(unit_leaf);
  map.count_units();
  return map;
}

void ShardMap::count_units() {
  units_before_.assign(static_cast<size_t>(leaves_) + 1, 0);
  for (const int64_t leaf : unit_leaf_) ++units_before_[static_cast<size_t>(leaf) + 1];
  for (size_t leaf = 1; leaf < units_before_.size(); ++leaf) {
    units_before_[leaf] += units_before_[leaf - 1];
  }
}

int64_t ShardMap::units() const {
  DEEPINFER_ASSERT(!interleaved_, "axis " << axis_ << " is interleaved");
  return static_cast<int64_t>(unit_leaf_.size());
}

int64_t ShardMap::leaf_of_unit(int64_t unit) const {
  if (interleaved_) {
    DEEPINFER_ASSERT(unit >= 0, "axis " << axis_ << ", unit " << unit);
    return unit % leaves_;
  }
  DEEPINFER_ASSERT(unit >= 0 && unit < units(),
                   "axis " << axis_ << ", unit " << unit << " of " << units());
  return unit_leaf_[static_cast<size_t>(unit)];
}

int64_t ShardMap::position_of_leaf(int64_t leaf) const {
  DEEPINFER_ASSERT(leaf >= 0 && leaf < leaves_, "axis " << axis_ << ", leaf " << leaf);
  return interleaved_ ? reversed_bits(leaf, leaves_) : leaf;
}

int64_t ShardMap::leaf_at_position(int64_t position) const {
  return position_of_leaf(position);  // reversing bits is its own inverse
}

int64_t ShardMap::rank_of_leaf(int64_t leaf) const {
  // The last rank whose first position is not above the leaf's.
  const int64_t position = position_of_leaf(leaf);
  int64_t rank = position * ranks_ / leaves_;
  while (rank + 1 < ranks_ && first_position(rank + 1, ranks_, leaves_) <= position) ++rank;
  return rank;
}

IndexRange ShardMap::positions_of_rank(int64_t rank) const {
  DEEPINFER_ASSERT(rank >= 0 && rank < ranks_, "axis " << axis_ << ", rank " << rank);
  return {first_position(rank, ranks_, leaves_), first_position(rank + 1, ranks_, leaves_)};
}

std::vector<int64_t> ShardMap::leaves_of_rank(int64_t rank) const {
  const IndexRange positions = positions_of_rank(rank);
  std::vector<int64_t> leaves;
  for (int64_t position = positions.begin; position < positions.end; ++position) {
    leaves.push_back(leaf_at_position(position));
  }
  return leaves;
}

std::vector<int64_t> ShardMap::units_of_leaf(int64_t leaf) const {
  std::vector<int64_t> found;
  for (int64_t unit = 0; unit < units(); ++unit) {
    if (unit_leaf_[static_cast<size_t>(unit)] == leaf) found.push_back(unit);
  }
  return found;
}

std::vector<int64_t> ShardMap::units_of_rank(int64_t rank) const {
  std::vector<int64_t> found;
  for (int64_t unit = 0; unit < units(); ++unit) {
    if (rank_of_unit(unit) == rank) found.push_back(unit);
  }
  return found;
}

std::vector<Subtree> ShardMap::subtrees_of_rank(int64_t rank) const {
  return maximal_subtrees(positions_of_rank(rank));
}

bool ShardMap::is_empty(const Subtree& subtree) const {
  if (interleaved_) return false;
  return units_before_[static_cast<size_t>(subtree.begin)] ==
         units_before_[static_cast<size_t>(subtree.begin + subtree.count)];
}

std::vector<Subtree> maximal_subtrees(IndexRange range) {
  std::vector<Subtree> subtrees;
  while (range.begin < range.end) {
    int64_t count = 1;
    while (range.begin % (2 * count) == 0 && range.begin + 2 * count <= range.end) count *= 2;
    subtrees.push_back({range.begin, count});
    range.begin += count;
  }
  return subtrees;
}

bool are_subtrees(const std::vector<Subtree>& subtrees, int64_t leaves) {
  int64_t end = 0;  // of the subtree before
  for (const Subtree& subtree : subtrees) {
    const int64_t count = subtree.count;
    if (count < 1 || (count & (count - 1)) != 0) return false;
    if (subtree.begin < end || subtree.begin % count != 0 || count > leaves - subtree.begin) {
      return false;
    }
    end = subtree.begin + count;
  }
  return true;
}

}  // namespace deepinfer
