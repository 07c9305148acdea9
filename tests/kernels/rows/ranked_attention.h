// sparse_attention by ranks that hold their KV tiles only (CANONICAL.md C7.7), for tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include "platform/shard_map.h"
#include "sim/kernels/attention.h"

namespace deepinfer {

// What a run went through.
struct RankedRun {
  int64_t absent = 0, present = 0;  // partials, by subtree and query row
  int64_t ranks_without_rows = 0;
  int64_t most_subtrees = 0;  // of a rank
};

// What one rank holds: its rows of window and compressed, each index -1 where the key is elsewhere.
struct RankKeys {
  struct Rows {
    std::vector<uint8_t> bytes;
    std::vector<int64_t> global;  // position or entry number
    std::vector<int32_t> index;   // [T, count], local rows
    RowView view;
  };
  Rows window, compressed;

  // Rows i of `from` for which mine(first + i).
  template <typename Mine>
  static void take(const RowView& from, int64_t first, const int32_t* index, int64_t index_count,
                   const Mine& mine, Rows& to) {
    const size_t element = from.type == ElementType::kBf16 ? 2 : 4;
    std::vector<int32_t> local(static_cast<size_t>(from.rows), -1);
    for (int64_t i = 0; i < from.rows; ++i) {
      if (!mine(first + i)) continue;
      local[static_cast<size_t>(i)] = static_cast<int32_t>(to.global.size());
      to.global.push_back(first + i);
      const uint8_t* row = static_cast<const uint8_t*>(from.data) +
                           static_cast<size_t>(i * from.row_stride) * element;
      to.bytes.insert(to.bytes.end(), row, row + static_cast<size_t>(from.columns) * element);
    }
    for (int64_t i = 0; i < index_count; ++i) {
      to.index.push_back(index[i] < 0 ? -1 : local[static_cast<size_t>(index[i])]);
    }
    to.view = {from.type, to.bytes.data(), static_cast<int64_t>(to.global.size()), from.columns,
               from.columns};
  }
};

// Fills whole.out and whole.lse with what `ranks` ranks make together.
inline RankedRun ranked_attention(const SparseAttention& whole, int64_t ranks, Target target) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const ShardMap map = ShardMap::interleaved("KV tiles", ranks);
  const int64_t channels = whole.q.columns;
  const size_t rows = static_cast<size_t>(whole.q.rows);  // T * H
  const int64_t queries = whole.q.rows / whole.heads;
  RankedRun run;

  std::vector<int64_t> rank_of_leaf;
  for (int64_t leaf = 0; leaf < map.leaves(); ++leaf) {
    rank_of_leaf.push_back(map.rank_of_leaf(leaf));
  }
  std::vector<RankKeys> keys(static_cast<size_t>(ranks));
  std::vector<AttentionPartials> args(keys.size());
  std::vector<float> list_maximum(rows, kNone), own_maximum(rows);
  AttentionMerge merge;
  for (size_t r = 0; r < keys.size(); ++r) {
    const int64_t rank = static_cast<int64_t>(r);
    const auto mine = [&](int64_t global) {
      return rank_of_leaf[static_cast<size_t>(global / 8 % 64)] == rank;
    };
    RankKeys::take(whole.window, whole.window_first_position, whole.window_index,
                   queries * whole.window_count, mine, keys[r].window);
    RankKeys::take(whole.compressed, 0, whole.compressed_index, queries * whole.compressed_count,
                   mine, keys[r].compressed);
    run.ranks_without_rows +=
        keys[r].window.global.empty() && keys[r].compressed.global.empty() ? 1 : 0;
    AttentionPartials& a = args[r];
    static_cast<AttentionLists&>(a) = whole;
    a.window = keys[r].window.view;
    a.window_index = keys[r].window.index.data();
    a.compressed = keys[r].compressed.view;
    a.compressed_index = keys[r].compressed.index.data();
    a.window_positions = keys[r].window.global.data();
    a.compressed_entries = keys[r].compressed.global.data();
    a.positions = map.positions_of_rank(rank);
    if (whole.narrow) {
      attention_maximum(a, own_maximum.data(), target);
      for (size_t i = 0; i < rows; ++i) {
        list_maximum[i] = std::max(list_maximum[i], own_maximum[i]);
      }
    }
    const std::vector<Subtree> subtrees = map.subtrees_of_rank(rank);
    run.most_subtrees = std::max(run.most_subtrees, static_cast<int64_t>(subtrees.size()));
    merge.subtrees.insert(merge.subtrees.end(), subtrees.begin(), subtrees.end());
  }
  // Every rank hands over every row.
  merge.partial_counts.assign(merge.subtrees.size(), queries);
  std::vector<int64_t> partial_rows;
  for (size_t s = 0; s < merge.subtrees.size(); ++s) {
    for (int64_t t = 0; t < queries; ++t) partial_rows.push_back(t);
  }
  merge.partial_rows = partial_rows.data();

  const size_t count = merge.subtrees.size();
  const auto width = static_cast<size_t>(channels);
  std::vector<float> maximum(count * rows, -77.0f), sum(maximum),
      out(maximum.size() * width, -77.0f);
  size_t first = 0;
  for (size_t r = 0; r < keys.size(); ++r) {
    args[r].list_maximum = whole.narrow ? list_maximum.data() : nullptr;
    args[r].maximum = maximum.data() + first;
    args[r].sum = sum.data() + first;
    args[r].out = out.data() + first * width;
    CHECK(!attention_partials(args[r], target).has_value());
    first += map.subtrees_of_rank(static_cast<int64_t>(r)).size() * rows;
  }
  // Absent partials are zeros, and nobody reads these.
  const std::vector<float> zeros(width, 0.0f), nans(width, std::numeric_limits<float>::quiet_NaN());
  int64_t not_zero = 0;
  for (size_t i = 0; i < maximum.size(); ++i) {
    const bool absent = maximum[i] == kNone && sum[i] == 0;
    if (i % static_cast<size_t>(whole.heads) == 0) ++(absent ? run.absent : run.present);
    if (!absent) continue;
    float* begin = out.data() + i * width;
    not_zero += std::memcmp(begin, zeros.data(), width * sizeof(float)) == 0 ? 0 : 1;
    std::copy(nans.begin(), nans.end(), begin);
  }
  CHECK(not_zero == 0);

  merge.rows = queries, merge.heads = whole.heads, merge.channels = channels;
  merge.maximum = maximum.data(), merge.sum = sum.data(), merge.partial_out = out.data();
  merge.partial_out_stride = channels;
  merge.sink = whole.sink, merge.out = whole.out, merge.lse = whole.lse;
  attention_merge(merge, target);
  return run;
}

}  // namespace deepinfer
