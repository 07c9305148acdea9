// How one sharded axis is cut: axis -> units -> leaves -> ranks, and the tree that reduces leaves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deepinfer {

// Half-open range of indices.
struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t count() const { return end - begin; }
  bool contains(int64_t index) const { return index >= begin && index < end; }
  bool operator==(const IndexRange&) const = default;
};

// A complete subtree of the reduction tree: tree positions [begin, begin + count), count a power of
// two that divides begin.
struct Subtree {
  int64_t begin = 0;
  int64_t count = 1;

  bool operator==(const Subtree&) const = default;
};

inline constexpr int64_t kCanonicalLeaves = 64;  // architecture.md, "64 leaves"
// Positions of a window, or compressed entries, that make one KV tile, the unit of the KV axis
// (CANONICAL.md C7.3).
inline constexpr int64_t kKvTileEntries = 8;

// The one place that knows which rank holds what (architecture.md, "64 leaves"); loaders, kernels
// and collectives ask it.
//
// Leaves are the ends of a fixed binary tree. A leaf's place in it is its tree position: the leaf
// itself, or for interleaved axes its bits reversed, so that the tree pairs leaf i with i + 32,
// then i + 16, and so on (CANONICAL.md C2.5). Positions 2k and 2k + 1 combine first. Ranks own
// contiguous runs of positions, as equal as can be; a rank reduces each maximal subtree that it
// owns whole, and a collective finishes the tree: the result does not depend on the number of
// ranks.
//
// Invariant: every unit is on one leaf, every leaf on one rank, ranks ascend with tree positions.
// Immutable; calls may be concurrent.
class ShardMap {
 public:
  // Units spread over the leaves in order, unit u on leaf floor(u * leaves / units): heads,
  // experts, vocabulary rows. Throws ConfigError, which names `axis`, for a count that is not
  // positive, leaves that are not a power of two, or more ranks than leaves.
  static ShardMap contiguous(std::string axis, int64_t units, int64_t ranks,
                             int64_t leaves = kCanonicalLeaves);
  // Unit u on leaf u mod leaves, for any u: KV tiles of a growing sequence.
  static ShardMap interleaved(std::string axis, int64_t ranks, int64_t leaves = kCanonicalLeaves);
  // Unit u on leaf unit_leaf[u]. Tree positions are leaves. Throws ConfigError for a leaf out of
  // range too.
  static ShardMap explicit_leaves(std::string axis, std::vector<int64_t> unit_leaf, int64_t ranks,
                                  int64_t leaves = kCanonicalLeaves);

  const std::string& axis() const { return axis_; }
  int64_t leaves() const { return leaves_; }
  int64_t ranks() const { return ranks_; }
  bool is_interleaved() const { return interleaved_; }
  int64_t units() const;  // asserts that the axis is not interleaved, which has no end

  int64_t leaf_of_unit(int64_t unit) const;
  int64_t position_of_leaf(int64_t leaf) const;  // in tree order
  int64_t leaf_at_position(int64_t position) const;
  int64_t rank_of_leaf(int64_t leaf) const;
  int64_t rank_of_unit(int64_t unit) const { return rank_of_leaf(leaf_of_unit(unit)); }

  // Tree positions of a rank; empty for none.
  IndexRange positions_of_rank(int64_t rank) const;
  std::vector<int64_t> leaves_of_rank(int64_t rank) const;  // in tree order
  // Ascending. Not for interleaved axes (asserted).
  std::vector<int64_t> units_of_leaf(int64_t leaf) const;
  std::vector<int64_t> units_of_rank(int64_t rank) const;
  // Maximal subtrees that the rank owns whole, in tree order: one if the number of ranks is a power
  // of two, at most 2 log2(leaves).
  std::vector<Subtree> subtrees_of_rank(int64_t rank) const;
  // Whether no unit is on the subtree's leaves. An interleaved axis has units without end.
  bool is_empty(const Subtree& subtree) const;

 private:
  ShardMap(std::string axis, int64_t ranks, int64_t leaves);

  std::string axis_;
  int64_t ranks_;
  int64_t leaves_;
  bool interleaved_ = false;
  std::vector<int64_t> unit_leaf_;     // empty for an interleaved axis
  std::vector<int64_t> units_before_;  // [leaves + 1] on lower leaves; empty likewise

  void count_units();
};

// Cuts positions [range.begin, range.end) into maximal subtrees, in order.
std::vector<Subtree> maximal_subtrees(IndexRange range);

// True if they are complete subtrees of a tree of `leaves` leaves, disjoint and in tree order: what
// reduce_tree takes.
bool are_subtrees(const std::vector<Subtree>& subtrees, int64_t leaves);

// Reduces present subtrees of a tree of `leaves` leaves in the fixed order: `combine(into, from)`
// adds item `from` into item `into`, both indices of `present`, which is in tree order and
// disjoint. An absent half is skipped. Returns the index that holds the result, -1 if nothing is
// present.
template <class Combine>
int64_t reduce_tree(const std::vector<Subtree>& present, int64_t leaves, const Combine& combine);

// --- implementation of reduce_tree ---

namespace internal {

// Reduces present[first, last), all inside positions [begin, begin + count).
template <class Combine>
int64_t reduce_node(const std::vector<Subtree>& present, size_t first, size_t last, int64_t begin,
                    int64_t count, const Combine& combine) {
  if (first == last) return -1;
  if (last - first == 1) return static_cast<int64_t>(first);
  const int64_t middle = begin + count / 2;
  size_t split = first;
  while (split < last && present[split].begin < middle) ++split;
  const int64_t lower = reduce_node(present, first, split, begin, count / 2, combine);
  const int64_t upper = reduce_node(present, split, last, middle, count / 2, combine);
  if (lower < 0 || upper < 0) return lower < 0 ? upper : lower;
  combine(lower, upper);
  return lower;
}

}  // namespace internal

template <class Combine>
int64_t reduce_tree(const std::vector<Subtree>& present, int64_t leaves, const Combine& combine) {
  return internal::reduce_node(present, 0, present.size(), 0, leaves, combine);
}

}  // namespace deepinfer
