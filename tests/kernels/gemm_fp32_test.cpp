// fp32 products with so many rows on both sides that vector targets compute lane by lane
// (gemm_fp32_outer-inl.h): the bits of the scalar twin, and of the same product cut into few rows.
#include <algorithm>
#include <cstring>
#include <vector>

#include <doctest/doctest.h>

#include "sim/kernels/gemm.h"
#include "sim/kernels/target.h"
#include "tests/kernels/random_operands.h"

namespace deepinfer {
namespace {

constexpr uint64_t kSeed = 20250801;

struct Types {
  GemmType a, w;
  bool tiles;
};
constexpr Types kTypes[] = {{GemmType::kFp32, GemmType::kFp32, false},
                            {GemmType::kFp32, GemmType::kBf16, false},
                            {GemmType::kBf16, GemmType::kFp32, false},
                            {GemmType::kFp32, GemmType::kFp8, true},
                            {GemmType::kFp32, GemmType::kFp4, false}};

struct Shape {
  int64_t m, n, k;
};

// C with a gap after each row, which must stay as it is.
constexpr int64_t kGap = 3;
constexpr float kUntouched = 12345;

std::vector<float> product(const Shape& s, const GemmOperand& a, const GemmOperand& w,
                           Target target, int64_t rows_at_a_time) {
  std::vector<float> c(static_cast<size_t>(s.m * (s.n + kGap)), kUntouched);
  for (int64_t row = 0; row < s.m; row += rows_at_a_time) {
    gemm(std::min(rows_at_a_time, s.m - row), s.n, s.k, a.from_row(row), w,
         fp32_output(c.data() + row * (s.n + kGap), s.n + kGap), {target, 1});
  }
  return c;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_CASE("many rows: every target gives the bits of the scalar twin") {
  // Full and broken tiles and panels, a K that is no multiple of 16, 32 or 64, the operands either
  // way round ([144, ..] fills vectors of 16, 129 does not), and short K.
  const Shape shapes[] = {{128, 128, 257}, {129, 144, 300}, {144, 129, 300}, {131, 190, 1001},
                          {64, 64, 64},    {65, 97, 79},    {100, 70, 256}};
  uint32_t number = 0;
  int64_t not_zero = 0;
  for (const Shape& s : shapes) {
    for (const Types& types : kTypes) {
      RandomStream random(kSeed, 1, number);
      const auto values = static_cast<Values>(number++ % kValueKinds);
      const RandomOperand a = random_operand(random, types.a, false, s.m, s.k, values);
      const RandomOperand w = random_operand(random, types.w, types.tiles, s.n, s.k, values);
      const std::vector<float> expected = product(s, a.operand, w.operand, Target::kScalar, s.m);
      not_zero += std::count_if(expected.begin(), expected.end(),
                                [](float x) { return x != 0 && x != kUntouched; });
      for (const Target target : available_targets()) {
        CAPTURE(kSeed);
        CAPTURE(number);
        CAPTURE(s.m);
        CAPTURE(s.n);
        CAPTURE(s.k);
        CAPTURE(target_name(target));
        CHECK(same_bits(product(s, a.operand, w.operand, target, s.m), expected));
      }
    }
  }
  CHECK(not_zero > 100'000);
}

TEST_CASE("many rows in several chunks: the bits of few rows at a time") {
  // More rows than one pass takes; in the second, more weights than are kept from pass to pass.
  for (const Shape& s : {Shape{300, 150, 1000}, Shape{330, 2200, 1000}}) {
    RandomStream random(kSeed, 2, static_cast<uint32_t>(s.n));
    const RandomOperand a =
        random_operand(random, GemmType::kFp32, false, s.m, s.k, Values::kOrdinary);
    const RandomOperand w =
        random_operand(random, GemmType::kFp32, false, s.n, s.k, Values::kOrdinary);
    for (const Target target : available_targets()) {
      if (target == Target::kScalar) continue;  // one loop for every size
      CAPTURE(s.n);
      CAPTURE(target_name(target));
      CHECK(same_bits(product(s, a.operand, w.operand, target, s.m),
                      product(s, a.operand, w.operand, target, 16)));
    }
  }
}

}  // namespace
}  // namespace deepinfer
