// How a model is cut over ranks: the sizes of a deployment, who holds which part, who computes
// alike.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/config.h"
#include "platform/communicator.h"
#include "platform/replicas.h"
#include "platform/shard_map.h"

namespace deepinfer {

enum class Axis : uint8_t {
  kTensor,   // tp: heads, o-groups, shared-expert columns, vocabulary
  kContext,  // cp: window rows, compressed rows and index keys, by tile of entries
  kExpert,   // ep: routed experts
};
inline constexpr size_t kAxes = 3;
std::string_view axis_name(Axis axis);  // "tp", "cp", "ep"

// Axes along which ranks differ in what they compute. Its number is the number of a
// ReplicaPartition.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(Axis axis) : bits_(static_cast<uint8_t>(1U << static_cast<unsigned>(axis))) {}
  constexpr AxisSet operator|(AxisSet other) const {
    AxisSet both;
    both.bits_ = static_cast<uint8_t>(bits_ | other.bits_);
    return both;
  }
  constexpr size_t number() const { return bits_; }
  static constexpr size_t kCount = size_t{1} << kAxes;

 private:
  uint8_t bits_ = 0;
};
constexpr AxisSet operator|(Axis a, Axis b) { return AxisSet(a) | AxisSet(b); }

// Sizes of the three axes. Attention runs on tp x cp ranks, the experts on ep ranks; the world is
// the smallest that both tile: with ep = tp * cp they are the same ranks (systems.md X3).
struct ParallelSizes {
  int64_t tensor = 1;
  int64_t context = 1;
  int64_t expert = 1;

  int64_t of(Axis axis) const;
  int64_t ranks() const;     // least common multiple of tensor * context and expert
  std::string text() const;  // "tp 2 cp 4 ep 8"
  bool operator==(const ParallelSizes&) const = default;
};

// K columns of a row-parallel product (CANONICAL.md C2.6), or heads of some channels each, on the
// leaves of an axis.
class ColumnShards {
 public:
  // Unit u of `map` is columns u * unit_columns ..; the last may be shorter. Units ascend with
  // leaves (asserted).
  ColumnShards(ShardMap map, int64_t columns, int64_t unit_columns);

  const ShardMap& map() const { return map_; }
  int64_t columns() const { return begins_.back(); }
  IndexRange columns_of_rank(int64_t rank) const;
  // Ends of the columns of a rank's tree positions among columns `within`, counted from the first
  // of them that is the rank's: what linear_partials takes as `bounds`.
  std::vector<int64_t> bounds(int64_t rank, IndexRange within) const;
  // Columns of `within` that are the rank's.
  IndexRange columns_of_rank(int64_t rank, IndexRange within) const;

 private:
  ShardMap map_;
  std::vector<int64_t> begins_;  // [leaves + 1] first column of each tree position
};

// Units of a contiguous axis, as the ranges that ranks hold.
struct UnitShards {
  ShardMap map;
  std::vector<IndexRange> of_rank;  // [ranks]
  int64_t most = 0;                 // units of a rank
  bool alike = false;               // every rank has as many

  explicit UnitShards(ShardMap contiguous);
};

// The maximal subtrees of tiles of all cp places, in tree order.
struct TileSubtrees {
  std::vector<int64_t> begins, counts;
  std::vector<int64_t> of_rank;  // [cp] how many of them a place has
};

// Places of the cp axis, a bit each.
using PlaceSet = uint64_t;
static_assert(kCanonicalLeaves <= 64);

// Immutable; shared by all ranks.
class Mesh {
 public:
  // Throws ConfigError for a size that is not positive or above the number of leaves.
  Mesh(const ModelConfig& config, const ParallelSizes& sizes);

  const ParallelSizes& sizes() const { return sizes_; }
  int64_t ranks() const { return ranks_; }
  // Place of a rank on an axis. Neighbours differ in tp, then in cp.
  int64_t index(int64_t rank, Axis axis) const;
  // Every group of ranks that differ in their place on an axis alone.
  const ReplicaGroups& groups(Axis axis) const { return groups_[static_cast<size_t>(axis)]; }
  // Ranks of equal places on the axes of the set, for each AxisSet; then those of one group of an
  // axis, which get the same from its collectives.
  std::vector<ReplicaPartition> partitions() const;
  static constexpr size_t group_partition(Axis axis) {
    return AxisSet::kCount + static_cast<size_t>(axis);
  }

  const ColumnShards& heads() const { return heads_; }    // columns: heads * head_dim
  const ColumnShards& output() const { return output_; }  // wo_b's input columns
  const ColumnShards& shared() const { return shared_; }  // of the shared expert
  const UnitShards& vocabulary() const { return vocabulary_; }
  const UnitShards& experts() const { return experts_; }
  // Of the heads of the ranks at a tp place, those that each cp place merges.
  const UnitShards& merged_heads(int64_t tensor_place) const {
    return merged_heads_[static_cast<size_t>(tensor_place)];
  }
  const ShardMap& tiles() const { return tiles_; }  // of kKvTileEntries positions or entries
  // The cp place that holds a position or an entry.
  PlaceSet holder_of_entry(int64_t entry) const {
    return PlaceSet{1} << tiles_.rank_of_leaf(entry / kKvTileEntries % kCanonicalLeaves);
  }
  const TileSubtrees& tile_subtrees() const { return tile_subtrees_; }

 private:
  ParallelSizes sizes_;
  int64_t ranks_;
  std::array<ReplicaGroups, kAxes> groups_;
  ColumnShards heads_, output_, shared_;
  UnitShards vocabulary_, experts_;
  std::vector<UnitShards> merged_heads_;  // [tp]
  ShardMap tiles_;
  TileSubtrees tile_subtrees_;
};

}  // namespace deepinfer
