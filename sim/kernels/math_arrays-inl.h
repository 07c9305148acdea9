// The functions of C3 over arrays, for one target. Included once per target by math.cpp and
// scalar_kernels.cpp.

#if defined(DEEPINFER_SIM_MATH_ARRAYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_SIM_MATH_ARRAYS_INL_H_
#undef DEEPINFER_SIM_MATH_ARRAYS_INL_H_
#else
#define DEEPINFER_SIM_MATH_ARRAYS_INL_H_
#endif

#include "sim/kernels/kernel_tables.h"
#include "sim/kernels/math-inl.h"

DEEPINFER_SIM_BEFORE_LANES();
namespace deepinfer::DEEPINFER_SIM_LANES_NAMESPACE {
#if DEEPINFER_SIM_HAVE_LANES
namespace {

inline F16 sin(F16 x) {
  F16 s, c;
  sin_cos(x, s, c);
  return s;
}
inline F16 cos(F16 x) {
  F16 s, c;
  sin_cos(x, s, c);
  return c;
}

template <F16 (*kFunction)(F16)>
void evaluate_array(const float* x, int64_t count, float* results) {
  for (int64_t i = 0; i < count; i += kLanes) {
    store_up_to(kFunction(load_up_to(x + i, count - i)), count - i, results + i);
  }
}

// In the order of MathFunction.
inline constexpr MathKernels kMathKernels = {
    {evaluate_array<exp>, evaluate_array<log>, evaluate_array<log1p>, evaluate_array<sigmoid>,
     evaluate_array<silu>, evaluate_array<softplus>, evaluate_array<sin>, evaluate_array<cos>}};

}  // namespace
#endif  // DEEPINFER_SIM_HAVE_LANES
}  // namespace deepinfer::DEEPINFER_SIM_LANES_NAMESPACE
DEEPINFER_SIM_AFTER_LANES();

#endif  // include guard that Highway toggles per target
