// The functions of canonical arithmetic (CANONICAL.md C3) over arrays: for tests, tables and other
// kernels' checks.
#pragma once

#include <span>

#include "sim/kernels/target.h"

namespace deepinfer {

enum class MathFunction { kExp, kLog, kLog1p, kSigmoid, kSilu, kSoftplus, kSin, kCos };

// results[i] = function(x[i]); the spans have one length (asserted) and may be the same memory. A
// NaN result is 0x7FC00000. Bounds of the error, in ulp of the exact result
// (tests/kernels/rows/math_test.cpp holds them):
//
//   exp 1, log 1 (x > 0), log1p 2 (x >= 0), sigmoid 2, silu 3, softplus 2, sin and cos 0.501 (|x|
//   <= 2^21)
//
// Results below 2^-126 are 0.
void evaluate(MathFunction function, std::span<const float> x, std::span<float> results,
              Target target = best_vector_target());

}  // namespace deepinfer
