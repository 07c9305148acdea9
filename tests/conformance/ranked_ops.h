// sparse_attention by the ops of context-parallel ranks, each with the KV tiles that are its own.
#pragma once

#include <limits>
#include <vector>

#include <ATen/ATen.h>

#include "platform/ops.h"
#include "platform/shard_map.h"

namespace deepinfer::tests {

// What a rank holds of rows with global indices first, first + 1, ..., and of an index of them.
struct RankRows {
  RankRows(const ShardMap& map, int64_t rank, const at::Tensor& from, int64_t first,
           const at::Tensor& whole_index) {
    std::vector<int64_t> kept;
    std::vector<int32_t> local(static_cast<size_t>(from.size(0)), -1);
    for (int64_t i = 0; i < from.size(0); ++i) {
      if (map.rank_of_unit((first + i) / kKvTileEntries) != rank) continue;
      local[static_cast<size_t>(i)] = static_cast<int32_t>(kept.size());
      kept.push_back(i);
    }
    const at::Tensor places = at::tensor(kept, at::kLong);
    rows = from.index_select(0, places);
    global = places + first;
    index = whole_index.contiguous().clone();
    int32_t* values = index.data_ptr<int32_t>();
    for (int64_t i = 0; i < index.numel(); ++i) {
      values[i] = values[i] < 0 ? -1 : local[static_cast<size_t>(values[i])];
    }
  }
  at::Tensor rows, global, index;
};

// Arguments as ops::sparse_attention's.
inline ops::TensorPair attention_by_ranks(int64_t ranks, const at::Tensor& q,
                                          const at::Tensor& window, int64_t window_position,
                                          const at::Tensor& window_index,
                                          const at::Tensor& compressed,
                                          const at::Tensor& compressed_index,
                                          const ops::OptionalTensor& sink, double scale,
                                          bool narrow) {
  const ShardMap map = ShardMap::interleaved("KV tiles", ranks);
  std::vector<RankRows> windows, entries;
  at::Tensor maximum = at::full({q.size(0), q.size(1)}, -std::numeric_limits<float>::infinity());
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const RankRows& w = windows.emplace_back(map, rank, window, window_position, window_index);
    const RankRows& c = entries.emplace_back(map, rank, compressed, 0, compressed_index);
    maximum =
        at::maximum(maximum, ops::attention_maximum(q, w.rows, w.index, c.rows, c.index, scale));
  }
  std::vector<at::Tensor> maxima, sums, outs;
  std::vector<int64_t> begins, counts;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const RankRows& w = windows[static_cast<size_t>(rank)];
    const RankRows& c = entries[static_cast<size_t>(rank)];
    const IndexRange own = map.positions_of_rank(rank);
    const auto [m, l, o] =
        ops::attention_partials(q, w.rows, w.global, w.index, c.rows, c.global, c.index,
                                narrow ? ops::OptionalTensor(maximum) : ops::OptionalTensor(),
                                scale, own.begin, own.count());
    maxima.push_back(m), sums.push_back(l), outs.push_back(o);
    for (const Subtree& subtree : map.subtrees_of_rank(rank)) {
      begins.push_back(subtree.begin), counts.push_back(subtree.count);
    }
  }
  // Every rank hands over every row.
  const auto subtrees = static_cast<int64_t>(begins.size());
  return ops::attention_merge(at::cat(maxima, 0).flatten(0, 1), at::cat(sums, 0).flatten(0, 1),
                              at::cat(outs, 0).flatten(0, 1),
                              at::arange(q.size(0), at::kLong).repeat({subtrees}), q.size(0),
                              begins, counts, std::vector<int64_t>(begins.size(), q.size(0)), sink,
                              q.scalar_type());
}

}  // namespace deepinfer::tests
