// Every kernel beside a peer, on shapes of the released model. Peers of what is neither a GEMM nor
// a codec are what an engineer would write for the same result in plain ATen, at the kernel's own
// precision.
#pragma once

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include "sim/kernels/bench/gemm_bench.h"
#include "sim/kernels/bench/kernel_bench.h"

namespace deepinfer {

// ATen on one thread and without autograd, as long as the scope lives. Cases are prepared and run
// inside one.
class AtenBenchScope {
 public:
  AtenBenchScope();
  ~AtenBenchScope();
  AtenBenchScope(const AtenBenchScope&) = delete;
  AtenBenchScope& operator=(const AtenBenchScope&) = delete;

 private:
  int threads_before_;
  c10::InferenceMode inference_mode_;
};

// All cases. GEMM: oneDNN as the peer, or ATen's matmul in a build without oneDNN; codecs: memcpy.
std::vector<KernelBenchCase> kernel_bench_cases();

// The parts of it whose peer is ATen, by the headers of their kernels.
std::vector<KernelBenchCase> function_bench_cases();          // math.h
std::vector<KernelBenchCase> row_bench_cases();               // rows.h
std::vector<KernelBenchCase> quantize_bench_cases();          // quantize.h
std::vector<KernelBenchCase> hyper_connection_bench_cases();  // hyper_connection.h
std::vector<KernelBenchCase> attention_bench_cases();         // attention.h
std::vector<KernelBenchCase> selection_bench_cases();         // select.h
std::vector<KernelBenchCase> expert_bench_cases();  // moe_combine.h, gemm.h (grouped, leaves)
std::vector<KernelBenchCase> engram_bench_cases();  // engram.h
// at::matmul on W row-major.
std::vector<GemmPeer> aten_gemm_peers();

}  // namespace deepinfer
