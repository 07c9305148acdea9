// Runs the functions of CANONICAL.md C3 on a target.
#include "sim/kernels/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/kernels/math.cpp"
#include <hwy/foreach_target.h>

#include "sim/kernels/math_arrays-inl.h"

#if HWY_ONCE
#include "platform/errors.h"
#include "sim/kernels/float_scope.h"
#include "sim/kernels/math.h"

namespace deepinfer {
namespace {

const MathKernels& math_kernels(Target target) {
  DEEPINFER_SIM_SELECT_TARGET(target, kMathKernels);
  return scalar_math_kernels();
}

}  // namespace

void evaluate(MathFunction function, std::span<const float> x, std::span<float> results,
              Target target) {
  DEEPINFER_ASSERT(x.size() == results.size(), "x " << x.size() << ", results " << results.size());
  const MathKernels& kernels = math_kernels(target);
  const FloatScope scope;
  kernels.functions[static_cast<size_t>(function)](x.data(), static_cast<int64_t>(x.size()),
                                                   results.data());
}

}  // namespace deepinfer
#endif  // HWY_ONCE
