// Measures the GEMM kernels side by side with named peers: oneDNN's bf16 matmul on the same shape,
// and the processor's fma peak.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/kernels/gemm.h"
#include "sim/kernels/target.h"

namespace deepinfer {

struct GemmShape {
  int64_t m, n, k;
};

struct GemmBenchOptions {
  int pairs = 15;  // timed runs of kernel and peer, one after the other; one more warms up
  // Times the processor time of the calling thread and not the wall clock: for a machine that does
  // other work.
  bool thread_time = false;
  std::vector<Target> targets;  // empty: all that are available, except scalar
  uint64_t seed = 1;            // of the random operands
};

// One kernel on one shape against one peer.
struct GemmBenchResult {
  GemmShape shape;
  std::string kernel;  // "bf16 x fp8"
  Target target;
  double median_us = 0, gflops = 0;
  double weight_gbytes = 0;  // GB/s of weights and scales read, as they lie in memory
  std::string peer;          // "oneDNN 2.6.3 bf16, W row-major", "fma peak"
  double peer_median_us = 0, peer_gflops = 0;
  double ratio = 0;  // kernel's speed over the peer's: median over pairs (fma peak: of the medians)
};

// The shapes of the issue: 1024^3; decode M = 1 and 16 with (K, N) = (5120, 2304) and (1280,
// 32768); M = 128.
std::vector<GemmShape> gemm_bench_shapes();

// bf16 activations with bf16, fp8 and fp4 weights on each shape. Peers: oneDNN with W as it lies in
// memory (row-major, as our kernels get it), and with W packed by oneDNN beforehand (packing not
// timed). Without oneDNN in the build there are no results.
std::vector<GemmBenchResult> bench_gemm_bf16(const std::vector<GemmShape>& shapes,
                                             const GemmBenchOptions& options);

// fp32 x fp32 on vector targets against the fma peak of the target.
std::vector<GemmBenchResult> bench_gemm_fp32(const std::vector<GemmShape>& shapes,
                                             const GemmBenchOptions& options);

// Independent fp32 fma chains in registers, in Gflop/s on one thread; 0 for a target that is not
// available or scalar.
double fma_peak_gflops(Target target, bool thread_time);

// "oneDNN 2.6.3", or empty if the build has none.
std::string_view gemm_bench_peer();

}  // namespace deepinfer
