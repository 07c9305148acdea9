// Forward error bounds of fp32 arithmetic, by element, in fp64 (Higham, Accuracy and Stability of
// Numerical Algorithms, ch. 3): what the ops' own bounds are made of.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

#include "golden/conformance/op_case.h"

namespace deepinfer::conformance {

inline constexpr double kUnit = 0x1p-24;       // u: largest relative error of an fp32 rounding
inline constexpr double kBf16Unit = 0x1p-8;    // the same of bf16, whose significand has 8 bits
inline constexpr double kSmallest = 0x1p-126;  // smallest normal; the error of one flush is below
inline constexpr double kLargest = 0x1.fffffep127;  // largest finite fp32
// A partial sum is at most (1 + gamma) times the sum of magnitudes: below this it cannot overflow.
inline constexpr double kOverflow = kLargest * (1 - 0x1p-8);
// Relative errors of CANONICAL.md C3, in units of u: 1 ulp is at most 2u.
inline constexpr double kExpUnits = 2;       // C3.1: 1 ulp
inline constexpr double kLogUnits = 2;       // C3.2: 1 ulp
inline constexpr double kSigmoidUnits = 4;   // C3.3: 2 ulp
inline constexpr double kSiluUnits = 6;      // C3.3: 3 ulp
inline constexpr double kSoftplusUnits = 4;  // C3.4: 2 ulp
// exp of less is 0 in canonical arithmetic (C3.1), and below 2^-126 in truth: what flushes count.
inline constexpr double kExpUnderflow = -87.5;
// First-order bounds are multiplied by this for their second-order terms, which are below 1 % as
// long as relative errors are (else nothing is promised).
inline constexpr double kSecondOrder = 1.01;
inline constexpr double kFirstOrderLimit = 0.01;

// gamma_n = n u / (1 - n u): largest relative error of n roundings.
double gamma(double roundings);

// Roundings that the furthest term of a dot product of K terms passes through. Canonical: C2.1 has
// 16 in a chain, one for e + o, one for each block of 32; C2.2 has ceil(K / 16) in a lane and 4 to
// combine lanes; the larger. Any order: K.
int64_t dot_depth(int64_t k, SumOrder order);

// Operations of a dot product, each of which may flush once: K products, K sums at most, lanes.
double dot_flushes(int64_t k);

Tensor wide(const Tensor& x);     // fp64; undefined stays undefined
Tensor flushed(const Tensor& x);  // fp64, subnormal fp32 numbers replaced by 0

// sum_k |a_k| |b_k|, and the error of the fp32 dot product: gamma_depth times that, what flushed
// operands lose, and a flush for each operation. Infinity where fp32 may overflow (the sum of
// magnitudes reaches the largest finite), NaN where an operand is an infinity or NaN.
// a [..., T, K], b [..., N, K] -> [..., T, N].
struct DotBound {
  Tensor magnitude;
  Tensor error;
};
DotBound dot_bound(const Tensor& a, const Tensor& b, SumOrder order);

// `error` with infinity where `magnitude` may overflow fp32, NaN where it is not finite.
Tensor guard(const Tensor& error, const Tensor& magnitude);

// Relative error of r = 1 / sqrt(sumsq(x) / n + eps): half of gamma_(depth + 3) (sum, division by
// n,
// + eps, eps as fp32) and one rounding each of sqrt and 1 / x, plus one for what flushes lose,
// which is below 3 * 2^-126 / eps < u for eps >= 1e-20.
double inverse_rms_units(int64_t n, SumOrder order);  // in units of u, first order
// sumsq(x) over the last axis, kept: what guard() is given.
Tensor square_sum(const Tensor& x);

// Sum of magnitudes of what flushed operands lose in a product: |a b| - |fl(a) fl(b)|, >= 0.
Tensor flush_loss(const Tensor& a, const Tensor& b);

// Distance of |x| and the next number of the dtype: 2^(max(exponent, -126) - 23), bf16 - 7.
Tensor ulp_of(const Tensor& x, at::ScalarType dtype);

}  // namespace deepinfer::conformance
