// Holds all GEMM targets against each other and against a literal transcription of CANONICAL.md C2,
// bit for bit.
#include "sim/kernels/gemm.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "platform/errors.h"
#include "platform/formats.h"
#include "tests/kernels/caller_mode.h"
#include "tests/kernels/effort.h"
#include "tests/kernels/random_operands.h"
#include "tests/random_seed.h"

namespace deepinfer {
namespace {

constexpr uint64_t kUsualSeed = 20260903;
constexpr uint16_t kCanary = 0xABCD;

uint64_t seed() {
  static const uint64_t value = random_seed(kUsualSeed);
  return value;
}

// ---- The literal transcription. It shares nothing with the kernels: platform/formats decodes,
// libm has the fma, and denormals are handled one by one, not by a mode of the processor.

// C2.4: code times scale, exact in fp64, then brought into bf16's range.
float scaled_value(NumericFormat format, uint32_t code, uint8_t scale) {
  const double value = static_cast<double>(decode(format, code));
  if (std::isnan(value) || scale == 255) return std::numeric_limits<float>::quiet_NaN();
  const double product = std::ldexp(value, scale - 127);
  if (std::fabs(product) < 0x1p-126) return std::copysign(0.0f, static_cast<float>(value));
  if (std::fabs(product) >= 0x1p128) {
    return std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(value));
  }
  return static_cast<float>(product);
}

float literal_element(const GemmOperand& x, int64_t row, int64_t k) {
  const auto scale = [&] {
    return x.scales == nullptr ? uint8_t{127}
                               : x.scales[row / x.scale_rows * x.scale_stride + k / 32];
  };
  const auto* bytes = static_cast<const uint8_t*>(x.data);
  switch (x.type) {
    case GemmType::kFp32:
      return static_cast<const float*>(x.data)[row * x.row_stride + k];
    case GemmType::kBf16:
      return decode(NumericFormat::kBF16,
                    static_cast<const uint16_t*>(x.data)[row * x.row_stride + k]);
    case GemmType::kFp8:
      return scaled_value(NumericFormat::kE4M3FN, bytes[row * x.row_stride + k], scale());
    case GemmType::kFp4: {
      const uint8_t pair = bytes[row * x.row_stride + k / 2];
      return scaled_value(NumericFormat::kE2M1, k % 2 == 0 ? pair & 15u : pair >> 4u, scale());
    }
  }
  return 0;
}

// C1.2, in the mode that a program starts in: denormals are not flushed by the processor.
float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

float literal_fma(float a, float b, float c) {
  a = flushed(a), b = flushed(b), c = flushed(c);
  const float result = std::fma(a, b, c);
  if (!(std::fabs(result) < 0x1p-100f) || result == 0) return result;
  // Rounded "as if the exponent had no lower limit": 2^64 higher, where all of this is normal.
  float& smaller = std::fabs(a) < std::fabs(b) ? a : b;
  smaller *= 0x1p64f;
  const float raised = std::fma(a, b, c * 0x1p64f);
  return std::fabs(raised) < 0x1p-62f ? std::copysign(0.0f, raised) : raised * 0x1p-64f;
}

float literal_add(float a, float b) { return flushed(flushed(a) + flushed(b)); }

// C2.1.
float literal_bf16(const std::vector<float>& a, const std::vector<float>& b) {
  float acc = 0;
  for (size_t block = 0; block < a.size(); block += 32) {
    float e = 0, o = 0;
    for (size_t k = 0; k < 16; ++k) {
      const auto at = [block](const std::vector<float>& x, size_t i) {
        return block + i < x.size() ? x[block + i] : 0.0f;
      };
      e = literal_fma(at(a, 2 * k), at(b, 2 * k), e);
      o = literal_fma(at(a, 2 * k + 1), at(b, 2 * k + 1), o);
    }
    acc = literal_add(acc, literal_add(e, o));
  }
  return acc;
}

// C2.2.
float literal_fp32(const std::vector<float>& a, const std::vector<float>& b) {
  float l[16] = {};
  for (size_t k = 0; k < a.size(); ++k) l[k % 16] = literal_fma(a[k], b[k], l[k % 16]);
  for (int j = 0; j < 8; ++j) l[j] = literal_add(l[j], l[j + 8]);
  for (int j = 0; j < 4; ++j) l[j] = literal_add(l[j], l[j + 4]);
  for (int j = 0; j < 2; ++j) l[j] = literal_add(l[j], l[j + 2]);
  return literal_add(l[0], l[1]);
}

// One output as its bits: fp32, or bf16 in the lower half.
uint32_t literal_bits(float value, GemmType type) {
  if (std::isnan(value)) return type == GemmType::kBf16 ? 0x7FC0u : 0x7FC00000u;  // C2.7
  return type == GemmType::kBf16 ? encode(NumericFormat::kBF16, value, Overflow::kInfinity)
                                 : std::bit_cast<uint32_t>(value);
}

std::vector<float> literal_row(const GemmOperand& x, int64_t row, int64_t k0, int64_t k1) {
  std::vector<float> values;
  for (int64_t k = k0; k < k1; ++k) values.push_back(literal_element(x, row, k));
  return values;
}

float literal_dot(const GemmOperand& a, int64_t row, const GemmOperand& w, int64_t column,
                  int64_t k0, int64_t k1) {
  const std::vector<float> x = literal_row(a, row, k0, k1), y = literal_row(w, column, k0, k1);
  return a.type == GemmType::kFp32 || w.type == GemmType::kFp32 ? literal_fp32(x, y)
                                                                : literal_bf16(x, y);
}

// ---- An output with room around it that must stay as it was.

class Output {
 public:
  Output(GemmType type, int64_t m, int64_t n, int64_t gap)
      : type_(type),
        m_(m),
        n_(n),
        stride_(n + gap),
        words_(static_cast<size_t>((m * stride_ + 8) * 2), kCanary) {}

