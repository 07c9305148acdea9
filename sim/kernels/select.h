// Index scores and selections: top-k, candidate blocks, the MoE gate, greedy sampling (CANONICAL.md
// C7.2, C8).
#pragma once

#include <cstdint>

#include "sim/kernels/row_view.h"
#include "sim/kernels/target.h"

namespace deepinfer {

// Selections compare numbers as they are, subnormals too (C8); they are integer code, one for all
// targets. Functions that return int64_t give the first row with a NaN (its results are then
// undefined), or -1. Shapes are asserted.

// C7.2. q [T * H, C] (row t * H + h), weights [T, H], keys [N, C], visible [T]; scores [T, N] fp32.
// `narrow` rounds dot, product and sum to bf16.
struct IndexScore {
  RowView q;
  RowView weights;
  RowView keys;
  const int64_t* visible = nullptr;
  bool narrow = false;
  float* scores = nullptr;
  int64_t score_stride = 0;
};
void index_score(const IndexScore& args, Target target = best_target());

// C8.1. scores fp32 [T, N] -> indices [T, k], ascending, padded with -1.
[[nodiscard]] int64_t topk_select(const RowView& scores, int64_t k, int32_t* indices);

// C8.1 among pairs: scores fp32 [T, N], indices [T, N] with a row stride of N -> the indices of the
// k best [T, k], ascending, padded with -1. An index of -1 is an unused place, whose score is not
// looked at. Scratch memory: a bit for each number up to the largest index.
enum class MergeFault { kNone, kNan, kRepeatedIndex, kNegativeIndex };
struct MergeStatus {
  MergeFault fault = MergeFault::kNone;
  int64_t row = -1;  // the first with the fault; the result is then undefined
};
[[nodiscard]] MergeStatus topk_merge(const RowView& scores, const int32_t* indices, int64_t k,
                                     int32_t* chosen);

// C8.2. scores fp32 [T, N], visible [T] -> blocks [T, max_blocks], ascending, padded with -1.
[[nodiscard]] int64_t candidate_blocks(const RowView& scores, const int64_t* visible,
                                       int64_t block_size, int64_t max_blocks, int32_t* blocks);
// scores with -inf outside a row's blocks [T, block_count]; column j is in block column_blocks[j],
// 0 or more. Blocks of no column are ignored. masked may be scores.
void candidate_mask(const RowView& scores, const int32_t* blocks, int64_t block_count,
                    const int64_t* column_blocks, const MutableRowView& masked);
// The largest score of each block of columns, -inf for none, +0 for zeros: maxima [T, blocks] from
// scores fp32 [T, N] whose column j is in block column_blocks[j] of those.
[[nodiscard]] int64_t block_maxima(const RowView& scores, const int64_t* column_blocks,
                                   const MutableRowView& maxima);

// C8.2. Index of the largest logit of each row, fp32 [T, V], V > 0.
[[nodiscard]] int64_t greedy_sample(const RowView& logits, int64_t* ids);

// C8.3. x [T, D], weight [E, D]; bias [E], or [T, E] with bias_stride E (0: one bias for all rows).
// experts [T, k] by descending biased score, weights [T, k]; where fewer than k biased scores are
// above -inf, -1 and 0.
struct MoeGate {
  RowView x;
  RowView weight;
  const float* bias = nullptr;
  int64_t bias_stride = 0;
  int64_t k = 0;
  float gate_temp = 1;
  float scaling = 1;
  int32_t* experts = nullptr;
  float* weights = nullptr;
};
[[nodiscard]] int64_t moe_gate(const MoeGate& args, Target target = best_vector_target());

}  // namespace deepinfer
