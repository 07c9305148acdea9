// Exhaustive tests of the number formats, against values built another way and published tables.
#include "platform/formats.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "platform/errors.h"
#include "tests/platform/format_tables.h"
#include "tests/random_seed.h"

namespace deepinfer {
namespace {

using enum NumericFormat;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kQuietNaN = std::numeric_limits<float>::quiet_NaN();

uint32_t code_count(NumericFormat format) { return 1u << format_info(format).bits; }

// What a code means, from trn2.md 2.1: fields by arithmetic, special codes by range.
struct Expected {
  NumericFormat format;
  int exponent_bits, mantissa_bits, bias;
  bool sign;
  uint32_t infinity_code;        // 0: none. Sign bit clear.
  uint32_t first_nan, last_nan;  // with the sign bit clear; first > last: none
  uint32_t canonical_nan;
  int finite_codes;
  double max_finite, min_normal, min_subnormal;
};

const Expected kExpected[] = {
    {kE4M3FN, 4, 3, 7, true, 0, 0x7F, 0x7F, 0x7F, 254, 448, 0x1p-6, 0x1p-9},
    {kE4M3, 4, 3, 7, true, 0x78, 0x79, 0x7F, 0x7C, 240, 240, 0x1p-6, 0x1p-9},
    {kE5M2, 5, 2, 15, true, 0x7C, 0x7D, 0x7F, 0x7E, 248, 57344, 0x1p-14, 0x1p-16},
    {kE3M4, 3, 4, 3, true, 0x70, 0x71, 0x7F, 0x78, 224, 15.5, 0x1p-2, 0x1p-6},
    {kE2M1, 2, 1, 1, true, 0, 1, 0, 0, 16, 6, 1, 0.5},
    {kE8M0, 8, 0, 127, false, 0, 0xFF, 0xFF, 0xFF, 255, 0x1p127, 0x1p-127, 0},
    {kBF16, 8, 7, 127, true, 0x7F80, 0x7F81, 0x7FFF, 0x7FC0, 65280, 0x1.FEp127, 0x1p-126, 0x1p-133},
};

double expected_value(const Expected& e, uint32_t code) {
  const int value_bits = e.exponent_bits + e.mantissa_bits;
  const bool negative = e.sign && (code >> value_bits & 1) != 0;
  const uint32_t magnitude = code & ((1u << value_bits) - 1);
  const double sign = negative ? -1 : 1;
  if (e.infinity_code != 0 && magnitude == e.infinity_code) return sign * kInf;
  if (magnitude >= e.first_nan && magnitude <= e.last_nan) return kNan;
  const int field = static_cast<int>(magnitude >> e.mantissa_bits);
  const double fraction =
      std::ldexp(static_cast<double>(magnitude & ((1u << e.mantissa_bits) - 1)), -e.mantissa_bits);
  if (field == 0 && e.min_subnormal != 0) return sign * std::ldexp(fraction, 1 - e.bias);
  return sign * std::ldexp(1 + fraction, field - e.bias);
}

// Equal as numbers, with the sign of zero and NaN-ness compared too.
bool same(float value, double expected) {
  if (std::isnan(expected)) return std::isnan(value);
  return static_cast<double>(value) == expected && std::signbit(value) == std::signbit(expected);
}

// Non-negative finite codes in ascending order of value: 0 .. max.
uint32_t max_code(NumericFormat format) {
  uint32_t code = 0;
  while (code + 1 < code_count(format) && std::isfinite(decode(format, code + 1)) &&
         decode(format, code + 1) > decode(format, code)) {
    ++code;
  }
  return code;
}

float up(float x) { return std::nextafterf(x, kInfinity); }
float down(float x) { return std::nextafterf(x, -kInfinity); }

TEST_CASE("format_info states the limits of trn2.md 2.1") {
  CHECK(all_formats().size() == std::size(kExpected));
  for (const Expected& e : kExpected) {
    const FormatInfo& info = format_info(e.format);
    CAPTURE(info.name);
    CHECK(info.format == e.format);
    CHECK(info.exponent_bits == e.exponent_bits);
    CHECK(info.mantissa_bits == e.mantissa_bits);
    CHECK(info.bits == e.exponent_bits + e.mantissa_bits + (e.sign ? 1 : 0));
    CHECK(info.bias == e.bias);
    CHECK(info.has_sign == e.sign);
    CHECK(info.has_infinity == (e.infinity_code != 0));
    CHECK(info.has_nan == (e.first_nan <= e.last_nan));
    CHECK(info.max_finite == e.max_finite);
    CHECK(info.min_normal == e.min_normal);
    CHECK(info.min_subnormal == e.min_subnormal);
    CHECK(parse_format(info.name) == e.format);
  }
}

TEST_CASE("every code of every format decodes to its value") {
  for (const Expected& e : kExpected) {
    CAPTURE(format_info(e.format).name);
    int finite = 0;
    for (uint32_t code = 0; code < code_count(e.format); ++code) {
      const float value = decode(e.format, code);
      finite += std::isfinite(value) ? 1 : 0;
      const double expected = expected_value(e, code);
      if (!same(value, expected))
        FAIL_CHECK("code " << code << ": " << value << ", not " << expected);
    }
    CHECK(finite == e.finite_codes);
    CHECK(decode(e.format, max_code(e.format)) == e.max_finite);
    if (e.min_subnormal != 0) CHECK(decode(e.format, 1) == e.min_subnormal);
  }
}

TEST_CASE("decode agrees with the published tables") {
  const auto compare = [](NumericFormat format, const auto& table, uint32_t first) {
    CAPTURE(format_info(format).name);
    const uint32_t sign = code_count(format) / 2;
    for (uint32_t i = 0; i < table.size(); ++i) {
      CAPTURE(first + i);
      CHECK(same(decode(format, first + i), table[i]));
      CHECK(same(decode(format, sign + first + i), -table[i]));
    }
  };
  compare(kE4M3, kE4M3Table, 0);
  compare(kE5M2, kE5M2Table, 0);
  compare(kE3M4, kE3M4Table, 0);
  compare(kE2M1, kE2M1Table, 0);
  compare(kE4M3FN, kE4M3FNLastRow, 0x78);
  for (uint32_t code = 0; code < 0x78; ++code) {
    CHECK(same(decode(kE4M3FN, code), kE4M3Table[code]));
    CHECK(same(decode(kE4M3FN, code + 0x80), -kE4M3Table[code]));
  }
  // e2m1's magnitudes sit in e4m3 as these bytes (trn2.md 2.2).
  const uint32_t in_e4m3[] = {0x00, 0x30, 0x38, 0x3C, 0x40, 0x44, 0x48, 0x4C};
  for (uint32_t code = 0; code < 8; ++code)
    CHECK(decode(kE2M1, code) == decode(kE4M3, in_e4m3[code]));
  // Not c << 23, which gives 0 and infinity here.
  CHECK(decode(kE8M0, 0) == 0x1p-127f);
  CHECK(std::isnan(decode(kE8M0, 255)));
}

TEST_CASE("a code wider than its format is a bug in the caller") {
  CHECK_THROWS_AS(decode(kE2M1, 16), std::logic_error);
  CHECK_THROWS_AS(decode(kE4M3, 256), std::logic_error);
  CHECK_THROWS_AS(decode(kBF16, 65536), std::logic_error);
}

TEST_CASE("encode inverts decode on every code") {
  for (const Expected& e : kExpected) {
    CAPTURE(format_info(e.format).name);
    for (uint32_t code = 0; code < code_count(e.format); ++code) {
      const float value = decode(e.format, code);
      uint32_t saturated = code;
      uint32_t overflowed = code;
      if (std::isnan(value)) {
        saturated = overflowed = e.canonical_nan;
      } else if (std::isinf(value)) {
        saturated = code - 1;  // the largest finite code of that sign
      }
      if (encode(e.format, value, Overflow::kSaturate) != saturated ||
          encode(e.format, value, Overflow::kInfinity) != overflowed) {
        FAIL_CHECK("code " << code << ", value " << value);
      }
    }
  }
}

TEST_CASE("every rounding boundary and its neighbours, both signs, both overflow modes") {
  for (const Expected& e : kExpected) {
    const NumericFormat format = e.format;
    CAPTURE(format_info(format).name);
    const uint32_t sign = e.sign ? code_count(format) / 2 : 0;
    int64_t ties_down = 0;
    int64_t ties_up = 0;
    const uint32_t last = max_code(format);
    for (uint32_t code = 0; code < last; ++code) {
      const double low = decode(format, code);
      const double high = decode(format, code + 1);
      const float middle = static_cast<float>((low + high) / 2);
      REQUIRE(static_cast<double>(middle) == (low + high) / 2);
      // Ties go to the even code. e8m0 has no mantissa bit to be even: 1.5 * 2^n goes up.
      const uint32_t tie = format == kE8M0 || code % 2 == 1 ? code + 1 : code;
      (tie == code ? ties_down : ties_up) += 1;
      for (const Overflow overflow : {Overflow::kSaturate, Overflow::kInfinity}) {
        const bool right = encode(format, down(middle), overflow) == code &&
                           encode(format, middle, overflow) == tie &&
                           encode(format, up(middle), overflow) == code + 1;
        const bool right_negative =
            !e.sign || (encode(format, -down(middle), overflow) == (sign | code) &&
                        encode(format, -middle, overflow) == (sign | tie) &&
                        encode(format, -up(middle), overflow) == (sign | (code + 1)));
        if (!right || !right_negative) FAIL_CHECK("between codes " << code << " and " << code + 1);
      }
      // The neighbours of the code itself.
      if (encode(format, up(static_cast<float>(low)), Overflow::kSaturate) != code ||
          encode(format, down(static_cast<float>(high)), Overflow::kSaturate) != code + 1) {
        FAIL_CHECK("beside codes " << code << " and " << code + 1);
      }
    }
    CHECK(ties_up + ties_down == last);
    if (format != kE8M0) CHECK(std::abs(ties_up - ties_down) <= 1);
  }
}

// Nearest code by search over the decoded values; ties to the even code.
uint32_t nearest_by_search(const std::vector<double>& values, double magnitude) {
  const size_t above = static_cast<size_t>(
      std::lower_bound(values.begin(), values.end(), magnitude) - values.begin());
  if (above == values.size()) return static_cast<uint32_t>(values.size() - 1);
  if (above == 0) return 0;
  const double to_low = magnitude - values[above - 1];
  const double to_high = values[above] - magnitude;
  if (to_low != to_high) return static_cast<uint32_t>(to_low < to_high ? above - 1 : above);
  return static_cast<uint32_t>((above - 1) % 2 == 0 ? above - 1 : above);
}

TEST_CASE("a sweep over fp32 agrees with a search over the table") {
  // Every sign, exponent and upper 11 mantissa bits, with low bits just on, above and below the
  // grid.
  for (const NumericFormat format : {kE4M3FN, kE4M3, kE5M2, kE3M4, kE2M1}) {
    CAPTURE(format_info(format).name);
    std::vector<double> values;
    for (uint32_t code = 0; code <= max_code(format); ++code)
      values.push_back(decode(format, code));
    const uint32_t sign = code_count(format) / 2;
    int64_t wrong = 0;
    for (uint32_t upper = 0; upper < 1u << 16; ++upper) {
      for (const uint32_t low : {0x0000u, 0x0001u, 0xFFFFu}) {
        const float x = std::bit_cast<float>(upper << 16 | low);
        if (std::isnan(x)) continue;
        const uint32_t expected =
            (std::signbit(x) ? sign : 0) | nearest_by_search(values, std::fabs(double{x}));
        wrong += encode(format, x, Overflow::kSaturate) == expected ? 0 : 1;
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("overflow thresholds of trn2.md 2.3") {
  struct Threshold {
    NumericFormat format;
    float threshold;  // the smallest value that overflows
    uint32_t largest, overflowed;
  };
  // e4m3fn: 464 is the tie between 448, which is even, and 480, which does not exist.
  const Threshold thresholds[] = {
      {kE4M3, 248, 0x77, 0x78},
      {kE5M2, 61440, 0x7B, 0x7C},
      {kE3M4, 15.75, 0x6F, 0x70},
      {kE4M3FN, up(464), 0x7E, 0x7F},
      {kBF16, 0x1.FFp127f, 0x7F7F, 0x7F80},
  };
  for (const Threshold& t : thresholds) {
    CAPTURE(format_info(t.format).name);
    const uint32_t sign = code_count(t.format) / 2;
    // Overflow without infinity is the one canonical NaN, whose sign is clear.
    const uint32_t overflow_sign = format_info(t.format).has_infinity ? sign : 0;
    CHECK(encode(t.format, down(t.threshold), Overflow::kInfinity) == t.largest);
    CHECK(encode(t.format, -down(t.threshold), Overflow::kInfinity) == (sign | t.largest));
    for (const float x :
         {t.threshold, up(t.threshold), std::numeric_limits<float>::max(), kInfinity}) {
      if (x < t.threshold) continue;
      CHECK(encode(t.format, x, Overflow::kInfinity) == t.overflowed);
      CHECK(encode(t.format, -x, Overflow::kInfinity) == (overflow_sign | t.overflowed));
      CHECK(encode(t.format, x, Overflow::kSaturate) == t.largest);
      CHECK(encode(t.format, -x, Overflow::kSaturate) == (sign | t.largest));
    }
  }
  CHECK(encode(kE4M3FN, 465, Overflow::kInfinity) == 0x7F);
  CHECK(encode(kE4M3FN, 464, Overflow::kInfinity) == 0x7E);
  CHECK(encode(kE2M1, 7, Overflow::kSaturate) == 7);
  CHECK(encode(kE2M1, kInfinity, Overflow::kSaturate) == 7);
  CHECK(encode(kE2M1, -kInfinity, Overflow::kSaturate) == 15);
  CHECK(encode(kE2M1, down(7), Overflow::kInfinity) == 7);
  CHECK_THROWS_AS(encode(kE2M1, 7, Overflow::kInfinity), std::logic_error);
  CHECK(encode(kE8M0, down(0x1.8p127f), Overflow::kInfinity) == 254);
  CHECK(encode(kE8M0, 0x1.8p127f, Overflow::kInfinity) == 255);
  CHECK(encode(kE8M0, 0x1.8p127f, Overflow::kSaturate) == 254);
}

TEST_CASE("limits saturate at fp8_max") {
  struct Limit {
    double limit;
    uint32_t code;
  };
  for (const Limit& l : {Limit{448, 0x7E}, Limit{240, 0x77}, Limit{224, 0x76}}) {
    CAPTURE(l.limit);
    const float limit = static_cast<float>(l.limit);
    for (const float x : {limit, up(limit), 2 * limit, kInfinity}) {
      for (const Overflow overflow : {Overflow::kSaturate, Overflow::kInfinity}) {
        CHECK(encode(kE4M3FN, x, overflow, l.limit) == l.code);
        CHECK(encode(kE4M3FN, -x, overflow, l.limit) == (l.code | 0x80));
      }
    }
    // Below the limit nothing changes.
    for (uint32_t code = 0; code < l.code; ++code) {
      const float middle = (decode(kE4M3FN, code) + decode(kE4M3FN, code + 1)) / 2;
      CHECK(encode(kE4M3FN, middle, Overflow::kSaturate, l.limit) ==
            encode(kE4M3FN, middle, Overflow::kSaturate));
    }
  }
  CHECK(encode(kE4M3, 231, Overflow::kSaturate, 224) == 0x76);
  CHECK(encode(kE4M3FN, kQuietNaN, Overflow::kSaturate, 224) == 0x7F);
  CHECK_THROWS_AS(encode(kE4M3FN, 1, Overflow::kSaturate, 225), std::logic_error);
  CHECK_THROWS_AS(encode(kE4M3, 1, Overflow::kSaturate, 448), std::logic_error);
}

TEST_CASE("zeros, NaN and numbers that a format cannot express") {
  for (const Expected& e : kExpected) {
    CAPTURE(format_info(e.format).name);
    CHECK(encode(e.format, 0.0f, Overflow::kSaturate) == 0);
    CHECK(encode(e.format, -0.0f, Overflow::kSaturate) == (e.sign ? code_count(e.format) / 2 : 0));
    // Signalling and negative NaN with payload, too.
    for (const uint32_t bits : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFFFFFFFFu}) {
      const float nan = std::bit_cast<float>(bits);
      if (format_info(e.format).has_nan) {
        CHECK(encode(e.format, nan, Overflow::kSaturate) == e.canonical_nan);
        CHECK(encode(e.format, nan, Overflow::kInfinity) == e.canonical_nan);
      } else {
        CHECK_THROWS_AS(encode(e.format, nan, Overflow::kSaturate), std::logic_error);
      }
    }
  }
  CHECK(encode(kE8M0, -1.0f, Overflow::kSaturate) == 255);
  CHECK(encode(kE8M0, -kInfinity, Overflow::kInfinity) == 255);
  CHECK(encode(kE8M0, 0x1p-149f, Overflow::kSaturate) == 0);
}

// IEEE round to nearest even by adding half a unit, as bf16 hardware and torch do it.
uint32_t bf16_by_addition(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

TEST_CASE("bf16 agrees with the addition form on every code, midpoint and neighbour") {
  int64_t wrong = 0;
  for (uint32_t code = 0; code < 65536; ++code) {
    if (std::isnan(decode(kBF16, code))) continue;
    CHECK(std::bit_cast<uint32_t>(decode(kBF16, code)) == code << 16);
    for (const uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      const float x = std::bit_cast<float>(code << 16 | low);
      if (std::isnan(x)) continue;
      wrong += encode(kBF16, x, Overflow::kInfinity) == bf16_by_addition(x) ? 0 : 1;
    }
  }
  std::mt19937_64 random(random_seed(20240501));
  for (int i = 0; i < 1000000; ++i) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnan(x)) continue;
    wrong += encode(kBF16, x, Overflow::kInfinity) == bf16_by_addition(x) ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("power_of_two_at_least on every exponent and at its edges") {
  for (int exponent = -149; exponent <= 127; ++exponent) {
    CAPTURE(exponent);
    const float power = std::ldexp(1.0f, exponent);
    CHECK(power_of_two_at_least(power) == power);
    // Above 2^127 the answer is 2^128, which fp32 calls infinity.
    const float next = exponent == 127 ? kInfinity : std::ldexp(1.0f, exponent + 1);
    if (up(power) < next) {  // not at 2^-149, whose neighbour is 2^-148
      CHECK(power_of_two_at_least(up(power)) == next);
      CHECK(power_of_two_at_least(down(next)) == next);
    }
  }
  CHECK(power_of_two_at_least(std::numeric_limits<float>::max()) == kInfinity);
  CHECK(power_of_two_at_least(3 * 0x1p-149f) == 0x1p-147f);
  CHECK(power_of_two_at_least(up(0x1p-127f)) == 0x1p-126f);
  for (const float bad : {0.0f, -0.0f, -1.0f, kInfinity, kQuietNaN}) {
    CHECK_THROWS_AS(power_of_two_at_least(bad), std::logic_error);
  }
}

TEST_CASE("e8m0_from_power_of_two inverts decode and refuses everything else") {
  for (uint32_t code = 0; code < 255; ++code) {
    const float power = decode(kE8M0, code);
    CHECK(e8m0_from_power_of_two(power) == code);
    if (code > 0) CHECK_THROWS_AS(e8m0_from_power_of_two(down(power)), std::logic_error);
    CHECK_THROWS_AS(e8m0_from_power_of_two(up(power)), std::logic_error);
    CHECK_THROWS_AS(e8m0_from_power_of_two(-power), std::logic_error);
  }
  for (const float bad : {0.0f, -0.0f, 0x1p-128f, kInfinity, kQuietNaN, 3.0f}) {
    CHECK_THROWS_AS(e8m0_from_power_of_two(bad), std::logic_error);
  }
}

#if defined(__SSE2__)
TEST_CASE("flush-to-zero and other rounding modes change no code") {
  struct ControlWord {
    unsigned saved = _mm_getcsr();
    ~ControlWord() { _mm_setcsr(saved); }
  } control;
  std::vector<uint32_t> before;
  const auto collect = [](std::vector<uint32_t>& codes) {
    for (const NumericFormat format : {kE4M3FN, kE5M2, kE8M0, kBF16}) {
      for (uint32_t code = 0; code < code_count(format); ++code) {
        codes.push_back(std::bit_cast<uint32_t>(decode(format, code)));
      }
      for (uint32_t upper = 0; upper < 1u << 16; ++upper) {
        codes.push_back(
            encode(format, std::bit_cast<float>(upper << 16 | 0x8000), Overflow::kInfinity));
      }
    }
    codes.push_back(std::bit_cast<uint32_t>(power_of_two_at_least(std::bit_cast<float>(5u))));
  };
  collect(before);
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040, kRoundUp = 0x4000;
  std::vector<uint32_t> after;
  _mm_setcsr(control.saved | kFlushToZero | kDenormalsAreZero | kRoundUp);
  collect(after);
  _mm_setcsr(control.saved);
  CHECK(before == after);
}
#endif

// One block quantiser with its shapes, for tests that hold for all three.
struct Quantizer {
  std::string name;
  size_t block;
  NumericFormat value_format, scale_format;
  std::function<void(std::span<const float>, std::span<uint8_t>, std::span<uint8_t>)> quantize;
  std::function<void(std::span<const uint8_t>, std::span<const uint8_t>, std::span<float>)>
      dequantize;
};

const std::vector<Quantizer>& quantizers() {
  const auto aq32 = [](double fp8_max) {
    return [fp8_max](auto row, auto codes, auto scales) {
      quantize_aq32(row, fp8_max, codes, scales);
    };
  };
  const auto fq16 = [](double fp8_max) {
    return [fp8_max](auto row, auto codes, auto scales) {
      quantize_fq4_16(row, fp8_max, codes, scales);
    };
  };
  static const std::vector<Quantizer> list = {
      {"aq32 448", 32, kE4M3FN, kE8M0, aq32(448), dequantize_aq32},
      {"aq32 240", 32, kE4M3FN, kE8M0, aq32(240), dequantize_aq32},
      {"aq32 224", 32, kE4M3FN, kE8M0, aq32(224), dequantize_aq32},
      {"fq4_32", 32, kE2M1, kE8M0, quantize_fq4_32, dequantize_fq4_32},
      {"fq4_16 448", 16, kE2M1, kE4M3FN, fq16(448), dequantize_fq4_16},
      {"fq4_16 224", 16, kE2M1, kE4M3FN, fq16(224), dequantize_fq4_16},
  };
  return list;
}

struct Quantized {
  std::vector<uint8_t> codes, scales;
  std::vector<float> values;
};

Quantized run(const Quantizer& q, const std::vector<float>& row) {
  Quantized out{std::vector<uint8_t>(row.size()), std::vector<uint8_t>(row.size() / q.block),
                std::vector<float>(row.size())};
  q.quantize(row, out.codes, out.scales);
  q.dequantize(out.codes, out.scales, out.values);
  return out;
}

TEST_CASE("block quantisers: scales by hand") {
  std::vector<float> row(32, 0.25f);
  std::vector<uint8_t> codes(32);
  std::vector<uint8_t> scales(1);
  const auto aq32_scale = [&](float amax, double fp8_max) {
    row[7] = amax;
    quantize_aq32(row, fp8_max, codes, scales);
    return decode(kE8M0, scales[0]);
  };
  // 1/448, 1/240 and 1/224 in fp32: 448 * f32(1/448) rounds to 1, so that a full block has scale 1.
  CHECK(aq32_scale(448, 448) == 1);
  CHECK(aq32_scale(up(448), 448) == 2);
  CHECK(aq32_scale(240, 240) == 1);
  CHECK(aq32_scale(-224, 224) == 1);
  CHECK(aq32_scale(-225, 224) == 2);
  CHECK(codes[7] == (0x80 | 0x6E));  // -225 / 2 = -112.5 -> -112
  // The floor of 1e-4: 1e-4 / 448 lies between 2^-23 and 2^-22.
  std::fill(row.begin(), row.end(), 0.0f);
  quantize_aq32(row, 448, codes, scales);
  CHECK(decode(kE8M0, scales[0]) == 0x1p-22f);
  CHECK(std::all_of(codes.begin(), codes.end(), [](uint8_t code) { return code == 0; }));

  const auto fq4_32_scale = [&](float amax) {
    std::fill(row.begin(), row.end(), 0.0f);
    row[31] = amax;
    quantize_fq4_32(row, codes, scales);
    return decode(kE8M0, scales[0]);
  };
  CHECK(fq4_32_scale(6) == 1);
  CHECK(fq4_32_scale(up(6)) == 2);
  CHECK(fq4_32_scale(-1.5f) == 0.25f);
  CHECK(codes[31] == 15);  // -1.5 / 0.25 = -6
  CHECK(fq4_32_scale(0) == fq4_32_scale(static_cast<float>(6 * 0x1p-126)));

  std::vector<float> short_row(16, 0.0f);
  std::vector<uint8_t> short_codes(16);
  const auto fq4_16_scale = [&](float amax, double fp8_max) {
    short_row[0] = amax;
    quantize_fq4_16(short_row, fp8_max, short_codes, scales);
    return decode(kE4M3FN, scales[0]);
  };
  CHECK(fq4_16_scale(0, 448) == 0x1p-9f);
  CHECK(fq4_16_scale(6.5f, 448) == 1.125f);  // 1.0833 -> nearest e4m3
  CHECK(short_codes[0] == 7);                // 6.5 / 1.125 = 5.78 -> 6
  // Divided by 6, not multiplied by f32(1/6), which would reach the tie at 1.1875.
  CHECK(fq4_16_scale(down(6 * 1.1875f), 448) == 1.125f);
  CHECK(fq4_16_scale(6 * 440, 448) == 448);  // 440 is halfway, 448 is even
  CHECK(fq4_16_scale(6 * 440, 224) == 224);
  CHECK(short_codes[0] == 7);  // saturates
}

TEST_CASE("block quantisers: quantised values are fixed points, errors within half a step") {
  std::mt19937_64 random(random_seed(7));
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-30, 30);
  for (const Quantizer& q : quantizers()) {
    CAPTURE(q.name);
    for (int repeat = 0; repeat < 200; ++repeat) {
      std::vector<float> row(4 * q.block);
      for (size_t i = 0; i < row.size(); ++i) {
        row[i] = std::ldexp(normal(random), i % q.block == 0 ? exponent(random) : 0);
      }
      const Quantized once = run(q, row);
      for (size_t i = 0; i < row.size(); ++i) {
        const float scale = decode(q.scale_format, once.scales[i / q.block]);
        const uint32_t nearest = encode(q.value_format, row[i] / scale, Overflow::kSaturate);
        const float step_error = std::fabs(decode(q.value_format, nearest) - row[i] / scale);
        const float error = std::fabs(once.values[i] / scale - row[i] / scale);
        // Where fp8_max or the scale's own limit cuts, the code is the limit's.
        const bool cut = once.codes[i] != nearest;
        if (!cut) CHECK(error <= step_error * (1 + 0x1p-20f));
        if (cut) CHECK(std::fabs(row[i] / scale) > 224);
      }
      // The scale of dequantised values is the same wherever the largest code is the format's top
      // binade, so quantising twice changes nothing.
      const Quantized twice = run(q, once.values);
      if (q.value_format == kE4M3FN) CHECK(twice.values == once.values);
    }
  }
}

TEST_CASE("block quantisers: a block with NaN or infinity becomes NaN, its neighbours stay") {
  for (const Quantizer& q : quantizers()) {
    CAPTURE(q.name);
    for (const float bad : {kQuietNaN, kInfinity, -kInfinity}) {
      std::vector<float> row(3 * q.block, 1.0f);
      row[q.block + 3] = bad;
      const Quantized out = run(q, row);
      for (size_t i = 0; i < row.size(); ++i) {
        const bool poisoned = i / q.block == 1;
        if (std::isnan(out.values[i]) != poisoned)
          FAIL_CHECK("value " << i << ": " << out.values[i]);
      }
    }
  }
}

TEST_CASE("block quantisers: largest and smallest finite inputs") {
  for (const Quantizer& q : quantizers()) {
    CAPTURE(q.name);
    // Above 2^127 * 1.875 the nearest code times its scale may be 2^128, infinity in fp32.
    for (const float x : {0x1.8p127f, 0x1p-149f, 0x1p-126f}) {
      const Quantized out = run(q, std::vector<float>(q.block, x));
      CHECK(std::all_of(out.values.begin(), out.values.end(),
                        [](float value) { return std::isfinite(value); }));
    }
  }
}

TEST_CASE("block quantisers refuse spans that do not fit together") {
  std::vector<float> row(33);
  std::vector<uint8_t> codes(33);
  std::vector<uint8_t> scales(1);
  CHECK_THROWS_AS(quantize_fq4_32(row, codes, scales), std::logic_error);
  row.resize(32);
  CHECK_THROWS_AS(quantize_fq4_32(row, codes, scales), std::logic_error);
  codes.resize(32);
  CHECK_NOTHROW(quantize_fq4_32(row, codes, scales));
  scales.resize(2);
  CHECK_THROWS_AS(quantize_fq4_32(row, codes, scales), std::logic_error);
  CHECK_THROWS_AS(dequantize_fq4_32(codes, scales, row), std::logic_error);
  scales.resize(1);
  CHECK_THROWS_AS(quantize_aq32(row, 0, codes, scales), std::logic_error);
  CHECK_THROWS_AS(quantize_aq32(row, 300, codes, scales), std::logic_error);
}

TEST_CASE("an unknown format names the nearest") {
  try {
    parse_format("e4m3f");
    FAIL("accepted");
  } catch (const ConfigError& error) {
    CHECK(error.exit_code() == ExitCode::kBadInput);
    CHECK(error.parts().found == "e4m3f");
    CHECK(error.parts().expected == "one of e4m3fn, e4m3, e5m2, e3m4, e2m1, e8m0, bf16");
    CHECK(error.parts().remedy.find("e4m3fn") != std::string::npos);
  }
}

}  // namespace
}  // namespace deepinfer
