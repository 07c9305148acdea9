// Where units, leaves and ranks are, and that the tree gives one result whatever the number of
// ranks.
#include "platform/shard_map.h"

#include <algorithm>
#include <string>

#include <doctest/doctest.h>

#include "platform/errors.h"

namespace deepinfer {
namespace {

// The order of a reduction, written out: "((0 1) 2)".
std::string reduction(const ShardMap& map) {
  std::vector<Subtree> present;
  std::vector<std::string> text;
  const auto reduce = [&](std::vector<Subtree>& trees, std::vector<std::string>& items,
                          int64_t leaves) {
    const int64_t result = reduce_tree(trees, leaves, [&](int64_t into, int64_t from) {
      auto& target = items[static_cast<size_t>(into)];
      target = "(" + target + " " + items[static_cast<size_t>(from)] + ")";
    });
    return result < 0 ? std::string() : items[static_cast<size_t>(result)];
  };
  for (int64_t rank = 0; rank < map.ranks(); ++rank) {
    for (const Subtree& subtree : map.subtrees_of_rank(rank)) {
      // What the rank does alone: its leaves, one by one.
      std::vector<Subtree> own;
      std::vector<std::string> leaves;
      for (int64_t p = subtree.begin; p < subtree.begin + subtree.count; ++p) {
        const int64_t leaf = map.leaf_at_position(p);
        if (!map.is_interleaved() && map.units_of_leaf(leaf).empty()) continue;
        own.push_back({p, 1});
        leaves.push_back(std::to_string(leaf));
      }
      const std::string partial = reduce(own, leaves, map.leaves());
      if (partial.empty()) continue;
      present.push_back(subtree);
      text.push_back(partial);
    }
  }
  return reduce(present, text, map.leaves());
}

TEST_CASE("subtrees of a tree") {
  for (int64_t begin = 0; begin <= 64; ++begin) {
    for (int64_t end = begin; end <= 64; ++end)
      CHECK(are_subtrees(maximal_subtrees({begin, end}), 64));
  }
  CHECK(are_subtrees({}, 64));
  CHECK(are_subtrees({{0, 1}, {63, 1}}, 64));
  CHECK(!are_subtrees({{0, 32}, {16, 16}}, 64));  // one in another
  CHECK(!are_subtrees({{5, 1}, {5, 1}}, 64));     // twice
  CHECK(!are_subtrees({{32, 32}, {0, 32}}, 64));  // not in order
  CHECK(!are_subtrees({{2, 4}}, 64));             // across two
  CHECK(!are_subtrees({{0, 3}}, 64));
  CHECK(!are_subtrees({{0, 0}}, 64));
  CHECK(!are_subtrees({{-2, 2}}, 64));
  CHECK(!are_subtrees({{64, 1}}, 64));
  CHECK(!are_subtrees({{0, 128}}, 64));
  CHECK(!are_subtrees({{0, int64_t{1} << 62}, {int64_t{1} << 62, int64_t{1} << 62}}, 64));
}

TEST_CASE("every number of ranks reduces in the same order") {
  CHECK(reduction(ShardMap::contiguous("x", 8, 1, 8)) == "(((0 1) (2 3)) ((4 5) (6 7)))");
  CHECK(reduction(ShardMap::interleaved("x", 1, 8)) == "(((0 4) (2 6)) ((1 5) (3 7)))");
  // Absent leaves are skipped: three units on leaves 0, 2 and 5 of 8.
  CHECK(reduction(ShardMap::contiguous("x", 3, 1, 8)) == "((0 2) 5)");
  for (int64_t units : {1, 3, 4, 18, 63, 64, 65, 384, 512}) {
    const std::string whole = reduction(ShardMap::contiguous("x", units, 1));
    for (int64_t ranks = 1; ranks <= 64; ++ranks) {
      CAPTURE(units);
      CAPTURE(ranks);
      CHECK(reduction(ShardMap::contiguous("x", units, ranks)) == whole);
    }
  }
  std::vector<int64_t> slices(18);
  for (size_t i = 0; i < slices.size(); ++i) slices[i] = static_cast<int64_t>(i);
  const std::string shared = reduction(ShardMap::explicit_leaves("x", slices, 1));
  const std::string tiles = reduction(ShardMap::interleaved("x", 1));
  for (int64_t ranks = 1; ranks <= 64; ++ranks) {
    CHECK(reduction(ShardMap::explicit_leaves("x", slices, ranks)) == shared);
    CHECK(reduction(ShardMap::interleaved("x", ranks)) == tiles);
  }
}

TEST_CASE("every unit is on one rank, ranks are as equal as can be, and few subtrees each") {
  for (int64_t ranks = 1; ranks <= 64; ++ranks) {
    CAPTURE(ranks);
    const ShardMap map = ShardMap::contiguous("heads", 64, ranks);
    std::vector<int64_t> all;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto units = map.units_of_rank(rank);
      CHECK(static_cast<int64_t>(units.size()) >= 64 / ranks);
      CHECK(static_cast<int64_t>(units.size()) <= (64 + ranks - 1) / ranks);
      for (const int64_t unit : units) CHECK(map.rank_of_unit(unit) == rank);
      all.insert(all.end(), units.begin(), units.end());
      const auto subtrees = map.subtrees_of_rank(rank);
      CHECK(subtrees.size() <= ((ranks & (ranks - 1)) == 0 ? 1 : 12));
      CHECK(map.leaves_of_rank(rank).size() == units.size());
    }
    CHECK(all.size() == 64);
    CHECK(std::is_sorted(all.begin(), all.end()));
  }
  // Interleaved: a power of two of ranks owns the leaves of one residue.
  const ShardMap tiles = ShardMap::interleaved("kv tiles", 4);
  for (int64_t tile = 0; tile < 200; ++tile) {
    CHECK(tiles.rank_of_unit(tile) == tiles.rank_of_unit(tile % 4));
    CHECK(tiles.leaf_of_unit(tile) == tile % 64);
  }
  CHECK(tiles.subtrees_of_rank(1) == std::vector<Subtree>{{16, 16}});
}

TEST_CASE("maximal subtrees") {
  CHECK(maximal_subtrees({0, 64}) == std::vector<Subtree>{{0, 64}});
  CHECK(maximal_subtrees({21, 42}) ==
        std::vector<Subtree>{{21, 1}, {22, 2}, {24, 8}, {32, 8}, {40, 2}});
  CHECK(maximal_subtrees({5, 5}).empty());
}

TEST_CASE("errors name the axis") {
  const auto message = [](auto make) -> std::string {
    try {
      make();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(message([] { ShardMap::contiguous("heads", 4, 65); }).find("'heads'") != std::string::npos);
  CHECK(message([] { ShardMap::contiguous("heads", 4, 0); }).find("1 to 64") != std::string::npos);
  CHECK(message([] { ShardMap::contiguous("heads", 0, 1); }).find("without units") !=
        std::string::npos);
  CHECK(message([] { ShardMap::interleaved("tiles", 1, 48); }).find("power of two") !=
        std::string::npos);
  CHECK(message([] {
          ShardMap::explicit_leaves("slices", {0, 64}, 1);
        }).find("unit 1") != std::string::npos);
}

}  // namespace
}  // namespace deepinfer
