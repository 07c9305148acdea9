// The functions of CANONICAL.md C3: one result on every target, and their error against long
// double.
#include "sim/kernels/math.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/kernels/effort.h"
#include "tests/kernels/rows/random_data.h"
#include "tests/random_seed.h"

namespace deepinfer {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Case {
  MathFunction function;
  const char* name;
  long double (*exact)(long double);
  double bound;  // ulp
  float lowest,
      largest;  // arguments for which the bound holds, where the result is not below 2^-126
};

long double exact_sigmoid(long double x) { return 1 / (1 + expl(-x)); }
long double exact_silu(long double x) { return x / (1 + expl(-x)); }
long double exact_softplus(long double x) { return x > 60 ? x : log1pl(expl(x)); }

const Case kCases[] = {
    {MathFunction::kExp, "exp", expl, 1, -0x1.5d589ep+6f, 0x1.62e42ep+6f},
    {MathFunction::kLog, "log", logl, 1, 0x1p-126f, 0x1.fffffep+127f},
    {MathFunction::kLog1p, "log1p", log1pl, 2, 0x1p-126f, 0x1.fffffep+127f},
    {MathFunction::kSigmoid, "sigmoid", exact_sigmoid, 2, -87.3f, 0x1.fffffep+127f},
    {MathFunction::kSilu, "silu", exact_silu, 3, -87.3f, 0x1.fffffep+127f},
    {MathFunction::kSoftplus, "softplus", exact_softplus, 2, -87.3f, 0x1.fffffep+127f},
    {MathFunction::kSin, "sin", sinl, 0.501, -0x1p21f, 0x1p21f},
    {MathFunction::kCos, "cos", cosl, 0.501, -0x1p21f, 0x1p21f},
};

// |value - exact| in units of the last place of the fp32 binade that the exact result is in.
double ulp_error(float value, long double exact) {
  if (exact == 0) return value == 0 ? 0 : kInfinity;
  const int exponent = std::max(std::ilogb(exact), -126);
  return static_cast<double>(std::fabs(static_cast<long double>(value) - exact) /
                             std::ldexp(1.0L, exponent - 23));
}

std::vector<float> run(MathFunction function, const std::vector<float>& x, Target target) {
  std::vector<float> results(x.size());
  evaluate(function, x, results, target);
  return results;
}

int64_t different_bits(const std::vector<float>& a, const std::vector<float>& b) {
  int64_t different = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    different += std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]) ? 1 : 0;
  }
  return different;
}

// Every bf16 number, as fp32.
std::vector<float> all_bf16() {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 0x10000; ++bits)
    values.push_back(from_bf16(static_cast<uint16_t>(bits)));
  return values;
}

TEST_CASE("every bf16 argument gives the same bits on all targets") {
  const std::vector<float> x = all_bf16();
  for (const Case& c : kCases) {
    const std::vector<float> scalar = run(c.function, x, Target::kScalar);
    for (const Target target : available_targets()) {
      CAPTURE(std::string(c.name));
      CAPTURE(std::string(target_name(target)));
      CHECK(different_bits(scalar, run(c.function, x, target)) == 0);
    }
  }
}

TEST_CASE("random fp32 patterns give the same bits on all targets") {
  const uint64_t seed = random_seed(0x3001);
  RandomData random(seed, 1, 0);
  std::vector<float> x(static_cast<size_t>(effort(1 << 17)));
  for (float& value : x) value = std::bit_cast<float>(random.bits());
  for (size_t i = 0; i < x.size() / 2; ++i) x[i] = random.spread(7);
  for (const Case& c : kCases) {
    const std::vector<float> scalar = run(c.function, x, Target::kScalar);
    for (const Target target : available_targets()) {
      CAPTURE(std::string(c.name));
      CAPTURE(std::string(target_name(target)));
      CHECK(different_bits(scalar, run(c.function, x, target)) == 0);
    }
  }
}

