// exp, log, log1p, sigmoid, silu, softplus, sin and cos of sixteen lanes (CANONICAL.md C3).
// Its coefficients and its order of operations are part of the definition.
//
// Polynomials are minimax in relative error (Remez), their coefficients rounded to fp32.

#if defined(DEEPINFER_SIM_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_SIM_MATH_INL_H_
#undef DEEPINFER_SIM_MATH_INL_H_
#else
#define DEEPINFER_SIM_MATH_INL_H_
#endif

#include <limits>

#include "sim/kernels/lanes-inl.h"

DEEPINFER_SIM_BEFORE_LANES();
namespace deepinfer::DEEPINFER_SIM_LANES_NAMESPACE {
#if DEEPINFER_SIM_HAVE_LANES
namespace {

// ln 2 in two parts; the first has 15 bits, so that n * kLn2High is exact for |n| < 2^9.
inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kLn2High = 0x1.62e4p-1f;
inline constexpr float kLn2Low = 0x1.7f7d1cp-20f;

// exp: the largest argument with a finite result, the smallest with a normal one.
inline constexpr float kExpLargest = 0x1.62e42ep+6f;
inline constexpr float kExpSmallest = -0x1.5d589ep+6f;
// 1.5 * 2^23: adding it rounds to the nearest integer, ties to even, which is then in the low bits.
inline constexpr float kRoundingMagic = 0x1.8p+23f;

// C3.1.
inline F16 exp(F16 x) {
  const F16 clamped = max_of(min_of(x, broadcast(kExpLargest)), broadcast(kExpSmallest));
  const F16 shifted = clamped * broadcast(kLog2E) + broadcast(kRoundingMagic);
  const F16 n = shifted - broadcast(kRoundingMagic);
  F16 r = fnma(n, broadcast(kLn2High), clamped);
  r = fnma(n, broadcast(kLn2Low), r);
  // exp(r) = 1 + r + r^2 (c2 + c3 r + ...), relative error 2^-34 on |r| <= ln 2 / 2.
  F16 p = broadcast(0x1.9f0894p-13f);
  p = fma(p, r, broadcast(0x1.6d8d06p-10f));
  p = fma(p, r, broadcast(0x1.11127p-7f));
  p = fma(p, r, broadcast(0x1.55548ep-5f));
  p = fma(p, r, broadcast(0x1.555554p-3f));
  p = fma(p, r, broadcast(0.5f));
  p = fma(p, r, broadcast(1.0f));
  p = fma(p, r, broadcast(1.0f));
  // Times 2^n: n goes to the exponent field. It stays within 1..254 between the two limits.
  F16 result = from_bits(bits(p) + shift_left<23>(bits(shifted)));
  result =
      select(broadcast(kExpLargest) < x, broadcast(std::numeric_limits<float>::infinity()), result);
  result = select(x < broadcast(kExpSmallest), zero(), result);
  return select(is_nan(x), quiet_nan(), result);
}

// ln(t) + correction for a finite normal t > 0 (C3.2). t = (1 + f) 2^k, 1 + f in [sqrt(1/2),
// sqrt(2)).
inline F16 log_with_correction(F16 t, F16 correction) {
  constexpr int32_t kSqrtHalfBits = 0x3F3504F3;
  const I16 k = shift_right<23>(bits(t) - broadcast_int(kSqrtHalfBits));
  const F16 f = from_bits(bits(t) - shift_left<23>(k)) - broadcast(1.0f);
  const F16 n = float_of(k);
  // ln(1 + f) = f - f^2 / 2 + f^3 (c0 + c1 f + ...), relative error 2^-27.
  F16 p = broadcast(-0x1.38b57cp-4f);
  p = fma(p, f, broadcast(0x1.055b68p-3f));
  p = fma(p, f, broadcast(-0x1.0d8542p-3f));
  p = fma(p, f, broadcast(0x1.22da1ep-3f));
  p = fma(p, f, broadcast(-0x1.547244p-3f));
  p = fma(p, f, broadcast(0x1.99a008p-3f));
  p = fma(p, f, broadcast(-0x1.000226p-2f));
  p = fma(p, f, broadcast(0x1.555554p-2f));
  const F16 square = f * f;
  F16 y = fma(f * square, p, correction);
  y = fma(broadcast(-0.5f), square, y);
  y = fma(n, broadcast(kLn2Low), y);
  y = y + f;
  return fma(n, broadcast(kLn2High), y);
}

// The log of C7.6, x >= 0: +inf and NaN give themselves, 0 gives -inf.
inline F16 log(F16 x) {
  const F16 infinity = broadcast(std::numeric_limits<float>::infinity());
  const F16 result = log_with_correction(x, zero());
  return select(x == zero(), negate(infinity), select(x < infinity, result, x));
}

// C3.2, u >= 0.
inline F16 log1p(F16 u) {
  const F16 one = broadcast(1.0f);
  const F16 t = one + u;
  const F16 correction = (u - (t - one)) / t;
  const F16 result = log_with_correction(t, correction);
  return select(u < broadcast(std::numeric_limits<float>::infinity()), result, u);
}

// C3.3. The quotient is corrected by its remainder, with what the rounding of 1 + e lost in it: a
// plain quotient has errors of more than 2 ulp.
inline F16 sigmoid(F16 x) {
  const F16 one = broadcast(1.0f);
  const F16 e = exp(negate(absolute(x)));
  const F16 numerator = select(zero() <= x, one, e);
  const F16 t = one + e;
  const F16 lost = e - (t - one);
  const F16 inverse = one / t;
  const F16 quotient = numerator * inverse;
  const F16 remainder = fnma(quotient, lost, fnma(quotient, t, numerator));
  return fma(remainder, inverse, quotient);
}
inline F16 silu(F16 x) { return x * sigmoid(x); }

// C3.4.
inline F16 softplus(F16 x) {
  const F16 limit = broadcast(20.0f);
  return select(limit < x, x, log1p(exp(min_of(x, limit))));
}

// C3.5. Taylor polynomials in fp64: on |r| <= pi/4 the first terms left out are below 2^-40 of the
// result.
inline void sin_cos(F16 angle, F16& sine, F16& cosine) {
  constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
  constexpr double kHalfPiHigh = 0x1.921fb54442d18p+0;
  constexpr double kHalfPiLow = 0x1.1a62633145c07p-54;
  const D16 a = widen(angle);
  const D16 k = nearest_integer(a * broadcast_wide(kTwoOverPi));
  D16 r = fnma(k, broadcast_wide(kHalfPiHigh), a);
  r = fnma(k, broadcast_wide(kHalfPiLow), r);
  const D16 square = r * r;

  // sin r = r + r^3 (-1/3! + r^2 / 5! - ...), to r^13.
  D16 s = broadcast_wide(1.0 / 6227020800.0);
  s = fma(s, square, broadcast_wide(-1.0 / 39916800.0));
  s = fma(s, square, broadcast_wide(1.0 / 362880.0));
  s = fma(s, square, broadcast_wide(-1.0 / 5040.0));
  s = fma(s, square, broadcast_wide(1.0 / 120.0));
  s = fma(s, square, broadcast_wide(-1.0 / 6.0));
  s = fma(s, square * r, r);
  // cos r = 1 + r^2 (-1/2! + r^2 / 4! - ...), to r^14.
  D16 c = broadcast_wide(-1.0 / 87178291200.0);
  c = fma(c, square, broadcast_wide(1.0 / 479001600.0));
  c = fma(c, square, broadcast_wide(-1.0 / 3628800.0));
  c = fma(c, square, broadcast_wide(1.0 / 40320.0));
  c = fma(c, square, broadcast_wide(-1.0 / 720.0));
  c = fma(c, square, broadcast_wide(1.0 / 24.0));
  c = fma(c, square, broadcast_wide(-0.5));
  c = fma(c, square, broadcast_wide(1.0));

  // k mod 4 as -2..2 (2 and -2 are the same quadrant).
  const D16 turns = nearest_integer(k * broadcast_wide(0.25));
  const F16 quadrant = narrow(fnma(turns, broadcast_wide(4.0), k));
  const F16 sin_r = narrow(s), cos_r = narrow(c);
  const M16 odd = absolute(quadrant) == broadcast(1.0f);
  const M16 half_turn = absolute(quadrant) == broadcast(2.0f);
  // quadrant    0      1      2 / -2   -1
  // sine        s      c      -s       -c
  // cosine      c      -s     -c       s
  F16 new_sine = select(odd, cos_r, sin_r);
  F16 new_cosine = select(odd, sin_r, cos_r);
  const M16 back = quadrant == broadcast(-1.0f);
  new_sine = select(back, negate(new_sine), select(half_turn, negate(new_sine), new_sine));
  new_cosine = select(half_turn, negate(new_cosine),
                      select(quadrant == broadcast(1.0f), negate(new_cosine), new_cosine));
  sine = new_sine;
  cosine = new_cosine;
}

}  // namespace
#endif  // DEEPINFER_SIM_HAVE_LANES
}  // namespace deepinfer::DEEPINFER_SIM_LANES_NAMESPACE
DEEPINFER_SIM_AFTER_LANES();

#endif  // include guard that Highway toggles per target