  GemmOutput output() {
    return type_ == GemmType::kBf16 ? bf16_output(words_.data(), stride_)
                                    : fp32_output(reinterpret_cast<float*>(words_.data()), stride_);
  }
  uint32_t bits(int64_t row, int64_t column) const {
    const size_t at = static_cast<size_t>(row * stride_ + column);
    if (type_ == GemmType::kBf16) return words_[at];
    uint32_t value;
    std::memcpy(&value, words_.data() + 2 * at, sizeof(value));
    return value;
  }
  bool margin_untouched() const {
    const int64_t per_element = type_ == GemmType::kBf16 ? 1 : 2;
    for (size_t i = 0; i < words_.size(); ++i) {
      const int64_t at = static_cast<int64_t>(i) / per_element;
      if (at < m_ * stride_ && at % stride_ < n_) continue;
      if (words_[i] != kCanary) return false;
    }
    return true;
  }
  bool operator==(const Output& other) const { return words_ == other.words_; }

 private:
  GemmType type_;
  int64_t m_, n_, stride_;
  std::vector<uint16_t> words_;
};

struct Kind {
  std::string name;
  GemmType a, w;
  bool w_tiles;
};
const Kind kKinds[] = {
    {"bf16 x bf16", GemmType::kBf16, GemmType::kBf16, false},
    {"bf16 x fp8 tiles", GemmType::kBf16, GemmType::kFp8, true},
    {"bf16 x fp8 rows", GemmType::kBf16, GemmType::kFp8, false},
    {"bf16 x fp4", GemmType::kBf16, GemmType::kFp4, false},
    {"fp8 x fp8 tiles", GemmType::kFp8, GemmType::kFp8, true},
    {"fp8 x fp4", GemmType::kFp8, GemmType::kFp4, false},
    {"fp32 x fp32", GemmType::kFp32, GemmType::kFp32, false},
    {"fp32 x bf16", GemmType::kFp32, GemmType::kBf16, false},
    {"fp32 x fp8 tiles", GemmType::kFp32, GemmType::kFp8, true},
    {"fp32 x fp4", GemmType::kFp32, GemmType::kFp4, false},
    {"bf16 x fp32", GemmType::kBf16, GemmType::kFp32, false},
};

std::string hex(uint32_t bits) {
  char text[16];
  std::snprintf(text, sizeof(text), "0x%08X", bits);
  return text;
}

struct Case {
  int64_t m, n, k;
  Values values;
  GemmType out;
  int64_t gap;
};

// Mostly small; now and then past the blocking of every kernel.
Case random_case(RandomStream& random, uint32_t number) {
  const auto size = [&](int64_t usual, int64_t rare) {
    return random.word() % 16 == 0 ? random.below(rare + 1) : random.below(usual + 1);
  };
  Case c;
  c.m = size(48, 150);
  c.n = size(120, 300);
  c.k = number % 97 == 0 ? 1000 + random.below(1200) : size(150, 700);
  if (c.k >= 1000) c.m = c.m % 40, c.n = c.n % 50;
  c.values = static_cast<Values>(random.below(kValueKinds));
  c.out = random.word() % 4 == 0 ? GemmType::kBf16 : GemmType::kFp32;
  c.gap = random.below(4);
  return c;
}

// What random cases showed, so that a case cannot lose its point unnoticed.
struct Seen {
  int64_t outputs = 0, finite = 0, zeros = 0, negative_zeros = 0, infinities = 0, nans = 0,
          smallest = 0;

