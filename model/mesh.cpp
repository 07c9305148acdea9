#include "model/mesh.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace deepinfer {
namespace {

// Columns that share a scale of the activations' quantiser.
constexpr int64_t kQuantizerColumns = 32;
// Columns of a shared-expert slice where they divide it (systems.md X6).
constexpr int64_t kSharedSliceColumns = 128;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Slice i is on leaf i while there are leaves enough, as the deployment has it; a wider expert is
// spread evenly.
ColumnShards shared_shards(const ModelConfig& config, int64_t ranks) {
  const int64_t columns = config.moe_intermediate_size;
  const int64_t slice =
      columns % kSharedSliceColumns == 0 ? kSharedSliceColumns : kQuantizerColumns;
  const int64_t slices = ceil_div(columns, slice);
  const std::string axis = "shared-expert slices";
  if (slices > kCanonicalLeaves) {
    return ColumnShards(ShardMap::contiguous(axis, slices, ranks), columns, slice);
  }
  std::vector<int64_t> leaves(static_cast<size_t>(slices));
  std::iota(leaves.begin(), leaves.end(), 0);
  return ColumnShards(ShardMap::explicit_leaves(axis, leaves, ranks), columns, slice);
}

ParallelSizes checked(const ParallelSizes& sizes) {
  for (const Axis axis : {Axis::kTensor, Axis::kContext, Axis::kExpert}) {
    if (sizes.of(axis) >= 1 && sizes.of(axis) <= kCanonicalLeaves) continue;
    throw ConfigError({.what = "no such number of ranks on an axis",
                       .where = std::string(axis_name(axis)),
                       .expected = "1 to " + std::to_string(kCanonicalLeaves) + " (one a leaf)",
                       .found = std::to_string(sizes.of(axis))});
  }
  return sizes;
}

}  // namespace

std::string_view axis_name(Axis axis) {
  constexpr std::array<std::string_view, kAxes> kNames = {"tp", "cp", "ep"};
  return kNames[static_cast<size_t>(axis)];
}

int64_t ParallelSizes::of(Axis axis) const {
  return axis == Axis::kTensor ? tensor : axis == Axis::kContext ? context : expert;
}

int64_t ParallelSizes::ranks() const { return std::lcm(tensor * context, expert); }

std::string ParallelSizes::text() const {
  return "tp " + std::to_string(tensor) + " cp " + std::to_string(context) + " ep " +
         std::to_string(expert);
}

ColumnShards::ColumnShards(ShardMap map, int64_t columns, int64_t unit_columns)
    : map_(std::move(map)) {
  int64_t unit = 0;
  for (int64_t leaf = 0; leaf < map_.leaves(); ++leaf) {
    begins_.push_back(std::min(unit * unit_columns, columns));
    for (; unit < map_.units() && map_.leaf_of_unit(unit) == leaf; ++unit) {
    }
  }
  begins_.push_back(std::min(unit * unit_columns, columns));
  DEEPINFER_ASSERT(unit == map_.units() && begins_.back() == columns,
                   map_.axis() << ": unit " << unit << " of " << map_.units() << ", columns "
                               << begins_.back() << " of " << columns);
}

IndexRange ColumnShards::columns_of_rank(int64_t rank) const {
  return columns_of_rank(rank, {0, columns()});
}

IndexRange ColumnShards::columns_of_rank(int64_t rank, IndexRange within) const {
  const IndexRange positions = map_.positions_of_rank(rank);
  const auto clipped = [&](int64_t position) {
    return std::clamp(begins_[static_cast<size_t>(position)], within.begin, within.end);
  };
  return {clipped(positions.begin), clipped(positions.end)};
}

std::vector<int64_t> ColumnShards::bounds(int64_t rank, IndexRange within) const {
  const IndexRange positions = map_.positions_of_rank(rank);
  const int64_t first = columns_of_rank(rank, within).begin;
  std::vector<int64_t> bounds;
  for (int64_t position = positions.begin; position <= positions.end; ++position) {
    bounds.push_back(std::clamp(begins_[static_cast<size_t>(position)], within.begin, within.end) -
                     first);
  }
  return bounds;
}

UnitShards::UnitShards(ShardMap contiguous) : map(std::move(contiguous)) {
  for (int64_t rank = 0; rank < map.ranks(); ++rank) {
    const std::vector<int64_t> units = map.units_of_rank(rank);
    const auto count = static_cast<int64_t>(units.size());
    of_rank.push_back(units.empty() ? IndexRange{} : IndexRange{units.front(), units.back() + 1});
    DEEPINFER_ASSERT(of_rank.back().count() == count,
                     map.axis() << " of rank " << rank << " are not consecutive");
    most = std::max(most, count);
  }
  alike = std::all_of(of_rank.begin(), of_rank.end(),
                      [&](const IndexRange& range) { return range.count() == most; });
}

