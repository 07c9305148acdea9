// Hyper-connections: mixing coefficients with Sinkhorn, collapse and expand (CANONICAL.md C6.4,
// C6.5).
#pragma once

#include <cstdint>

#include "sim/kernels/row_view.h"
#include "sim/kernels/target.h"

namespace deepinfer {

// T rows, S streams (at most 8, asserted), D hidden. streams [T, S * D]: a row's streams side by
// side. Shapes are asserted.

// fn [2S + S*S, S*D] fp32 contiguous, scale [3], base [2S + S*S]; pre and post [T, S], comb [T, S,
// S] with row = source stream.
struct HcMix {
  RowView streams;
  int64_t count = 0;  // S
  const float* fn = nullptr;
  const float* scale = nullptr;
  const float* base = nullptr;
  int64_t sinkhorn_iterations = 0;
  float hc_eps = 0, norm_eps = 0;
  float* pre = nullptr;
  float* post = nullptr;
  float* comb = nullptr;
};
void hc_mix(const HcMix& mix, Target target = best_vector_target());

// y [T, D] = sum over i of pre[i] streams[i].
void hc_collapse(const RowView& streams, int64_t count, const float* pre, const MutableRowView& y,
                 Target target = best_vector_target());

// out[k] = post[k] y + sum over j of comb[j, k] streams[j]: [T, S * D]. out may be streams.
void hc_expand(const RowView& y, const RowView& streams, int64_t count, const float* post,
               const float* comb, const MutableRowView& out, Target target = best_vector_target());

}  // namespace deepinfer