  void add(uint32_t bits, GemmType type) {
    if (type == GemmType::kBf16) bits <<= 16;
    ++outputs;
    finite += (bits & 0x7F800000) != 0x7F800000;
    zeros += bits == 0;
    negative_zeros += bits == 0x80000000;
    infinities += (bits & 0x7FFFFFFF) == 0x7F800000;
    nans += (bits & 0x7FFFFFFF) > 0x7F800000;
    smallest += (bits & 0x7F800000) == 0x00800000;  // in [2^-126, 2^-125)
  }
};

void check_kind(const Kind& kind, uint32_t op, int64_t finite_wanted) {
  Seen seen;
  int64_t literal_outputs = 0;
  for (uint32_t number = 0; seen.finite < finite_wanted; ++number) {
    RandomStream random(seed(), op, number);
    const Case c = random_case(random, number);
    const RandomOperand a = random_operand(random, kind.a, false, c.m, c.k, c.values);
    const RandomOperand w = random_operand(random, kind.w, kind.w_tiles, c.n, c.k, c.values);
    INFO(kind.name << " case " << number << ": M " << c.m << " N " << c.n << " K " << c.k
                   << " values " << static_cast<int>(c.values) << " seed " << seed());
    Output expected(c.out, c.m, c.n, c.gap);
    gemm(c.m, c.n, c.k, a.operand, w.operand, expected.output(), {Target::kScalar, 1});
    REQUIRE(expected.margin_untouched());
    for (int64_t row = 0; row < c.m; ++row) {
      for (int64_t column = 0; column < c.n; ++column) seen.add(expected.bits(row, column), c.out);
    }
    // The literal form is slow: some outputs of each case.
    for (int i = 0; i < 24 && c.m * c.n > 0; ++i) {
      const int64_t row = random.below(c.m), column = random.below(c.n);
      const float value = literal_dot(a.operand, row, w.operand, column, 0, c.k);
      INFO("row " << row << " column " << column << " value " << value);
      REQUIRE(hex(expected.bits(row, column)) == hex(literal_bits(value, c.out)));
      ++literal_outputs;
    }
    for (const Target target : available_targets()) {
      if (target == Target::kScalar) continue;
      Output found(c.out, c.m, c.n, c.gap);
      gemm(c.m, c.n, c.k, a.operand, w.operand, found.output(),
           {target, 1 + static_cast<int>(number % 3)});
      if (found == expected) continue;
      INFO("target " << target_name(target));
      REQUIRE(found.margin_untouched());
      for (int64_t row = 0; row < c.m; ++row) {
        for (int64_t column = 0; column < c.n; ++column) {
          INFO("row " << row << " column " << column);
          REQUIRE(hex(found.bits(row, column)) == hex(expected.bits(row, column)));
        }
      }
    }
  }
  std::cout << kind.name << ": " << seen.outputs << " outputs (" << seen.finite << " finite) on";
  for (const Target target : available_targets()) std::cout << " " << target_name(target);
  std::cout << ", " << literal_outputs << " against the definition; " << seen.zeros << " zeros, "
            << seen.negative_zeros << " -0, " << seen.smallest << " of the smallest exponent, "
            << seen.infinities << " infinities, " << seen.nans << " NaN\n";
  CHECK(seen.zeros > 0);
  CHECK(seen.smallest > 0);
  CHECK(seen.infinities > 0);
  CHECK(seen.nans > 0);
}

}  // namespace

