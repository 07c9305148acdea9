// The block quantisers against platform/formats.h, on every target.
#include "sim/kernels/quantize.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "platform/formats.h"
#include "tests/kernels/rows/random_data.h"
#include "tests/random_seed.h"

namespace deepinfer {
namespace {

constexpr double kLimits[] = {448, 240, 224};

// What formats.h makes of one row.
struct Expected {
  std::vector<uint8_t> codes, scales;
  std::vector<float> values;
};

Expected expected_aq32(std::span<const float> row, double fp8_max) {
  Expected e{std::vector<uint8_t>(row.size()), std::vector<uint8_t>(row.size() / 32),
             std::vector<float>(row.size())};
  quantize_aq32(row, fp8_max, e.codes, e.scales);
  dequantize_aq32(e.codes, e.scales, e.values);
  return e;
}
Expected expected_fq4_32(std::span<const float> row) {
  Expected e{std::vector<uint8_t>(row.size()), std::vector<uint8_t>(row.size() / 32),
             std::vector<float>(row.size())};
  quantize_fq4_32(row, e.codes, e.scales);
  dequantize_fq4_32(e.codes, e.scales, e.values);
  return e;
}
Expected expected_fq4_16(std::span<const float> row, double fp8_max) {
  Expected e{std::vector<uint8_t>(row.size()), std::vector<uint8_t>(row.size() / 16),
             std::vector<float>(row.size())};
  quantize_fq4_16(row, fp8_max, e.codes, e.scales);
  dequantize_fq4_16(e.codes, e.scales, e.values);
  return e;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) return false;
  }
  return a.size() == b.size();
}

// A row of blocks: each has a maximum that sets its scale, and values around the rounding
// boundaries under it.
std::vector<float> adversarial_row(RandomData& random, int64_t blocks) {
  std::vector<float> row;
  for (int64_t b = 0; b < blocks; ++b) {
    const float scale = std::bit_cast<float>(static_cast<uint32_t>(1 + random.below(250)) << 23);
    const int64_t kind = random.below(8);
    for (int64_t i = 0; i < 32; ++i) {
      // Multiples of a sixteenth and of 2^-11 are values and ties of both grids.
      const float coarse = static_cast<float>(random.below(15 * 16)) / 16.0f;
      const float fine = static_cast<float>(random.below(64)) * 0x1p-11f;
      float value = (kind < 4 ? coarse : kind < 6 ? fine : random.uniform() * 6) * scale;
      if (random.below(4) == 0) value = std::nextafter(value, random.below(2) == 0 ? 0.0f : 1e30f);
      row.push_back(random.below(2) == 0 ? value : -value);
      if (!std::isfinite(row.back())) row.back() = scale;
    }
  }
  return row;
}

void append_with_neighbours(float value, std::vector<float>& to) {
  for (const float near : {value, std::nextafter(value, 0.0f), std::nextafter(value, 1e30f)}) {
    to.push_back(near);
    to.push_back(-near);
  }
}

// Magnitudes of a format's codes, and the middles between them, ascending.
std::vector<float> rounding_boundaries(NumericFormat format, double largest) {
  std::vector<float> points;
  double previous = 0;
  for (uint32_t code = 0; decode(format, code) <= largest; ++code) {
    const double value = decode(format, code);
    if (code > 0) points.push_back(static_cast<float>((previous + value) / 2));
    points.push_back(static_cast<float>(value));
    previous = value;
    if (code + 1 == 1u << (format_info(format).bits - 1)) break;
  }
  return points;
}

