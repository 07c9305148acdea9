// The arithmetic of the scalar twin (CANONICAL.md C1.1, C1.2) against the processor's in flush
// mode, without that mode.
#include "sim/kernels/lanes_software.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include "sim/kernels/float_scope.h"
#include "sim/kernels/kernel_tables.h"
#include "sim/kernels/rows.h"
#include "sim/kernels/target.h"
#include "tests/kernels/rows/random_data.h"
#include "tests/random_seed.h"

namespace deepinfer {
namespace {

#if defined(__x86_64__)

// Separate functions that are not inlined: a change of mode must not be moved across the
// arithmetic.
struct Results {
  float sum, product, quotient, root, fused;
  bool less;
};
__attribute__((noinline, target("avx2,fma"))) void processor(const float* a, const float* b,
                                                             const float* c, Results* results) {
  const __m128 x = _mm_load_ss(a), y = _mm_load_ss(b), z = _mm_load_ss(c);
  *results = {_mm_cvtss_f32(_mm_add_ss(x, y)),      _mm_cvtss_f32(_mm_mul_ss(x, y)),
              _mm_cvtss_f32(_mm_div_ss(x, y)),      _mm_cvtss_f32(_mm_sqrt_ss(x)),
              _mm_cvtss_f32(_mm_fmadd_ss(x, y, z)), (_mm_movemask_ps(_mm_cmplt_ss(x, y)) & 1) != 0};
}
Results software(float a, float b, float c) {
  using namespace software_float;
  return {canonical_add(a, b), canonical_multiply(a, b), canonical_divide(a, b),
          canonical_sqrt(a),   canonical_fma(a, b, c),   flush(a) < flush(b)};
}

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}
bool same(const Results& a, const Results& b) {
  return same(a.sum, b.sum) && same(a.product, b.product) && same(a.quotient, b.quotient) &&
         same(a.root, b.root) && same(a.fused, b.fused) && a.less == b.less;
}

void compare(float a, float b, float c, int64_t& wrong) {
  Results expected;
  {
    const FloatScope scope;
    processor(&a, &b, &c, &expected);
  }
  const Results found = software(a, b, c);
  if (!same(found, expected) && wrong++ == 0) {
    MESSAGE(std::hexfloat << a << " " << b << " " << c << ": fma " << found.fused << ", expected "
                          << expected.fused);
  }
}

TEST_CASE("numbers around every limit, in all triples") {
  if (!is_available(Target::kAvx2)) return;
  std::vector<float> values;
  for (const float middle : {0x1p-149f, 0x1p-127f, 0x1p-126f, 0x1p-125f, 0x1p-103f, 0x1p-63f,
                             0x1p-1f, 1.0f, 1.5f, 0x1p24f, 0x1p63f, 0x1p127f}) {
    for (const float value :
         {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 3e38f)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  for (const float value :
       {0.0f, -0.0f, std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max(),
        std::numeric_limits<float>::quiet_NaN()}) {
    values.push_back(value);
  }
  int64_t wrong = 0;
  for (const float a : values) {
    for (const float b : values) {
      for (const float c : values) compare(a, b, c, wrong);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("random numbers whose products and sums lie around 2^-126") {
  if (!is_available(Target::kAvx2)) return;
  RandomData random(random_seed(0x3090), 90, 0);
  int64_t wrong = 0;
  const auto number = [&](int lowest, int highest) {
    const uint32_t exponent =
        static_cast<uint32_t>(127 + lowest + random.below(highest - lowest + 1));
    // Long runs of ones and zeros make ties and carries.
    const uint32_t mantissa =
        random.below(2) == 0 ? random.bits() : (random.bits() & 3) - 1 - (random.bits() & 1);
    return std::bit_cast<float>((random.bits() & 0x80000000) | exponent << 23 |
                                (mantissa & 0x7FFFFF));
  };
  for (int i = 0; i < 2000000; ++i) {
    const float a = number(-66, -60), b = number(-66, -60);
    compare(a, b, i % 2 == 0 ? number(-126, -120) : number(-152 + 26, -124), wrong);
  }
  CHECK(wrong == 0);
}

#endif  // defined(__x86_64__)

TEST_CASE("the scalar kernels need no floating-point mode") {
  RandomData random(random_seed(0x3091), 91, 0);
  std::vector<float> x, y;
  for (int i = 0; i < 4096; ++i) {
    x.push_back(random.uniform() * 0x1p-120f), y.push_back(random.uniform() * 0x1p-5f);
  }
  std::vector<float> with(x.size()), without(x.size());
  rope(view(x.data(), 64, 64), 1, y.data(), y.data() + 2048, 32, false, view(with.data(), 64, 64),
       Target::kScalar);
  scalar_row_kernels().rope(view(x.data(), 64, 64), 1, y.data(), y.data() + 2048, 32, false,
                            view(without.data(), 64, 64));
  int64_t zeros = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    CHECK(std::bit_cast<uint32_t>(with[i]) == std::bit_cast<uint32_t>(without[i]));
    zeros += without[i] == 0 ? 1 : 0;
  }
  CHECK(zeros > 100);
}

}  // namespace
}  // namespace deepinfer
