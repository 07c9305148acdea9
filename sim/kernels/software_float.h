// The fp32 operations of C1.1 and C1.2 in plain C++: no fma instruction, no floating-point mode.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace deepinfer::software_float {

// C1.2: a subnormal counts as a zero of its sign.
inline float flush(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return (bits & 0x7F800000) == 0 ? std::bit_cast<float>(bits & 0x80000000) : x;
}

// fp64 to fp32 in one rounding, subnormal results flushed. Whether a result is subnormal is asked
// after rounding as if the exponent had no limit: so round 2^64 higher.
inline float round_and_flush(double x) {
  constexpr double kMinNormal = 0x1p-126;
  if (!(std::fabs(x) < kMinNormal) || x == 0) return static_cast<float>(x);
  const float rounded = static_cast<float>(x * 0x1p64);
  return std::copysign(std::fabs(rounded) < 0x1p-62f ? 0.0f : 0x1p-126f, rounded);
}

// Bit-exact to C1.1 and C1.2 in any floating-point mode. The product of two fp32 is exact in fp64;
// the fp64 sum is rounded to odd, so that the second rounding, to fp32, sees every bit that
// matters.
inline float canonical_fma(float a, float b, float c) {
  const double product = static_cast<double>(flush(a)) * static_cast<double>(flush(b));
  const double addend = static_cast<double>(flush(c));
  double sum = product + addend;
  if (!std::isfinite(sum)) return static_cast<float>(sum);
  // TwoSum: what the rounding of `sum` lost, exactly.
  const double back = sum - product;
  const double lost = (product - (sum - back)) + (addend - back);
  if (lost != 0) {
    uint64_t bits = std::bit_cast<uint64_t>(sum);
    if ((bits & 1) == 0) bits += (lost > 0) == (sum > 0) ? 1 : -1;
    sum = std::bit_cast<double>(bits);
  }
  return round_and_flush(sum);
}
// The product of two fp32 is exact in fp64. A quotient or a square root in fp64 rounds to the right
// fp32: 53 bits are more than twice 24 and two (Figueroa 1995).
inline float canonical_add(float a, float b) { return flush(flush(a) + flush(b)); }
inline float canonical_multiply(float a, float b) {
  return round_and_flush(static_cast<double>(flush(a)) * static_cast<double>(flush(b)));
}
inline float canonical_divide(float a, float b) {
  return round_and_flush(static_cast<double>(flush(a)) / static_cast<double>(flush(b)));
}
inline float canonical_sqrt(float a) {
  return static_cast<float>(std::sqrt(static_cast<double>(flush(a))));
}

}  // namespace deepinfer::software_float