// Blocks of one number and zeros put every maximum beside a boundary where a block's scale changes;
// blocks under a fixed maximum put every number beside a boundary of its code, and the boundary
// itself, of every grid and at small, usual and large scales.
std::vector<float> boundary_row() {
  std::vector<float> maxima, row;
  for (int exponent = -126; exponent <= 118; ++exponent) {
    for (const double limit : {448.0, 240.0, 224.0, 6.0}) {
      append_with_neighbours(std::ldexp(static_cast<float>(limit), exponent), maxima);
    }
  }
  // The e4m3 scales of FQ4-16 are those of a sixth of the maximum.
  for (const float point : rounding_boundaries(NumericFormat::kE4M3FN, 448)) {
    append_with_neighbours(point * 6, maxima);
  }
  for (const float largest : maxima) {
    row.push_back(largest);
    row.insert(row.end(), 31, 0.0f);
  }
  for (const double largest : {448.0, 240.0, 224.0, 6.0}) {
    std::vector<float> points = rounding_boundaries(NumericFormat::kE4M3FN, largest);
    const std::vector<float> coarse = rounding_boundaries(NumericFormat::kE2M1, 6);
    points.insert(points.end(), coarse.begin(), coarse.end());
    for (const int exponent : {-126, -125, -124, -123, -20, -8, 0, 3, 118}) {
      std::vector<float> values;
      for (const float point : points) {
        if (point <= largest) append_with_neighbours(std::ldexp(point, exponent), values);
      }
      for (size_t i = 0; i < values.size(); ++i) {
        // Two a block of 32, so that both blocks of 16 have the maximum.
        if (row.size() % 16 == 0) row.push_back(std::ldexp(static_cast<float>(largest), exponent));
        row.push_back(values[i]);
      }
      row.resize((row.size() + 31) / 32 * 32, 0.0f);
    }
  }
  return row;
}

std::vector<std::vector<float>> rows_to_try(uint64_t seed, uint32_t op) {
  std::vector<std::vector<float>> rows = {{}};
  // Every bf16 number but NaN and infinity, both signs, in blocks of like size and in mixed blocks.
  std::vector<float> ascending, mixed;
  for (uint32_t i = 0; i < 0x7F80; ++i) {
    for (const uint32_t sign : {0u, 0x8000u}) {
      ascending.push_back(from_bf16(static_cast<uint16_t>(i | sign)));
      mixed.push_back(from_bf16(static_cast<uint16_t>((i * 7919) % 0x7F80 | sign)));
    }
  }
  rows.push_back(ascending);
  rows.push_back(mixed);
  rows.push_back(boundary_row());
  // All zero, negative zero, the smallest subnormal, subnormals around the scale's floor, the
  // largest number.
  for (const float value : {0.0f, -0.0f, 0x1p-149f, 0x1p-127f, 0x1.8p-127f, -0x1.fffffcp-127f,
                            0x1p-126f, 0x1.8p-124f, 1e-4f, 0x1.fffffep+127f}) {
    rows.emplace_back(32, value);
    rows.emplace_back(64, 0.0f);
    for (int i = 0; i < 64; ++i)
      rows.back()[static_cast<size_t>(i)] = value * static_cast<float>(i) / 64;
  }
  // Magnitudes across the subnormals, whose quotient by the smallest scales is not small.
  std::vector<float> tiny;
  for (uint32_t i = 0; i < 4096; ++i)
    tiny.push_back(std::bit_cast<float>(i * 0x1003u | (i & 1) << 31));
  rows.push_back(tiny);
  RandomData random(seed, op, 0);
  for (int64_t i = 0; i < 200; ++i) rows.push_back(adversarial_row(random, 1 + random.below(40)));
  return rows;
}

