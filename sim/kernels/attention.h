// Sparse attention over a window and compressed rows, and compression pooling (CANONICAL.md C7).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "platform/shard_map.h"
#include "sim/kernels/row_view.h"
#include "sim/kernels/target.h"

namespace deepinfer {

// C7.1. values, gates fp32 [groups, tokens, channels], contiguous, tokens > 0 (asserted); pooled
// [groups, channels].
void compress_pool(const float* values, const float* gates, int64_t groups, int64_t tokens,
                   int64_t channels, float* pooled, Target target = best_vector_target());

// T rows of H heads with C channels, and the keys that each row lists. Keys are values.
struct AttentionLists {
  RowView q;  // [T * H, C], row t * H + h
  int64_t heads = 0;

  RowView window;                         // [N, C]
  const int32_t* window_index = nullptr;  // [T, window_count] rows of window, -1: unused
  int64_t window_count = 0;

  // Of window's type (asserted).
  RowView compressed;                         // [M, C]
  const int32_t* compressed_index = nullptr;  // [T, compressed_count], -1: unused
  int64_t compressed_count = 0;

  float scale = 1;
};
// Indices outside their rows are asserted against in all that follows. The order of a row's indices
// does not matter.

// C7.3 to C7.6.
struct SparseAttention : AttentionLists {
  // Row i of window is the key at absolute position window_first_position + i, row i of compressed
  // is compressed entry i.
  int64_t window_first_position = 0;

  const float* sink = nullptr;  // [H], or null
  bool narrow = false;

  MutableRowView out;    // [T * H, C], fp32 or bf16
  float* lse = nullptr;  // [T, H]: log-sum-exp without the sink, -inf for an empty row
};
void sparse_attention(const SparseAttention& args, Target target = best_target());

// --- The same by ranks that hold some of the keys each (C7.7): the partials of all ranks, merged,
// are sparse_attention's results to the last bit.

// The M of narrow rows, as far as these keys go: maximum [T, H], -inf for an empty row.
void attention_maximum(const AttentionLists& args, float* maximum, Target target = best_target());

struct AttentionPartials : AttentionLists {
  // Absolute positions of window's rows and entry numbers of compressed's, not negative and
  // ascending (the caller checks).
  const int64_t* window_positions = nullptr;    // [N]
  const int64_t* compressed_entries = nullptr;  // [M]
  IndexRange positions;  // tree positions of the rank, of kCanonicalLeaves (asserted)

  // [T, H], over the keys of all ranks: the rows are narrow. Null: they are not.
  const float* list_maximum = nullptr;

  // One for each of the S maximal_subtrees(positions).
  float* maximum = nullptr;  // [S, T, H], -inf where no key is in the subtree
  float* sum = nullptr;      // [S, T, H], 0 there
  float* out = nullptr;      // [S, T, H, C], 0 there
};
// A listed key that is not at one of the rank's tree positions.
struct MisplacedKey {
  int64_t query_row;
  bool in_window;
  int64_t key_row;  // of window, or of compressed
  int64_t tree_position;
};
// Returns the first misplaced key, if any: partials are then made of the rows before only.
std::optional<MisplacedKey> attention_partials(const AttentionPartials& args,
                                               Target target = best_target());

// C7.5 over subtrees, and C7.6.
struct AttentionMerge {
  int64_t rows = 0, heads = 0, channels = 0;
  std::vector<Subtree> subtrees;  // S, are_subtrees (asserted)
  // Of the P partials, the first partial_counts[0] are of the first subtree, and so on. Those of a
  // subtree are of ascending rows (the caller checks); a row without one has none there.
  std::vector<int64_t> partial_counts;    // S, of sum P
  const int64_t* partial_rows = nullptr;  // [P]
  const float* maximum = nullptr;         // [P, H]
  const float* sum = nullptr;             // [P, H]
  // [P, H] rows of C floats, partial_out_stride apart; not read where the partial is absent.
  const float* partial_out = nullptr;
  int64_t partial_out_stride = 0;

  const float* sink = nullptr;  // [H], or null

  MutableRowView out;    // [T * H, C], fp32 or bf16
  float* lse = nullptr;  // [T, H]
};
void attention_merge(const AttentionMerge& args, Target target = best_vector_target());

}  // namespace deepinfer