Mesh::Mesh(const ModelConfig& config, const ParallelSizes& sizes)
    : sizes_(checked(sizes)),
      ranks_(sizes.ranks()),
      heads_(ShardMap::contiguous("attention heads", config.num_attention_heads, sizes.tensor),
             config.num_attention_heads * config.head_dim, config.head_dim),
      output_(ShardMap::contiguous(
                  "output columns",
                  ceil_div(config.o_groups * config.o_lora_rank, kQuantizerColumns), sizes.tensor),
              config.o_groups * config.o_lora_rank, kQuantizerColumns),
      shared_(shared_shards(config, sizes.tensor)),
      vocabulary_(ShardMap::contiguous("vocabulary", config.vocab_size, sizes.tensor)),
      experts_(ShardMap::contiguous("routed experts", config.n_routed_experts, sizes.expert)),
      tiles_(ShardMap::interleaved("tiles of entries", sizes.context)) {
  for (int64_t place = 0; place < sizes.context; ++place) {
    const std::vector<Subtree> subtrees = tiles_.subtrees_of_rank(place);
    tile_subtrees_.of_rank.push_back(static_cast<int64_t>(subtrees.size()));
    for (const Subtree& subtree : subtrees) {
      tile_subtrees_.begins.push_back(subtree.begin);
      tile_subtrees_.counts.push_back(subtree.count);
    }
  }
  for (int64_t place = 0; place < sizes.tensor; ++place) {
    const int64_t heads = heads_.columns_of_rank(place).count() / config.head_dim;
    merged_heads_.emplace_back(heads == 0
                                   ? ShardMap::explicit_leaves("merged heads", {}, sizes.context)
                                   : ShardMap::contiguous("merged heads", heads, sizes.context));
  }
  for (const Axis axis : {Axis::kTensor, Axis::kContext, Axis::kExpert}) {
    // The attention axes do not see which experts a rank has, nor the experts' which heads.
    const bool attention = axis != Axis::kExpert;
    const int64_t block = attention ? sizes.tensor * sizes.context : sizes.expert;
    std::map<std::vector<int64_t>, std::vector<int64_t>> by_place;
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      std::vector<int64_t> place = {rank / block};
      if (axis == Axis::kTensor) place.push_back(index(rank, Axis::kContext));
      if (axis == Axis::kContext) place.push_back(index(rank, Axis::kTensor));
      by_place[place].push_back(rank);
    }
    for (auto& [place, members] : by_place) {
      groups_[static_cast<size_t>(axis)].push_back(std::move(members));
    }
  }
}

int64_t Mesh::index(int64_t rank, Axis axis) const {
  switch (axis) {
    case Axis::kTensor:
      return rank % sizes_.tensor;
    case Axis::kContext:
      return rank / sizes_.tensor % sizes_.context;
    default:
      return rank % sizes_.expert;
  }
}

std::vector<ReplicaPartition> Mesh::partitions() const {
  std::vector<ReplicaPartition> partitions;
  for (unsigned bits = 0; bits < AxisSet::kCount; ++bits) {
    ReplicaPartition partition;
    std::map<std::vector<int64_t>, int64_t> set_of_place;
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      std::vector<int64_t> place;
      for (unsigned axis = 0; axis < kAxes; ++axis) {
        if ((bits >> axis & 1U) != 0) place.push_back(index(rank, static_cast<Axis>(axis)));
      }
      const auto next = static_cast<int64_t>(set_of_place.size());
      partition.set_of_rank.push_back(set_of_place.try_emplace(place, next).first->second);
    }
    for (unsigned axis = 0; axis < kAxes; ++axis) {
      if ((bits >> axis & 1U) == 0) continue;
      partition.name += (partition.name.empty() ? "equal " : ", ") +
                        std::string(axis_name(static_cast<Axis>(axis)));
    }
    partition.name += partition.name.empty() ? "everything replicated" : " index";
    partitions.push_back(std::move(partition));
  }
  for (const Axis axis : {Axis::kTensor, Axis::kContext, Axis::kExpert}) {
    ReplicaPartition partition;
    partition.name = "one " + std::string(axis_name(axis)) + " group";
    partition.set_of_rank.resize(static_cast<size_t>(ranks_));
    for (size_t group = 0; group < groups(axis).size(); ++group) {
      for (const int64_t rank : groups(axis)[group]) {
        partition.set_of_rank[static_cast<size_t>(rank)] = static_cast<int64_t>(group);
      }
    }
    partitions.push_back(std::move(partition));
  }
  return partitions;
}

}  // namespace deepinfer
