// The speed of light of fp32 kernels: independent fma chains in registers, for each Highway target.
#include "sim/kernels/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/kernels/bench/fma_peak.cpp"
#include <algorithm>
#include <cmath>
#include <cstdint>

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "sim/kernels/bench/bench_clock.h"
#include "sim/kernels/bench/gemm_bench.h"

HWY_BEFORE_NAMESPACE();
namespace deepinfer::HWY_NAMESPACE {
#if HWY_NATIVE_FMA
namespace hn = hwy::HWY_NAMESPACE;

// `rounds` times twelve fma, in twelve chains: enough for two units of latency 4 to 5. Returns the
// number of flops. The values neither grow nor become subnormal.
HWY_NOINLINE double fma_chains(int64_t rounds, float* result) {
  const hn::CappedTag<float, 16> d;
  const auto scale = hn::Set(d, result[0]), shift = hn::Set(d, result[1]);
  // Different starts: chains of equal values would be one chain to the compiler.
  const auto start = [&](int i) HWY_ATTR { return hn::Set(d, result[2 + i]); };
  auto v0 = start(0), v1 = start(1), v2 = start(2), v3 = start(3), v4 = start(4), v5 = start(5);
  auto v6 = start(6), v7 = start(7), v8 = start(8), v9 = start(9), v10 = start(10), v11 = start(11);
  for (int64_t i = 0; i < rounds; ++i) {
    v0 = hn::MulAdd(v0, scale, shift);
    v1 = hn::MulAdd(v1, scale, shift);
    v2 = hn::MulAdd(v2, scale, shift);
    v3 = hn::MulAdd(v3, scale, shift);
    v4 = hn::MulAdd(v4, scale, shift);
    v5 = hn::MulAdd(v5, scale, shift);
    v6 = hn::MulAdd(v6, scale, shift);
    v7 = hn::MulAdd(v7, scale, shift);
    v8 = hn::MulAdd(v8, scale, shift);
    v9 = hn::MulAdd(v9, scale, shift);
    v10 = hn::MulAdd(v10, scale, shift);
    v11 = hn::MulAdd(v11, scale, shift);
  }
  const auto low = hn::Add(hn::Add(hn::Add(v0, v1), hn::Add(v2, v3)), hn::Add(v4, v5));
  const auto high = hn::Add(hn::Add(hn::Add(v6, v7), hn::Add(v8, v9)), hn::Add(v10, v11));
  hn::StoreU(hn::Add(low, high), d, result);
  return 2.0 * 12 * static_cast<double>(hn::Lanes(d)) * static_cast<double>(rounds);
}

using Chains = double (*)(int64_t, float*);
constexpr Chains kChains = fma_chains;
#endif
}  // namespace deepinfer::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deepinfer {
namespace {

double (*chains_for(Target target))(int64_t, float*) {
  DEEPINFER_SIM_SELECT_TARGET(target, kChains);
  return nullptr;
}

}  // namespace

double run_fma_chains(Target target, double flops) {
  if (!is_available(target)) return 0;
  const auto chains = chains_for(target);
  if (chains == nullptr) return 0;
  // scale, shift, twelve starts
  float values[16] = {0.5f, 1.0f, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  constexpr int64_t kProbe = 64;
  const double per_round = chains(kProbe, values) / static_cast<double>(kProbe);
  const auto rounds = static_cast<int64_t>(std::ceil(flops / per_round));
  const double done = chains(std::max<int64_t>(rounds, 1), values);
  return values[0] > 0 ? done : 0;  // they are: a use of the result
}

double fma_peak_gflops(Target target, bool thread_time) {
  double best = 0;
  for (int i = 0; i < 10; ++i) {
    const double start = bench_seconds(thread_time);
    const double flops = run_fma_chains(target, 8e7);  // about a millisecond
    const double seconds = bench_seconds(thread_time) - start;
    if (seconds > 0) best = std::max(best, flops / seconds * 1e-9);
  }
  return best;
}

}  // namespace deepinfer
#endif  // HWY_ONCE
