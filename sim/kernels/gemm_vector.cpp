// The GEMM kernels of the Highway targets: compiled once for each, chosen by a table.
#include "sim/kernels/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/kernels/gemm_vector.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "sim/kernels/gemm_bf16-inl.h"
#include "sim/kernels/gemm_fp32-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deepinfer::gemm_internal::HWY_NAMESPACE {
#if HWY_NATIVE_FMA
constexpr GemmKernels kGemmKernels = {gemm_bf16, gemm_fp32};
#endif
}  // namespace deepinfer::gemm_internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deepinfer::gemm_internal {

const GemmKernels& vector_gemm_kernels(Target target) {
  DEEPINFER_SIM_SELECT_TARGET(target, kGemmKernels);
  return scalar_gemm_kernels();
}

}  // namespace deepinfer::gemm_internal
#endif  // HWY_ONCE
