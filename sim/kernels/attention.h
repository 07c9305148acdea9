// Sparse attention over a window and compressed rows, and compression pooling (CANONICAL.md C7).
#pragma once

#include <cstdint>

#include "sim/kernels/row_view.h"
#include "sim/kernels/target.h"

namespace deepinfer {

// C7.1. values, gates fp32 [groups, tokens, channels], contiguous, tokens > 0 (asserted); pooled
// [groups, channels].
void compress_pool(const float* values, const float* gates, int64_t groups, int64_t tokens,
                   int64_t channels, float* pooled, Target target = best_vector_target());

// C7.3 to C7.6. T rows of H heads with C channels; keys are values.
struct SparseAttention {
  RowView q;  // [T * H, C], row t * H + h
  int64_t heads = 0;

  // Row i of window is the key at absolute position window_first_position + i.
  RowView window;  // [N, C]
  int64_t window_first_position = 0;
  const int32_t* window_index = nullptr;  // [T, window_count] rows of window, -1: unused
  int64_t window_count = 0;

  // Row i of compressed is compressed entry i. Of window's type (asserted).
  RowView compressed;                         // [M, C]
  const int32_t* compressed_index = nullptr;  // [T, compressed_count], -1: unused
  int64_t compressed_count = 0;

  const float* sink = nullptr;  // [H], or null
  float scale = 1;
  bool narrow = false;

  MutableRowView out;    // [T * H, C], fp32 or bf16
  float* lse = nullptr;  // [T, H]: log-sum-exp without the sink, -inf for an empty row
};
// Indices outside their rows are asserted against. The order of a row's indices does not matter.
void sparse_attention(const SparseAttention& args, Target target = best_target());

}  // namespace deepinfer