TEST_CASE("all targets give the bits of the scalar twin, and that gives those of the definition") {
  uint32_t op = 0;
  for (const Kind& kind : kKinds) {
    SUBCASE(kind.name.c_str()) { check_kind(kind, op, effort(1'000'000)); }
    ++op;
  }
}

TEST_CASE("every code with every scale decodes to the value of the definition") {
  // A row of ones times a weight whose row n has code n once and zeros else: the decoded value, or
  // what a NaN scale makes of it.
  constexpr int64_t kWidth = 96;
  const std::vector<uint16_t> ones(kWidth, 0x3F80);
  for (const GemmType type : {GemmType::kFp8, GemmType::kFp4}) {
    const int64_t n = type == GemmType::kFp8 ? 256 : 16;
    for (int scale = 0; scale < 256; ++scale) {
      for (const bool tiles : {false, true}) {
        if (tiles && type == GemmType::kFp4) continue;
        const int64_t row_bytes = type == GemmType::kFp8 ? kWidth : kWidth / 2;
        std::vector<uint8_t> codes(static_cast<size_t>(n * row_bytes), 0);
        const std::vector<uint8_t> scales(static_cast<size_t>(n * 3), static_cast<uint8_t>(scale));
        for (int64_t row = 0; row < n; ++row) {
          const int64_t k = (row * 37 + scale) % kWidth;
          uint8_t& at =
              codes[static_cast<size_t>(row * row_bytes + (type == GemmType::kFp8 ? k : k / 2))];
          at = static_cast<uint8_t>(type == GemmType::kFp4 && k % 2 == 1 ? row << 4 : row);
        }
        const GemmOperand w = type == GemmType::kFp4
                                  ? fp4_operand(codes.data(), row_bytes, scales.data(), 3)
                              : tiles ? fp8_tiles_operand(codes.data(), row_bytes, scales.data(), 3)
                                      : fp8_rows_operand(codes.data(), row_bytes, scales.data(), 3);
        for (const Target target : available_targets()) {
          for (const bool fp32_activations : {false, true}) {
            const std::vector<float> float_ones(kWidth, 1.0f);
            const GemmOperand a = fp32_activations ? fp32_operand(float_ones.data(), kWidth)
                                                   : bf16_operand(ones.data(), kWidth);
            std::vector<float> c(static_cast<size_t>(n), -1.0f);
            gemm(1, n, kWidth, a, w, fp32_output(c.data(), n), {target, 1});
            for (int64_t row = 0; row < n; ++row) {
              const float value = literal_dot(a, 0, w, row, 0, kWidth);
              if (std::bit_cast<uint32_t>(c[static_cast<size_t>(row)]) ==
                  literal_bits(value, GemmType::kFp32)) {
                continue;
              }
              INFO(target_name(target)
                   << " code " << row << " scale " << scale << " tiles " << tiles);
              REQUIRE(hex(std::bit_cast<uint32_t>(c[static_cast<size_t>(row)])) ==
                      hex(literal_bits(value, GemmType::kFp32)));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a result is subnormal if it is below 2^-126 after rounding") {
  // One even chain: first + x * y, where first is +-2^-126 (1 + i 2^-23) and x * y is small enough
  // to fall below the last place, on either side. Cases where rounding reaches 2^-126 from below
  // tell "after rounding" from "before".
  int64_t reached = 0, flushed = 0;
  RandomStream random(seed(), 104, 0);
  for (int round = 0; round < 40'000; ++round) {
    uint16_t a[32] = {}, w[32] = {};
    const int64_t last = 2 * (1 + random.below(15));
    a[0] = static_cast<uint16_t>((127 - 63) << 7 | (round % 2) << 15);  // 2^-63
    w[0] = static_cast<uint16_t>((127 - 63) << 7);
    a[last] = static_cast<uint16_t>((127 - 80 + random.below(12)) << 7 | random.below(128) |
                                    (random.word() & 0x8000));
    w[last] = static_cast<uint16_t>((127 - 76 + random.below(12)) << 7 | random.below(128));
    float expected;
    {
      const GemmOperand x = bf16_operand(a, 32), y = bf16_operand(w, 32);
      expected = literal_dot(x, 0, y, 0, 0, 32);
    }
    const double exact = static_cast<double>(decode(NumericFormat::kBF16, a[0])) * 0x1p-63 +
                         static_cast<double>(decode(NumericFormat::kBF16, a[last])) *
                             static_cast<double>(decode(NumericFormat::kBF16, w[last]));
    reached += std::fabs(exact) < 0x1p-126 && std::fabs(expected) == 0x1p-126f;
    flushed += std::fabs(exact) < 0x1p-126 && expected == 0;
    for (const Target target : available_targets()) {
      for (const bool fp32 : {false, true}) {
        float c = -1;
        std::vector<float> wide(32);
        for (size_t i = 0; i < 32; ++i) wide[i] = decode(NumericFormat::kBF16, a[i]);
        // In C2.2 elements 0 and 16 share a lane.
        if (fp32) std::swap(wide[16], wide[static_cast<size_t>(last)]);
        uint16_t y[32];
        std::copy_n(w, 32, y);
        if (fp32) std::swap(y[16], y[last]);
        gemm(1, 1, 32, fp32 ? fp32_operand(wide.data(), 32) : bf16_operand(a, 32),
             bf16_operand(y, 32), fp32_output(&c, 1), {target, 1});
        if (std::bit_cast<uint32_t>(c) == std::bit_cast<uint32_t>(expected)) continue;
        INFO(target_name(target) << " round " << round << " exact " << exact << " fp32 " << fp32);
        REQUIRE(hex(std::bit_cast<uint32_t>(c)) == hex(std::bit_cast<uint32_t>(expected)));
      }
    }
  }
  std::cout << "below 2^-126 before rounding: " << reached << " rounded up to it, " << flushed
            << " flushed\n";
  CHECK(reached > 50);
  CHECK(flushed > 50);
}

TEST_CASE("a row's result does not depend on the rows, columns and threads beside it") {
  RandomStream random(seed(), 100, 0);
  for (const Kind& kind : kKinds) {
    const int64_t m = 70, n = 130, k = 417;
    const RandomOperand a = random_operand(random, kind.a, false, m, k, Values::kOrdinary);
    const RandomOperand w = random_operand(random, kind.w, kind.w_tiles, n, k, Values::kOrdinary);
    for (const Target target : available_targets()) {
      INFO(kind.name << " on " << target_name(target));
      Output whole(GemmType::kFp32, m, n, 0);
      gemm(m, n, k, a.operand, w.operand, whole.output(), {target, 1});
      Output threaded(GemmType::kFp32, m, n, 0);
      gemm(m, n, k, a.operand, w.operand, threaded.output(), {target, 4});
      REQUIRE(threaded == whole);
      for (const int64_t row : {int64_t{0}, int64_t{1}, int64_t{33}, m - 1}) {
        const int64_t first = 96;
        Output one(GemmType::kFp32, 1, n - first, 0);
        gemm(1, n - first, k, a.operand.from_row(row), w.operand.from_row(first), one.output(),
             {target, 1});
        for (int64_t column = first; column < n; ++column) {
          REQUIRE(hex(one.bits(0, column - first)) == hex(whole.bits(row, column)));
        }
      }
    }
  }
}

// AMX decodes W in the shadow of the products, in steps that shrink with the rows of A: here odd
// numbers of steps stop inside a strip of W.
TEST_CASE("products of many rows are those of single rows") {
  RandomStream random(seed(), 105, 0);
  for (const Kind& kind : kKinds) {
    for (const int64_t m : {160, 224, 416, 608, 1056}) {
      const int64_t n = 70, k = 9 * 32;
      const RandomOperand a = random_operand(random, kind.a, false, m, k, Values::kOrdinary);
      const RandomOperand w = random_operand(random, kind.w, kind.w_tiles, n, k, Values::kOrdinary);
      for (const Target target : available_targets()) {
        INFO(kind.name << " on " << target_name(target) << ", " << m << " rows");
        Output many(GemmType::kFp32, m, n, 0);
        gemm(m, n, k, a.operand, w.operand, many.output(), {target, 1});
        for (const int64_t row : {int64_t{0}, m / 2, m - 1}) {
          Output one(GemmType::kFp32, 1, n, 0);
          gemm(1, n, k, a.operand.from_row(row), w.operand, one.output(), {Target::kScalar, 1});
          for (int64_t column = 0; column < n; ++column) {
            REQUIRE(hex(one.bits(0, column)) == hex(many.bits(row, column)));
          }
        }
      }
    }
  }
}

TEST_CASE("grouped products are the products of the groups") {
  RandomStream random(seed(), 101, 0);
  for (const Kind& kind : kKinds) {
    const int64_t n = 77, k = 150;
    const std::vector<int64_t> offsets = {2, 2, 3, 20, 20, 61, 64};  // empty groups, one row, many
    const int64_t m = 66;  // rows 0, 1, 64, 65 belong to no group
    const RandomOperand a = random_operand(random, kind.a, false, m, k, Values::kOrdinary);
    std::vector<RandomOperand> experts;
    std::vector<GemmOperand> weights;
    for (size_t g = 0; g + 1 < offsets.size(); ++g) {
      experts.push_back(random_operand(random, kind.w, kind.w_tiles, n, k, Values::kOrdinary));
      weights.push_back(experts.back().operand);
    }
    for (const Target target : available_targets()) {
      for (const int threads : {1, 3}) {
        INFO(kind.name << " on " << target_name(target) << ", " << threads << " threads");
        Output found(GemmType::kFp32, m, n, 3), expected(GemmType::kFp32, m, n, 3);
        gemm_grouped(offsets, n, k, a.operand, weights, found.output(), {target, threads});
        const GemmOutput out = expected.output();
        for (size_t g = 0; g + 1 < offsets.size(); ++g) {
          const GemmOutput part = fp32_output(
              static_cast<float*>(out.data) + offsets[g] * out.row_stride, out.row_stride);
          gemm(offsets[g + 1] - offsets[g], n, k, a.operand.from_row(offsets[g]), weights[g], part,
               {Target::kScalar, 1});
        }
        REQUIRE(found == expected);
      }
    }
  }
}

TEST_CASE("a row-parallel product is the tree of its leaves' products") {
  RandomStream random(seed(), 102, 0);
  // Leaves at 0, 1, 2, ...; equal offsets make a leaf absent.
  const std::vector<std::vector<int64_t>> plans = {
      {0, 50},
      {0, 32, 64, 96, 128},
      {0, 0, 32, 32, 96, 160, 160, 161},
      {0, 0, 0, 0},
      {0},
      {0, 64, 96, 96, 96, 128, 192, 224, 256, 288, 320, 333}};
  for (const Kind& kind : kKinds) {
    for (const std::vector<int64_t>& offsets : plans) {
      const int64_t m = 5, n = 70, k = offsets.back();
      const RandomOperand a = random_operand(random, kind.a, false, m, k, Values::kOrdinary);
      const RandomOperand w = random_operand(random, kind.w, kind.w_tiles, n, k, Values::kOrdinary);
      const int64_t leaves = static_cast<int64_t>(offsets.size()) - 1;
      // C2.5, level by level over 64 places.
      const auto literal = [&](int64_t row, int64_t column) {
        std::vector<std::pair<bool, float>> level(64);
        for (int64_t leaf = 0; leaf < leaves; ++leaf) {
          const int64_t k0 = offsets[static_cast<size_t>(leaf)],
                        k1 = offsets[static_cast<size_t>(leaf) + 1];
          if (k0 == k1) continue;
          level[static_cast<size_t>(leaf)] = {
              true, literal_dot(a.operand, row, w.operand, column, k0, k1)};
        }
        while (level.size() > 1) {
          std::vector<std::pair<bool, float>> next(level.size() / 2);
          for (size_t i = 0; i < next.size(); ++i) {
            const auto &left = level[2 * i], &right = level[2 * i + 1];
            next[i] = left.first && right.first
                          ? std::pair(true, literal_add(left.second, right.second))
                      : left.first ? left
                                   : right;
          }
          level = next;
        }
        return level[0].first ? level[0].second : 0.0f;
      };
      for (const Target target : available_targets()) {
        INFO(kind.name << " on " << target_name(target) << ", " << leaves << " leaves, K " << k);
        for (const GemmType type : {GemmType::kFp32, GemmType::kBf16}) {
          Output found(type, m, n, 1);
          gemm_row_parallel(m, n, offsets, a.operand, w.operand, found.output(), {target, 2});
          REQUIRE(found.margin_untouched());
          std::vector<float> partials(static_cast<size_t>(leaves * m * n), -1.0f);
          gemm_leaf_partials(m, n, offsets, a.operand, w.operand, partials.data(), {target, 1});
          std::vector<const float*> present;
          for (int64_t leaf = 0; leaf < leaves; ++leaf) {
            const bool absent =
                offsets[static_cast<size_t>(leaf)] == offsets[static_cast<size_t>(leaf) + 1];
            const float* partial = partials.data() + leaf * m * n;
            if (absent) {
              for (int64_t i = 0; i < m * n; ++i) REQUIRE(std::bit_cast<uint32_t>(partial[i]) == 0);
            }
            present.push_back(absent ? nullptr : partial);
          }
          Output combined(type, 1, m * n, 0);
          combine_leaves(present, m * n, combined.output());
          for (int64_t row = 0; row < m; ++row) {
            for (int64_t column = 0; column < n; ++column) {
              const std::string expected = hex(literal_bits(literal(row, column), type));
              REQUIRE(hex(found.bits(row, column)) == expected);
              REQUIRE(hex(combined.bits(0, row * n + column)) == expected);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("the caller's floating-point mode neither matters nor changes") {
  RandomStream random(seed(), 103, 0);
  const int64_t m = 9, n = 40, k = 100;
  const RandomOperand a = random_operand(random, GemmType::kBf16, false, m, k, Values::kTiny);
  const RandomOperand w = random_operand(random, GemmType::kBf16, false, n, k, Values::kTiny);
  for (const Target target : available_targets()) {
    INFO(target_name(target));
    Output expected(GemmType::kFp32, m, n, 0);
    gemm(m, n, k, a.operand, w.operand, expected.output(), {target, 1});
#ifdef DEEPINFER_SIM_HAVE_CALLER_MODE
    const uint64_t usual = caller_mode();
    for (const uint64_t strange : strange_modes()) {
      Output found(GemmType::kFp32, m, n, 0);
      set_caller_mode(strange);
      gemm(m, n, k, a.operand, w.operand, found.output(), {target, 2});
      const uint64_t after = caller_mode();
      set_caller_mode(usual);
      REQUIRE(after == strange);
      REQUIRE(found == expected);
    }
#endif
  }
}

TEST_CASE("targets have names, and unknown or unavailable ones are typed errors") {
  for (const Target target :
       {Target::kAmx, Target::kAvx512, Target::kAvx2, Target::kNeon, Target::kScalar}) {
    CHECK(parse_target(target_name(target)) == target);
    if (is_available(target)) continue;
    float c = 0;
    const float x = 1;
    CHECK_THROWS_AS(
        gemm(1, 1, 1, fp32_operand(&x, 1), fp32_operand(&x, 1), fp32_output(&c, 1), {target, 1}),
        UnsupportedError);
  }
  CHECK_THROWS_AS(parse_target("avx-512"), ConfigError);
  CHECK(available_targets().back() == Target::kScalar);
}

}  // namespace deepinfer
