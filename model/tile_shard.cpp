#include "model/tile_shard.h"

#include <algorithm>
#include <vector>

namespace deepinfer {

TileShard::TileShard(const ShardMap& tiles, int64_t index, at::Device device)
    : positions_(tiles.positions_of_rank(index)), device_(device) {
  std::vector<int64_t> row_in_cycle, entry_in_cycle;
  for (int64_t entry = 0; entry < kCycle; ++entry) {
    const int64_t leaf = entry / kKvTileEntries;
    const bool own = tiles.rank_of_leaf(leaf) == index;
    const auto place = static_cast<size_t>(entry);
    row_in_cycle.push_back(own ? before_[place] : -1);
    if (own) entry_in_cycle.push_back(entry);
    before_[place + 1] = before_[place] + own;
  }
  own_leaves_ = before_[kCycle] / kKvTileEntries;
  const std::vector<int64_t> before(before_.begin(), before_.end() - 1);
  before_table_ = at::tensor(before, at::kLong).to(device);
  row_table_ = at::tensor(row_in_cycle, at::kLong).to(device);
  entry_table_ = at::tensor(entry_in_cycle, at::kLong).to(device);
}

int64_t TileShard::rows_before(int64_t end) const {
  return end / kCycle * before_[kCycle] + before_[static_cast<size_t>(end % kCycle)];
}

at::Tensor TileShard::rows_before(const at::Tensor& ends) const {
  if (keeps_all()) return ends;
  const at::Tensor cycle = at::floor_divide(ends, kCycle);
  return before_table_.index_select(0, ends - cycle * kCycle) + cycle * before_[kCycle];
}

at::Tensor TileShard::entries(IndexRange range) const {
  const auto options = at::TensorOptions().dtype(at::kLong);
  if (keeps_all()) return at::arange(range.begin, range.end, options.device(device_));
  const int64_t count = rows_before(range.end) - rows_before(range.begin);
  const at::Tensor entries = at::empty({count}, options);
  int64_t* to = entries.data_ptr<int64_t>();
  for (int64_t entry = range.begin; entry < range.end;) {
    const auto place = static_cast<size_t>(entry % kCycle);
    const int64_t tile_end = std::min(entry - entry % kKvTileEntries + kKvTileEntries, range.end);
    if (before_[place + 1] > before_[place]) {
      for (int64_t own = entry; own < tile_end; ++own) *to++ = own;
    }
    entry = tile_end;
  }
  return entries.to(device_);
}

at::Tensor TileShard::rows(const at::Tensor& entries) const {
  if (keeps_all()) return entries.to(at::kInt);
  const at::Tensor known = entries.to(at::kLong).clamp_min(0);
  const at::Tensor cycle = at::floor_divide(known, kCycle);
  const at::Tensor in_cycle =
      row_table_.index_select(0, (known - cycle * kCycle).reshape({-1})).view(known.sizes());
  const at::Tensor row = in_cycle + cycle * before_[kCycle];
  const at::Tensor own = in_cycle.ge(0).logical_and(entries.ge(0));
  return at::where(own, row, at::full({}, -1, row.options())).to(at::kInt);
}

at::Tensor TileShard::entries_of(const at::Tensor& rows) const {
  if (keeps_all()) return rows.to(at::kInt);
  const at::Tensor known = rows.to(at::kLong).clamp_min(0);
  const at::Tensor cycle = at::floor_divide(known, before_[kCycle]);
  const at::Tensor in_cycle =
      entry_table_.index_select(0, (known - cycle * before_[kCycle]).reshape({-1}))
          .view(known.sizes());
  return (in_cycle + cycle * kCycle).masked_fill(rows.lt(0), -1).to(at::kInt);
}

}  // namespace deepinfer
