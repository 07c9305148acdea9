// Runs hyper-connections on a target.
#include "sim/kernels/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/kernels/hyper_connection.cpp"
#include <hwy/foreach_target.h>

#include "sim/kernels/hyper_connection-inl.h"

#if HWY_ONCE
#include <vector>

#include "platform/errors.h"
#include "sim/kernels/canonical_run.h"
#include "sim/kernels/gemm.h"
#include "sim/kernels/hyper_connection.h"

namespace deepinfer {
namespace {

const HyperConnectionKernels& hyper_connection_kernels(Target target) {
  DEEPINFER_SIM_SELECT_TARGET(target, kHyperConnectionKernels);
  return scalar_hyper_connection_kernels();
}

constexpr int64_t kMostStreams = 8;

void check_streams(const char* name, const RowView& streams, const RowView& y, int64_t count) {
  DEEPINFER_ASSERT(count > 0 && count <= kMostStreams && streams.type == y.type &&
                       streams.rows == y.rows && streams.columns == count * y.columns,
                   name << ": streams [" << streams.rows << ", " << streams.columns << "], y ["
                        << y.rows << ", " << y.columns << "], count " << count << ", or two types");
}

}  // namespace

void hc_mix(const HcMix& mix, Target target) {
  const int64_t s = mix.count, total = 2 * s + s * s, n = mix.streams.columns;
  DEEPINFER_ASSERT(s > 0 && s <= kMostStreams && n % s == 0, "streams " << s << ", columns " << n);
  const HyperConnectionKernels& kernels = hyper_connection_kernels(target);
  std::vector<float> dots(static_cast<size_t>(mix.streams.rows * total));
  const GemmOperand x =
      mix.streams.type == ElementType::kBf16
          ? bf16_operand(static_cast<const uint16_t*>(mix.streams.data), mix.streams.row_stride)
          : fp32_operand(static_cast<const float*>(mix.streams.data), mix.streams.row_stride);
  gemm(mix.streams.rows, total, n, x, fp32_operand(mix.fn, n), fp32_output(dots.data(), total),
       {.target = target});
  const HyperConnectionArgs args = {
      mix.streams,  s,       mix.scale, mix.base, mix.sinkhorn_iterations, mix.hc_eps,
      mix.norm_eps, mix.pre, mix.post,  mix.comb};
  run_canonical(
      kernels, scalar_hyper_connection_kernels(),
      [&](const HyperConnectionKernels& chosen) { chosen.coefficients(args, dots.data()); });
}

void hc_collapse(const RowView& streams, int64_t count, const float* pre, const MutableRowView& y,
                 Target target) {
  check_streams("hc_collapse", streams, y, count);
  run_canonical(
      hyper_connection_kernels(target), scalar_hyper_connection_kernels(),
      [&](const HyperConnectionKernels& kernels) { kernels.collapse(streams, count, pre, y); });
}

void hc_expand(const RowView& y, const RowView& streams, int64_t count, const float* post,
               const float* comb, const MutableRowView& out, Target target) {
  check_streams("hc_expand", streams, y, count);
  check_streams("hc_expand", out, y, count);
  run_canonical(hyper_connection_kernels(target), scalar_hyper_connection_kernels(),
                overwritten(streams, out), [&](const HyperConnectionKernels& kernels) {
                  kernels.expand(y, streams, count, post, comb, out);
                });
}

}  // namespace deepinfer
#endif  // HWY_ONCE
