// Names the instruction sets that a kernel can run on, and finds those of this machine.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

// Where a kernel runs. All targets give the same bits (CANONICAL.md); they differ in speed only.
enum class Target {
  kAmx,     // AMX tiles (TDPBF16PS) for bf16 products, AVX-512 with VBMI around them
  kAvx512,  // AVX-512 F, BW, DQ, VL
  kAvx2,    // AVX2 with FMA
  kNeon,    // AArch64 Advanced SIMD
  kScalar,  // plain C++, which needs no fma instruction and no floating-point mode
};

// "amx", "avx512", "avx2", "neon", "scalar"
std::string_view target_name(Target target);
// Throws ConfigError that names the nearest known target.
Target parse_target(std::string_view name);

// The targets that this build has and this machine can run, fastest first; kScalar is always the
// last. Looked up once: AMX asks the kernel for permission to use the tile registers, which is for
// all threads of the process.
std::span<const Target> available_targets();
bool is_available(Target target);
// Throws UnsupportedError, which lists the available targets, if `target` is not one of them.
void check_available(Target target);
// What kernels run on where a caller names no target: the innermost TargetScope's, else the
// fastest.
Target best_target();
// The same for kernels without an AMX form: a Highway target or scalar.
Target best_vector_target();
// What a kernel without an AMX form runs for `target`: kAvx512 for kAmx, else `target` itself.
// Throws UnsupportedError if that is not available.
Target vector_target(Target target);

// Kernels of the calling thread that are given no target run on `target`, until the end of the
// scope. A kernel hands its target to the threads that it starts. Throws UnsupportedError as
// check_available.
class TargetScope {
 public:
  explicit TargetScope(Target target);
  ~TargetScope();
  TargetScope(const TargetScope&) = delete;
  TargetScope& operator=(const TargetScope&) = delete;

 private:
  std::optional<Target> outer_;
};

// "avx512f avx512bw ... amx_bf16": the features of this machine that kernels look at, for reports.
std::string machine_features();

}  // namespace deepinfer
