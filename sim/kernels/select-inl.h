// Arithmetic around selections (CANONICAL.md C7.2 and C8.3), for one target. Included once per
// target by select.cpp and scalar_kernels.cpp.

#if defined(DEEPINFER_SIM_SELECT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_SIM_SELECT_INL_H_
#undef DEEPINFER_SIM_SELECT_INL_H_
#else
#define DEEPINFER_SIM_SELECT_INL_H_
#endif

#include <algorithm>

#include "sim/kernels/kernel_tables.h"
#include "sim/kernels/math-inl.h"

DEEPINFER_SIM_BEFORE_LANES();
namespace deepinfer::DEEPINFER_SIM_LANES_NAMESPACE {
#if DEEPINFER_SIM_HAVE_LANES
namespace {

// max(d, 0): +0 for -0 too, and a NaN stays.
inline F16 relu(F16 d) { return select(d <= zero(), zero(), d); }

// C7.2.
template <bool kNarrow>
void index_score_row(const float* dots, int64_t dot_stride, const float* weights, int64_t heads,
                     int64_t count, float* scores) {
  for (int64_t j = 0; j < count; j += kLanes) {
    F16 acc = zero();
    for (int64_t h = 0; h < heads; ++h) {
      const F16 dot = load_up_to(dots + h * dot_stride + j, count - j);
      const F16 weight = broadcast(weights[h]);
      if constexpr (kNarrow) {
        acc = acc + round_bf16(weight * relu(round_bf16(dot)));
      } else {
        acc = fma(weight, relu(dot), acc);
      }
    }
    store_up_to(kNarrow ? round_bf16(acc) : acc, count - j, scores + j);
  }
}

void index_score(const float* dots, int64_t dot_stride, const float* weights, int64_t heads,
                 int64_t count, bool narrow, float* scores) {
  if (narrow) {
    index_score_row<true>(dots, dot_stride, weights, heads, count, scores);
  } else {
    index_score_row<false>(dots, dot_stride, weights, heads, count, scores);
  }
}

// C8.3.
void gate_scores(const float* dots, const float* bias, int64_t experts, float gate_temp,
                 float* scores, float* biased) {
  for (int64_t e = 0; e < experts; e += kLanes) {
    const F16 z = load_up_to(dots + e, experts - e) / broadcast(gate_temp);
    const F16 score = square_root(softplus(z));
    store_up_to(score, experts - e, scores + e);
    store_up_to(score + load_up_to(bias + e, experts - e), experts - e, biased + e);
  }
}

void gate_weights(const float* chosen, int64_t count, float scaling, float* weights) {
  F16 sum = zero();
  for (int64_t i = 0; i < count; ++i)
    sum = i == 0 ? broadcast(chosen[0]) : sum + broadcast(chosen[i]);
  const F16 divisor = sum + broadcast(1e-20f);
  for (int64_t i = 0; i < count; i += kLanes) {
    store_up_to(load_up_to(chosen + i, count - i) / divisor * broadcast(scaling), count - i,
                weights + i);
  }
}

inline constexpr SelectKernels kSelectKernels = {index_score, gate_scores, gate_weights};

}  // namespace
#endif  // DEEPINFER_SIM_HAVE_LANES
}  // namespace deepinfer::DEEPINFER_SIM_LANES_NAMESPACE
DEEPINFER_SIM_AFTER_LANES();

#endif  // include guard that Highway toggles per target
