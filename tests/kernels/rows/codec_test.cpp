// The array coders against platform/formats.h, on every target: all codes, all bf16 numbers, and
// every rounding boundary of every format with its neighbours.
#include "sim/kernels/codec.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "platform/formats.h"
#include "tests/kernels/rows/random_data.h"
#include "tests/random_seed.h"

namespace deepinfer {
namespace {

using enum NumericFormat;

constexpr NumericFormat kFormats[] = {kE4M3FN, kE4M3, kE5M2, kE3M4, kE2M1, kE8M0};

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

// Codes in an order without a pattern, so that a coder that mixes up lanes shows.
std::vector<uint8_t> shuffled_codes(NumericFormat format, int64_t count) {
  std::vector<uint8_t> codes;
  const uint32_t mask = (1u << format_info(format).bits) - 1;
  for (int64_t i = 0; i < count; ++i)
    codes.push_back(static_cast<uint8_t>((i * 151 + i / 256) & mask));
  return codes;
}

TEST_CASE("every code decodes to the reference's value, at every length") {
  for (const Target target : available_targets()) {
    CAPTURE(std::string(target_name(target)));
    for (const NumericFormat format : kFormats) {
      CAPTURE(std::string(format_info(format).name));
      for (const int64_t length : {0, 1, 15, 16, 17, 63, 64, 65, 127, 129, 255, 256, 1000}) {
        const std::vector<uint8_t> codes = shuffled_codes(format, length);
        std::vector<float> wide(codes.size() + 1, -7.0f);
        std::vector<uint16_t> narrow(codes.size() + 1, 0x1234);
        decode_codes(format, codes, std::span(wide).first(codes.size()), target);
        decode_codes(format, codes, std::span(narrow).first(codes.size()), target);
        int64_t wrong = 0;
        for (size_t i = 0; i < codes.size(); ++i) {
          const uint32_t expected = bits_of(decode(format, codes[i]));
          wrong += bits_of(wide[i]) != expected || narrow[i] != expected >> 16 ? 1 : 0;
        }
        CHECK(wrong == 0);
        CHECK(wide.back() == -7.0f);
        CHECK(narrow.back() == 0x1234);
      }
    }
  }
}

// Every code's value, every midpoint of neighbours, both signs, and the fp32 numbers next to each;
// and the ends.
std::vector<float> boundaries(NumericFormat format) {
  std::vector<float> values;
  const FormatInfo& info = format_info(format);
  std::vector<double> points = {0, info.max_finite * 2, 0x1p-149, 0x1p-126, 0x1p-127};
  double previous = 0;
  for (uint32_t code = 0; code < 1u << (info.bits - (info.has_sign ? 1 : 0)); ++code) {
    const double value = decode(format, code);
    if (!std::isfinite(value)) break;
    points.push_back(value);
    points.push_back((value + previous) / 2);
    previous = value;
  }
  points.push_back(previous * 1.03125);  // half a step of three mantissa bits above the largest
  points.push_back(previous * 1.0625);
  points.push_back(previous * 1.25);
  for (const double point : points) {
    const float middle = static_cast<float>(point);
    for (const float value :
         {middle, std::nextafter(middle, -1.0f), std::nextafter(middle, 3e38f)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  return values;
}

struct Rule {
  Overflow overflow;
  double limit;
};

std::vector<Rule> rules(NumericFormat format) {
  std::vector<Rule> all = {{Overflow::kSaturate, 0}};
  if (format != kE2M1) all.push_back({Overflow::kInfinity, 0});
  if (format == kE4M3FN)
    all.insert(
        all.end(),
        {{Overflow::kSaturate, 448}, {Overflow::kSaturate, 240}, {Overflow::kSaturate, 224}});
  if (format == kE4M3) all.push_back({Overflow::kSaturate, 224});
  return all;
}

void check_encode(NumericFormat format, const std::vector<float>& values, Target target) {
  for (const Rule& rule : rules(format)) {
    CAPTURE(rule.limit);
    std::vector<uint8_t> codes(values.size());
    CHECK(encode_values(format, values, rule.overflow, rule.limit, codes, target) == -1);
    int64_t wrong = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const bool right = codes[i] == encode(format, values[i], rule.overflow, rule.limit);
      if (!right && wrong == 0) {
        MESSAGE(values[i] << " (" << std::hex << bits_of(values[i]) << ") gives " << int{codes[i]});
      }
      wrong += right ? 0 : 1;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE(
    "encoders agree with the reference on boundaries, their neighbours and every bf16 number") {
  for (const NumericFormat format : kFormats) {
    CAPTURE(std::string(format_info(format).name));
    std::vector<float> values = boundaries(format);
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const float value = from_bf16(static_cast<uint16_t>(bits));
      if (format != kE2M1 || !std::isnan(value)) values.push_back(value);
    }
    for (const Target target : available_targets()) {
      CAPTURE(std::string(target_name(target)));
      check_encode(format, values, target);
    }
  }
}

TEST_CASE("encoders agree with the reference on random fp32 patterns") {
  const uint64_t seed = random_seed(0x3010);
  for (const NumericFormat format : kFormats) {
    CAPTURE(std::string(format_info(format).name));
    RandomData random(seed, 10, static_cast<uint32_t>(format));
    std::vector<float> values;
    while (values.size() < 100000) {
      const float value =
          values.size() % 2 == 0 ? random.spread(12) : std::bit_cast<float>(random.bits());
      if (format != kE2M1 || !std::isnan(value)) values.push_back(value);
    }
    for (const Target target : available_targets()) {
      CAPTURE(std::string(target_name(target)));
      check_encode(format, values, target);
    }
  }
}

TEST_CASE("a value without an e2m1 code is reported by its index") {
  for (const Target target : available_targets()) {
    CAPTURE(std::string(target_name(target)));
    std::vector<float> values(40, 1.0f);
    std::vector<uint8_t> codes(values.size());
    values[5] = 100;
    CHECK(encode_values(kE2M1, values, Overflow::kSaturate, 0, codes, target) == -1);
    CHECK(codes[5] == 7);
    CHECK(encode_values(kE2M1, values, Overflow::kInfinity, 0, codes, target) == 5);
    values[37] = std::numeric_limits<float>::quiet_NaN();
    CHECK(encode_values(kE2M1, values, Overflow::kSaturate, 0, codes, target) == 37);
  }
}

TEST_CASE("packing e2m1 and unpacking it") {
  const std::vector<uint8_t> codes = {1, 2, 15, 0, 7, 8};
  std::vector<uint8_t> packed(3), back(6);
  pack_e2m1(codes, packed);
  CHECK(packed == std::vector<uint8_t>{0x21, 0x0F, 0x87});
  unpack_e2m1(packed, back);
  CHECK(back == codes);
}

TEST_CASE("bf16 casts: every bf16 number, its neighbours and the ties between") {
  std::vector<uint16_t> all;
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    all.push_back(static_cast<uint16_t>(bits));
    for (const uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      values.push_back(std::bit_cast<float>(bits << 16 | low));
    }
  }
  for (const Target target : available_targets()) {
    CAPTURE(std::string(target_name(target)));
    std::vector<float> wide(all.size());
    fp32_from_bf16(all, wide, target);
    int64_t wrong = 0;
    for (size_t i = 0; i < all.size(); ++i)
      wrong += bits_of(wide[i]) != uint32_t{all[i]} << 16 ? 1 : 0;
    CHECK(wrong == 0);
    std::vector<uint16_t> narrow(values.size());
    bf16_from_fp32(values, narrow, target);
    for (size_t i = 0; i < values.size(); ++i) {
      const uint32_t expected =
          std::isnan(values[i]) ? 0x7FC0 : encode(kBF16, values[i], Overflow::kInfinity);
      wrong += narrow[i] != expected ? 1 : 0;
    }
    CHECK(wrong == 0);
  }
}

}  // namespace
}  // namespace deepinfer
