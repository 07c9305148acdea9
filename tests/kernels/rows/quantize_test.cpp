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

std::vector<std::vector<float>> rows_to_try(uint64_t seed, uint32_t op) {
  std::vector<std::vector<float>> rows = {{}};
  // Every bf16 number but NaN and infinity, in blocks of like size and in mixed blocks.
  std::vector<float> ascending, mixed;
  for (uint32_t i = 0; i < 0x7F80; ++i) {
    ascending.push_back(from_bf16(static_cast<uint16_t>(i | (i & 1) << 15)));
    mixed.push_back(from_bf16(static_cast<uint16_t>((i * 7919) % 0x7F80)));
  }
  rows.push_back(ascending);
  rows.push_back(mixed);
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
      for (const Target target : available_targets()) {
        const std::string where = std::string(target_name(target)) + (narrow ? " bf16" : " fp32");
        CAPTURE(where);
        std::vector<float> wide(row.size());
        std::vector<uint16_t> bf16(row.size());
        const MutableRowView y =
            narrow ? view(bf16.data(), 1, columns) : view(wide.data(), 1, columns);
        const auto result = [&] { return narrow ? from_bf16(bf16) : wide; };
        for (const double limit : kLimits) {
          CAPTURE(limit);
          const Expected aq32 = expected_aq32(row, limit);
          std::vector<uint8_t> codes(row.size()), scales(row.size() / 32);
          CHECK(quantize_aq32(x, limit, codes.data(), columns, scales.data(), columns / 32,
                              target) == -1);
          CHECK(codes == aq32.codes);
          CHECK(scales == aq32.scales);
          CHECK(fake_quantize_aq32(x, limit, y, target) == -1);
          CHECK(same_bits(result(), aq32.values));
          CHECK(fake_quantize_fq4_16(x, limit, y, target) == -1);
          CHECK(same_bits(result(), expected_fq4_16(row, limit).values));
        }
        CHECK(fake_quantize_fq4_32(x, y, target) == -1);
        CHECK(same_bits(result(), expected_fq4_32(row).values));
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

}  // namespace
}  // namespace deepinfer