// Row lengths are whole blocks; every row is given to every target in fp32 and, where bf16 holds
// it, in bf16.
TEST_CASE("quantisers give the reference's codes, scales and values") {
  const uint64_t seed = random_seed(0x3020);
  for (const std::vector<float>& wide_row : rows_to_try(seed, 20)) {
    const std::vector<uint16_t> narrow_row = to_bf16(wide_row);
    for (const bool narrow : {false, true}) {
      const std::vector<float> row = narrow ? from_bf16(narrow_row) : wide_row;
      bool finite = true;
      for (const float value : row) finite = finite && std::isfinite(value);
      if (!finite) continue;  // rounded up to infinity
      const int64_t columns = static_cast<int64_t>(row.size());
      const RowView x = narrow ? view(narrow_row.data(), 1, columns) : view(row.data(), 1, columns);
      std::vector<Expected> aq32, fq4_16;
      for (const double limit : kLimits) {
        aq32.push_back(expected_aq32(row, limit));
        fq4_16.push_back(expected_fq4_16(row, limit));
      }
      const Expected fq4_32 = expected_fq4_32(row);
      for (const Target target : available_targets()) {
        const std::string where = std::string(target_name(target)) + (narrow ? " bf16" : " fp32");
        CAPTURE(where);
        std::vector<float> wide(row.size());
        std::vector<uint16_t> bf16(row.size());
        const MutableRowView y =
            narrow ? view(bf16.data(), 1, columns) : view(wide.data(), 1, columns);
        const auto result = [&] { return narrow ? from_bf16(bf16) : wide; };
        for (size_t i = 0; i < std::size(kLimits); ++i) {
          const double limit = kLimits[i];
          CAPTURE(limit);
          std::vector<uint8_t> codes(row.size()), scales(row.size() / 32);
          CHECK(quantize_aq32(x, limit, codes.data(), columns, scales.data(), columns / 32,
                              target) == -1);
          CHECK(codes == aq32[i].codes);
          CHECK(scales == aq32[i].scales);
          CHECK(fake_quantize_aq32(x, limit, y, target) == -1);
          CHECK(same_bits(result(), aq32[i].values));
          CHECK(fake_quantize_fq4_16(x, limit, y, target) == -1);
          CHECK(same_bits(result(), fq4_16[i].values));
        }
        CHECK(fake_quantize_fq4_32(x, y, target) == -1);
        CHECK(same_bits(result(), fq4_32.values));
      }
    }
  }
}

