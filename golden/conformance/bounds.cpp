#include "golden/conformance/bounds.h"

#include <algorithm>
#include <limits>

namespace deepinfer::conformance {

double gamma(double roundings) { return roundings * kUnit / (1 - roundings * kUnit); }

int64_t dot_depth(int64_t k, SumOrder order) {
  const int64_t in_blocks = 16 + 1 + (k + 31) / 32;
  const int64_t in_lanes = (k + 15) / 16 + 4;
  const int64_t canonical = std::max(in_blocks, in_lanes);
  return order == SumOrder::kCanonical ? canonical : std::max(k, canonical);
}

double dot_flushes(int64_t k) {
  return static_cast<double>(2 * k + 32 + k / 16);  // 32: both chains' and lanes' last sums
}

Tensor wide(const Tensor& x) { return x.defined() ? x.to(at::kDouble) : x; }

Tensor flushed(const Tensor& x) {
  const Tensor w = wide(x);
  return w.masked_fill(w.abs().lt(kSmallest), 0);
}

Tensor guard(const Tensor& error, const Tensor& magnitude) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const Tensor m = magnitude.expand_as(error);
  return error.masked_fill(m.ge(kOverflow), kInfinity)
      .masked_fill(m.isfinite().logical_not(), kNan);
}

DotBound dot_bound(const Tensor& a, const Tensor& b, SumOrder order) {
  const int64_t k = a.size(-1);
  const Tensor wa = wide(a).abs(), wb = wide(b).abs().transpose(-1, -2);
  const Tensor magnitude = at::matmul(wa, wb);
  const Tensor fa = flushed(a).abs(), fb = flushed(b).abs().transpose(-1, -2);
  // What flushing the operands loses; rounding of fp64 must not make it negative.
  const Tensor loss = (magnitude - at::matmul(fa, fb)).clamp_min(0);
  const double depth = static_cast<double>(dot_depth(k, order));
  Tensor error = guard(
      magnitude * (gamma(depth) * kSecondOrder) + loss + dot_flushes(k) * kSmallest, magnitude);
  const Tensor special = magnitude.isfinite().logical_not();
  if (special.any().item<bool>()) {
    // Beside an infinity, what overflows makes another, and a flushed operand makes a NaN of it:
    // then nothing is promised.
    const auto finite = [](const Tensor& x) {
      return x.masked_fill(x.isfinite().logical_not(), 0);
    };
    const auto infinite = [](const Tensor& x) { return x.isinf().to(at::kDouble); };
    const auto tiny = [](const Tensor& x) {
      return x.gt(0).logical_and(x.lt(kSmallest)).to(at::kDouble);
    };
    const Tensor overflow = at::matmul(finite(wa), finite(wb)).ge(kOverflow);
    const Tensor lost = at::matmul(infinite(wa), tiny(wb)) + at::matmul(tiny(wa), infinite(wb));
    error = error.masked_fill(special.logical_and(overflow.logical_or(lost.gt(0))),
                              std::numeric_limits<double>::infinity());
  }
  return {magnitude, error};
}

double inverse_rms_units(int64_t n, SumOrder order) {
  return static_cast<double>(dot_depth(n, order) + 3) / 2 + 3;
}

Tensor square_sum(const Tensor& x) { return wide(x).square().sum({-1}, /*keepdim=*/true); }

Tensor flush_loss(const Tensor& a, const Tensor& b) {
  return ((wide(a) * wide(b)).abs() - (flushed(a) * flushed(b)).abs()).clamp_min(0);
}

Tensor ulp_of(const Tensor& x, at::ScalarType dtype) {
  // frexp: |x| = m 2^e with m in [1/2, 1), so the exponent is e - 1; zero gets -126 by the clamp.
  const Tensor magnitude = wide(x).abs().clamp(kSmallest, kLargest);
  const Tensor exponent = (std::get<1>(at::frexp(magnitude)) - 1).to(at::kDouble);
  return at::exp2(exponent - (dtype == at::kBFloat16 ? 7.0 : 23.0));
}

}  // namespace deepinfer::conformance
