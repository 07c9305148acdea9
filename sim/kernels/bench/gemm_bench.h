// The cases of the GEMM kernels, and their peers that need no libtorch: oneDNN's matmul on the same
// operands, and the processor's fma peak.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/kernels/bench/kernel_bench.h"
#include "sim/kernels/gemm.h"
#include "sim/kernels/target.h"

namespace deepinfer {

struct GemmShape {
  int64_t m, n, k;
};

// What a peer multiplies: C[m, n] = A[m, k] W[n, k]^T, all row-major. A and W are of `type` (kFp32,
// or kBf16), C is fp32.
struct GemmPeerOperands {
  GemmShape shape;
  GemmType type;
  const void* a;
  const void* w;
  float* c;
};
struct GemmPeer {
  std::string name;  // "oneDNN 2.6.3, W row-major"
  bool packed;       // lays W out for itself beforehand; our kernels take it as it lies in memory
  // Returns what runs the product; operands stay where they are.
  std::function<std::function<void()>(const GemmPeerOperands& operands)> make;
};

// oneDNN's matmul with W as it lies in memory (row-major, as our kernels get it), and with W packed
// beforehand; empty if the build has no oneDNN, or the process a different one than the build.
std::vector<GemmPeer> onednn_gemm_peers();
// "2.6.3", or why there is none: "none: built without oneDNN".
std::string onednn_version();

// bf16 activations with bf16, fp8 and fp4 weights against each peer (a packed one for bf16 weights
// only); fp32 against each peer that is not packed, and from two rows on
// against the fma peak. Peers multiply bf16
// weights of the same values.
std::vector<KernelBenchCase> gemm_bench_cases(const std::vector<GemmPeer>& peers);

// Runs independent fp32 fma chains in registers, at least `flops` of them; returns how many, 0 for
// a target that is not available or scalar.
double run_fma_chains(Target target, double flops);
// The best speed of such chains in several runs, in Gflop/s on one thread.
double fma_peak_gflops(Target target, bool thread_time);

}  // namespace deepinfer