TEST_CASE("dequantising gives the exact product for every code and scale") {
  std::vector<uint8_t> codes, scales;
  for (int scale = 0; scale < 256; ++scale) {
    for (int code = 0; code < 256; ++code) codes.push_back(static_cast<uint8_t>(code));
    scales.insert(scales.end(), 8, static_cast<uint8_t>(scale));
  }
  std::vector<float> expected(codes.size());
  for (size_t i = 0; i < codes.size(); ++i) {
    expected[i] =
        decode(NumericFormat::kE4M3FN, codes[i]) * decode(NumericFormat::kE8M0, scales[i / 32]);
    if (std::isnan(expected[i])) expected[i] = std::bit_cast<float>(0x7FC00000u);
  }
  for (const Target target : available_targets()) {
    CAPTURE(std::string(target_name(target)));
    std::vector<float> wide(codes.size());
    std::vector<uint16_t> narrow(codes.size());
    // As 256 rows of 256 columns.
    dequantize_aq32(codes.data(), 256, scales.data(), 8, view(wide.data(), 256, 256), target);
    dequantize_aq32(codes.data(), 256, scales.data(), 8, view(narrow.data(), 256, 256), target);
    CHECK(same_bits(wide, expected));
    int64_t wrong = 0;
    for (size_t i = 0; i < codes.size(); ++i) {
      wrong += narrow[i] != encode(NumericFormat::kBF16, expected[i], Overflow::kInfinity) ? 1 : 0;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("strides, and the row of the first number that is not finite") {
  for (const Target target : available_targets()) {
    CAPTURE(std::string(target_name(target)));
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> x(5 * 70, 1.5f), y(5 * 64);
      RowView rows{ElementType::kFp32, x.data(), 5, 64, 70};
      std::vector<uint8_t> codes(5 * 80, 0xEE), scales(5 * 3, 0xEE);
      // Between rows: not looked at.
      x[64] = bad;
      CHECK(quantize_aq32(rows, 448, codes.data(), 80, scales.data(), 3, target) == -1);
      CHECK(codes[64] == 0xEE);
      CHECK(scales[2] == 0xEE);
      CHECK(codes[80] == codes[0]);
      x[3 * 70 + 63] = bad;
      x[4 * 70] = bad;
      CHECK(quantize_aq32(rows, 448, codes.data(), 80, scales.data(), 3, target) == 3);
      CHECK(fake_quantize_aq32(rows, 448, view(y.data(), 5, 64), target) == 3);
      CHECK(fake_quantize_fq4_32(rows, view(y.data(), 5, 64), target) == 3);
      CHECK(fake_quantize_fq4_16(rows, 448, view(y.data(), 5, 64), target) == 3);
    }
  }
}

TEST_CASE("every bf16 number as the maximum of its block") {
  // Blocks of the number, its half and zeros, as many rows as there are exponents.
  constexpr int64_t kRows = 255, kColumns = 128 * 32;
  std::vector<uint16_t> x(kRows * kColumns, 0);
  for (uint32_t magnitude = 0; magnitude < 0x7F80; ++magnitude) {
    x[magnitude * 32] = static_cast<uint16_t>(magnitude | (magnitude & 1) << 15);
    x[magnitude * 32 + 17] = to_bf16(from_bf16(static_cast<uint16_t>(magnitude)) / 2);
  }
  const RowView rows = view(x.data(), kRows, kColumns);
  for (const double limit : kLimits) {
    CAPTURE(limit);
    const Expected expected = expected_aq32(from_bf16(x), limit),
                   expected16 = expected_fq4_16(from_bf16(x), limit),
                   expected32 = expected_fq4_32(from_bf16(x));
    for (const Target target : available_targets()) {
      CAPTURE(std::string(target_name(target)));
      std::vector<uint8_t> codes(x.size()), scales(x.size() / 32);
      CHECK(quantize_aq32(rows, limit, codes.data(), kColumns, scales.data(), kColumns / 32,
                          target) == -1);
      CHECK(codes == expected.codes);
      CHECK(scales == expected.scales);
      std::vector<uint16_t> y(x.size());
      CHECK(fake_quantize_aq32(rows, limit, view(y.data(), kRows, kColumns), target) == -1);
      CHECK(same_bits(from_bf16(y), expected.values));
      CHECK(fake_quantize_fq4_16(rows, limit, view(y.data(), kRows, kColumns), target) == -1);
      CHECK(same_bits(from_bf16(y), expected16.values));
      if (limit != kLimits[0]) continue;
      CHECK(fake_quantize_fq4_32(rows, view(y.data(), kRows, kColumns), target) == -1);
      CHECK(same_bits(from_bf16(y), expected32.values));
    }
  }
}

TEST_CASE("every bf16 infinity and NaN is reported, at every place of a block") {
  for (const Target target : available_targets()) {
    CAPTURE(std::string(target_name(target)));
    for (uint32_t pattern = 0x7F80; pattern < 0x10000; ++pattern) {
      if ((pattern & 0x7F80) != 0x7F80) continue;
      std::vector<uint16_t> x(2 * 32, 0x3F80), y(x.size());
      std::vector<uint8_t> codes(x.size()), scales(2);
      x[32 + pattern % 32] = static_cast<uint16_t>(pattern);
      const RowView rows = view(x.data(), 2, 32);
      const MutableRowView out = view(y.data(), 2, 32);
      CHECK(quantize_aq32(rows, 448, codes.data(), 32, scales.data(), 1, target) == 1);
      CHECK(fake_quantize_aq32(rows, 448, out, target) == 1);
      CHECK(fake_quantize_fq4_32(rows, out, target) == 1);
      CHECK(fake_quantize_fq4_16(rows, 448, out, target) == 1);
    }
  }
}

}  // namespace
}  // namespace deepinfer