TEST_CASE("errors stay within the stated bounds") {
  const uint64_t seed = random_seed(0x3002);
  // Patterns of each function's interval, a stride apart that shares no factor with 2^32.
  constexpr int64_t kSamples = effort(4000000);
  for (const Case& c : kCases) {
    RandomData random(seed, 2, static_cast<uint32_t>(c.function));
    std::vector<float> x = all_bf16();
    const uint32_t largest = std::bit_cast<uint32_t>(std::max(std::fabs(c.lowest), c.largest));
    const uint32_t step =
        static_cast<uint32_t>(2 * (static_cast<uint64_t>(largest) / kSamples) + 1);
    uint32_t pattern = random.bits();
    for (int64_t i = 0; i < kSamples; ++i, pattern += step) {
      x.push_back(
          std::bit_cast<float>((pattern & 0x80000000) | (pattern & 0x7FFFFFFF) % (largest + 1)));
    }
    // Where the work is: exponents around 1.
    for (int64_t i = 0; i < kSamples / 8; ++i) x.push_back(random.spread(6));
    const std::vector<float> results = run(c.function, x, best_vector_target());
    double worst = 0;
    float worst_x = 0;
    int64_t held = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (!(x[i] >= c.lowest && x[i] <= c.largest) || std::fabs(x[i]) < 0x1p-126f) continue;
      const long double exact = c.exact(x[i]);
      if (std::fabs(exact) < 0x1p-126L) continue;
      const double error = ulp_error(results[i], exact);
      ++held;
      if (error > worst) worst = error, worst_x = x[i];
    }
    std::cout << c.name << ": " << worst << " ulp at " << worst_x << " (" << held
              << " arguments)\n";
    CAPTURE(std::string(c.name));
    CHECK(held > kSamples / 4);
    CHECK(worst <= c.bound);
  }
}

TEST_CASE("special arguments") {
  const auto one = [](MathFunction function, float x, Target target) {
    float result;
    evaluate(function, {&x, 1}, {&result, 1}, target);
    return result;
  };
  for (const Target target : available_targets()) {
    CAPTURE(std::string(target_name(target)));
    for (const Case& c : kCases) {
      CAPTURE(std::string(c.name));
      CHECK(std::bit_cast<uint32_t>(one(c.function, -kNan, target)) == 0x7FC00000);
    }
    using enum MathFunction;
    CHECK(one(kExp, 0.0f, target) == 1);
    CHECK(one(kExp, -0.0f, target) == 1);
    CHECK(one(kExp, kInfinity, target) == kInfinity);
    CHECK(std::bit_cast<uint32_t>(one(kExp, -kInfinity, target)) == 0);
    // The last finite and the last normal result, and what follows them.
    CHECK(one(kExp, 0x1.62e42ep+6f, target) < kInfinity);
    CHECK(one(kExp, 0x1.62e43p+6f, target) == kInfinity);
    CHECK(one(kExp, -0x1.5d589ep+6f, target) >= 0x1p-126f);
    CHECK(one(kExp, -0x1.5d58ap+6f, target) == 0);
    CHECK(one(kLog, 1.0f, target) == 0);
    CHECK(one(kLog, 0.0f, target) == -kInfinity);
    CHECK(one(kLog, kInfinity, target) == kInfinity);
    CHECK(std::bit_cast<uint32_t>(one(kLog1p, 0.0f, target)) == 0);
    CHECK(one(kLog1p, kInfinity, target) == kInfinity);
    CHECK(one(kLog1p, 0x1p-100f, target) == 0x1p-100f);
    CHECK(one(kSigmoid, kInfinity, target) == 1);
    CHECK(one(kSigmoid, -kInfinity, target) == 0);
    CHECK(one(kSigmoid, 0.0f, target) == 0.5f);
    CHECK(one(kSoftplus, 20.5f, target) == 20.5f);
    CHECK(one(kSoftplus, -20.0f, target) > 0);
    CHECK(one(kSin, 0.0f, target) == 0);
    CHECK(one(kCos, 0.0f, target) == 1);
  }
}

TEST_CASE("lengths that are no multiple of sixteen write nothing past the end") {
  for (const Target target : available_targets()) {
    for (size_t length = 0; length <= 35; ++length) {
      std::vector<float> x(length, 0.5f), results(length + 1, -7.0f);
      evaluate(MathFunction::kExp, x, std::span(results).first(length), target);
      CHECK(results.back() == -7.0f);
      for (size_t i = 0; i < length; ++i) CHECK(results[i] == results[0]);
    }
  }
}

}  // namespace
}  // namespace deepinfer
