// Which entries of a growing list (positions, compressed entries) a context-parallel rank keeps,
// and where.
#pragma once

#include <array>
#include <cstdint>

#include <ATen/ATen.h>

#include "model/mesh.h"

namespace deepinfer {

// Entries are dealt out in tiles (Mesh::tiles). A rank keeps its own in ascending order, without
// gaps: the list of its rows is what follows from the length alone.
class TileShard {
 public:
  // Entries of place `index` of the axis.
  TileShard(const ShardMap& tiles, int64_t index, at::Device device);

  bool keeps_all() const { return own_leaves_ == kCanonicalLeaves; }
  // Own entries among 0 .. end - 1: the row of the first own entry from `end` on.
  int64_t rows_before(int64_t end) const;
  // The same for each element: int64.
  at::Tensor rows_before(const at::Tensor& ends) const;
  // Own entries of a range, ascending: int64 [rows].
  at::Tensor entries(IndexRange range) const;
  // Row of each entry, -1 where it is another rank's or -1 (unused): int32, of entries' shape.
  at::Tensor rows(const at::Tensor& entries) const;
  // The entry of each row: int32, of rows' shape; -1 stays.
  at::Tensor entries_of(const at::Tensor& rows) const;
  at::Device device() const { return device_; }
  // Tree positions of the leaves that the rank holds.
  IndexRange positions() const { return positions_; }

 private:
  static constexpr int64_t kCycle = kCanonicalLeaves * kKvTileEntries;
  IndexRange positions_;
  int64_t own_leaves_ = 0;
  std::array<int64_t, kCycle + 1> before_ = {};  // own entries before each place of a cycle
  at::Tensor before_table_;                      // int64 [kCycle], the same
  at::Tensor row_table_;    // int64 [kCycle]: row in the cycle, -1 for another rank's
  at::Tensor entry_table_;  // int64 [before_[kCycle]]: entry in the cycle
  at::Device device_;
};

}  // namespace deepinfer
