// Runs the functions of CANONICAL.md C3 on a target.
#include "sim/kernels/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/kernels/math.cpp"
#include <hwy/foreach_target.h>

#include "sim/kernels/math_arrays-inl.h"

#if HWY_ONCE
#include "platform/errors.h"
#include "sim/kernels/canonical_run.h"
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
  const int64_t count = static_cast<int64_t>(x.size());
  run_canonical(math_kernels(target), scalar_math_kernels(),
                overwritten(view(x.data(), 1, count), view(results.data(), 1, count)),
                [&](const MathKernels& kernels) {
                  kernels.functions[static_cast<size_t>(function)](x.data(), count, results.data());
                });
}

}  // namespace deepinfer
#endif  // HWY_ONCE
