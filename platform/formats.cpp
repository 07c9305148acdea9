// Number formats by integer arithmetic on fp32 bits, so that no rounding or denormal mode changes a
// code.
#include "platform/formats.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "platform/errors.h"
#include "platform/nearest_name.h"

namespace deepinfer {

namespace {

// fp32: 1 sign bit, 8 exponent bits, 23 mantissa bits (IEEE 754 binary32).
constexpr int kFloatMantissaBits = 23;
constexpr int kFloatBias = 127;
constexpr uint32_t kFloatSign = 0x80000000u;
constexpr uint32_t kFloatInfinity = 0x7F800000u;
constexpr uint32_t kFloatNaN = 0x7FC00000u;  // quiet
constexpr uint32_t kFloatMantissaMask = (1u << kFloatMantissaBits) - 1;

// A finite magnitude as significand * 2^exponent.
struct Magnitude {
  uint32_t significand = 0;
  int exponent = 0;
};

constexpr double pow2(int exponent) {
  double value = 1;
  for (int i = 0; i < exponent; ++i) value *= 2;
  for (int i = 0; i > exponent; --i) value /= 2;
  return value;
}

// In the order of NumericFormat.
//                            name      bits exp man bias sign   inf    nan
constexpr std::array<FormatInfo, 7> kInfos = {{
    {NumericFormat::kE4M3FN, "e4m3fn", 8, 4, 3, 7, true, false, true, 448, pow2(-6), pow2(-9)},
    {NumericFormat::kE4M3, "e4m3", 8, 4, 3, 7, true, true, true, 240, pow2(-6), pow2(-9)},
    {NumericFormat::kE5M2, "e5m2", 8, 5, 2, 15, true, true, true, 57344, pow2(-14), pow2(-16)},
    {NumericFormat::kE3M4, "e3m4", 8, 3, 4, 3, true, true, true, 15.5, pow2(-2), pow2(-6)},
    {NumericFormat::kE2M1, "e2m1", 4, 2, 1, 1, true, false, false, 6, 1, 0.5},
    {NumericFormat::kE8M0, "e8m0", 8, 8, 0, 127, false, false, true, pow2(127), pow2(-127), 0},
    {NumericFormat::kBF16, "bf16", 16, 8, 7, 127, true, true, true, 255 * pow2(120), pow2(-126),
     pow2(-133)},
}};

// Codes of a format with the sign bit clear (trn2.md 2.1):
//   0 .. max_code       finite, in ascending order of value
//   max_code + 1        infinity, where the format has one
//   every code above    NaN, where the format has NaN
struct SpecialCodes {
  uint32_t max_code;  // largest finite magnitude
  uint32_t nan_code;  // canonical NaN: IEEE's quiet NaN without payload, else the only one
};
constexpr std::array<SpecialCodes, 7> kSpecialCodes = {{
    {0x7E, 0x7F},      // e4m3fn: only the last code is not finite
    {0x77, 0x7C},      // e4m3
    {0x7B, 0x7E},      // e5m2
    {0x6F, 0x78},      // e3m4
    {0x7, 0},          // e2m1: every code is finite
    {0xFE, 0xFF},      // e8m0
    {0x7F7F, 0x7FC0},  // bf16
}};

const SpecialCodes& special_codes(NumericFormat format) {
  return kSpecialCodes[static_cast<size_t>(format)];
}

uint32_t sign_mask(const FormatInfo& info) { return info.has_sign ? 1u << (info.bits - 1) : 0; }

// Exponent field 0 holds the subnormals, whose quantum is that of field 1. In e8m0, which has none,
// it is an ordinary exponent.
bool is_subnormal_field(const FormatInfo& info, uint32_t field) {
  return field == 0 && info.min_subnormal != 0;
}

// Value of a code with the sign bit clear, at most max_code.
Magnitude magnitude_of(const FormatInfo& info, uint32_t code) {
  const uint32_t field = code >> info.mantissa_bits;
  const uint32_t mantissa = code & ((1u << info.mantissa_bits) - 1);
  if (is_subnormal_field(info, field)) return {mantissa, 1 - info.bias - info.mantissa_bits};
  return {(1u << info.mantissa_bits) | mantissa,
          static_cast<int>(field) - info.bias - info.mantissa_bits};
}

// Exact fp32 of a magnitude of at most 24 bits in fp32's range; every finite code here is one.
float float_of(bool negative, Magnitude magnitude) {
  uint32_t bits = negative ? kFloatSign : 0;
  if (magnitude.significand != 0) {
    const int top = std::bit_width(magnitude.significand) - 1;
    const int exponent = top + magnitude.exponent;  // value = 1.xxx * 2^exponent
    if (exponent > -kFloatBias) {
      bits |= static_cast<uint32_t>(exponent + kFloatBias) << kFloatMantissaBits;
      bits |= (magnitude.significand << (kFloatMantissaBits - top)) & kFloatMantissaMask;
    } else {  // subnormal fp32: a multiple of 2^-149
      bits |= magnitude.significand << (magnitude.exponent + kFloatBias - 1 + kFloatMantissaBits);
    }
  }
  return std::bit_cast<float>(bits);
}

// fp32 bits with the sign clear, finite -> significand * 2^exponent.
Magnitude magnitude_of_float(uint32_t bits) {
  const uint32_t field = bits >> kFloatMantissaBits;
  const uint32_t mantissa = bits & kFloatMantissaMask;
  constexpr int kQuantum = 1 - kFloatBias - kFloatMantissaBits;  // -149
  if (field == 0) return {mantissa, kQuantum};
  return {(1u << kFloatMantissaBits) | mantissa, static_cast<int>(field) - 1 + kQuantum};
}

// value / 2^shift to the nearest integer, ties to even; shift is at least 1, as every format here
// has fewer mantissa bits than fp32.
uint32_t shift_right_nearest_even(uint32_t value, int shift) {
  if (shift > 24) return 0;  // value has 24 bits: below one half
  const uint32_t quotient = value >> shift;
  const uint32_t rest = value & ((1u << shift) - 1);
  const uint32_t half = 1u << (shift - 1);
  const bool up = rest > half || (rest == half && (quotient & 1) != 0);
  return quotient + (up ? 1 : 0);
}

// Nearest code of a finite magnitude as if the format's exponent had no end: above max_code the
// result only says "overflow".
uint32_t nearest_code(const FormatInfo& info, Magnitude magnitude) {
  if (magnitude.significand == 0) return 0;
  const int exponent = std::bit_width(magnitude.significand) - 1 + magnitude.exponent;
  const int smallest = info.min_subnormal != 0 ? 1 - info.bias : -info.bias;
  const int binade = std::max(exponent, smallest);
  // Count quanta of the binade: [2^m, 2^(m+1)] of them with the hidden bit, fewer for subnormals.
  // Both ends fit the codes: 2^m quanta more is the first code of the next binade, so the carry out
  // of a mantissa needs no case of its own.
  const int quantum = binade - info.mantissa_bits;
  const uint32_t count =
      shift_right_nearest_even(magnitude.significand, quantum - magnitude.exponent);
  const uint32_t binade_index = static_cast<uint32_t>(binade - smallest);
  if (info.min_subnormal == 0) {
    // e8m0: one code a binade and no zero; what lies below the smallest code is nearest to it. A
    // tie, 1.5 * 2^n, goes up, because the significand 1 is odd (as torch's float8_e8m0fnu rounds).
    return binade_index + (count == 0 ? 0 : count - 1);
  }
  return (binade_index << info.mantissa_bits) + count;
}

bool has_nonfinite(std::span<const float> values) {
  return std::any_of(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
}

float absolute_max(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

// The block quantisers share this: `scale_code_of` maps the block's absolute maximum to the scale's
// code. A block with a NaN or an infinity becomes NaN as a whole, as its arithmetic would
// (amax / inf = NaN): codes 0, scale NaN.
template <typename ScaleCodeOf>
void quantize_blocks(std::span<const float> row, int64_t block, NumericFormat value_format,
                     double value_limit, NumericFormat scale_format, ScaleCodeOf scale_code_of,
                     std::span<uint8_t> codes, std::span<uint8_t> scales) {
  const size_t width = static_cast<size_t>(block);
  DEEPINFER_ASSERT(row.size() % width == 0, "row " << row.size() << ", block " << block);
  DEEPINFER_ASSERT(codes.size() == row.size(), "codes " << codes.size() << ", row " << row.size());
  DEEPINFER_ASSERT(scales.size() == row.size() / width,
                   "scales " << scales.size() << ", blocks " << row.size() / width);
  for (size_t b = 0; b < scales.size(); ++b) {
    const std::span<const float> values = row.subspan(b * width, width);
    const std::span<uint8_t> out = codes.subspan(b * width, width);
    if (has_nonfinite(values)) {
      std::fill(out.begin(), out.end(), uint8_t{0});
      scales[b] = static_cast<uint8_t>(special_codes(scale_format).nan_code);
      continue;
    }
    scales[b] = scale_code_of(absolute_max(values));
    const float scale = decode(scale_format, scales[b]);
    for (size_t i = 0; i < width; ++i) {
      out[i] = static_cast<uint8_t>(
          encode(value_format, values[i] / scale, Overflow::kSaturate, value_limit));
    }
  }
}

void dequantize_blocks(std::span<const uint8_t> codes, std::span<const uint8_t> scales,
                       int64_t block, NumericFormat value_format, NumericFormat scale_format,
                       std::span<float> row) {
  const size_t width = static_cast<size_t>(block);
  DEEPINFER_ASSERT(row.size() % width == 0, "row " << row.size() << ", block " << block);
  DEEPINFER_ASSERT(codes.size() == row.size(), "codes " << codes.size() << ", row " << row.size());
  DEEPINFER_ASSERT(scales.size() == row.size() / width,
                   "scales " << scales.size() << ", blocks " << row.size() / width);
  for (size_t i = 0; i < row.size(); ++i) {
    row[i] = decode(value_format, codes[i]) * decode(scale_format, scales[i / width]);
  }
}

}  // namespace

const FormatInfo& format_info(NumericFormat format) { return kInfos[static_cast<size_t>(format)]; }

std::span<const FormatInfo> all_formats() { return kInfos; }

NumericFormat parse_format(std::string_view name) {
  std::vector<std::string_view> names;
  std::string list;
  for (const FormatInfo& info : kInfos) {
    if (info.name == name) return info.format;
    names.push_back(info.name);
    list += (list.empty() ? "" : ", ") + std::string(info.name);
  }
  throw ConfigError({.what = "unknown number format",
                     .where = {},
                     .expected = "one of " + list,
                     .found = std::string(name),
                     .remedy = did_you_mean(name, names)});
}

float decode(NumericFormat format, uint32_t code) {
  const FormatInfo& info = format_info(format);
  DEEPINFER_ASSERT(code >> info.bits == 0, info.name << " code " << code);
  const uint32_t sign = code & sign_mask(info);
  const uint32_t magnitude = code ^ sign;
  const uint32_t max_code = special_codes(format).max_code;
  if (magnitude <= max_code) return float_of(sign != 0, magnitude_of(info, magnitude));
  if (info.has_infinity && magnitude == max_code + 1) {
    return std::bit_cast<float>(sign != 0 ? kFloatSign | kFloatInfinity : kFloatInfinity);
  }
  return std::bit_cast<float>(kFloatNaN);
}

uint32_t encode(NumericFormat format, float value, Overflow overflow, double limit) {
  const FormatInfo& info = format_info(format);
  const SpecialCodes& special = special_codes(format);
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const bool negative = (bits & kFloatSign) != 0;
  const uint32_t magnitude_bits = bits & ~kFloatSign;

  const auto not_a_number = [&]() {
    DEEPINFER_ASSERT(info.has_nan, "NaN or overflow in " << info.name << ", which has no NaN");
    return special.nan_code;
  };
  if (magnitude_bits > kFloatInfinity) return not_a_number();
  // Without a sign bit a negative number has no nearest code (-0 is 0).
  if (negative && !info.has_sign && magnitude_bits != 0) return not_a_number();

  uint32_t largest = special.max_code;
  if (limit > 0) {
    overflow = Overflow::kSaturate;
    largest =
        nearest_code(info, magnitude_of_float(std::bit_cast<uint32_t>(static_cast<float>(limit))));
    DEEPINFER_ASSERT(largest <= special.max_code && decode(format, largest) == limit,
                     "limit " << limit << " is not a value of " << info.name);
  }

  const uint32_t sign = negative ? sign_mask(info) : 0;
  const uint32_t code = magnitude_bits == kFloatInfinity
                            ? special.max_code + 1
                            : nearest_code(info, magnitude_of_float(magnitude_bits));
  if (code <= largest) return sign | code;
  if (overflow == Overflow::kSaturate) return sign | largest;
  return info.has_infinity ? sign | (special.max_code + 1) : not_a_number();
}

float power_of_two_at_least(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  DEEPINFER_ASSERT(bits != 0 && bits < kFloatInfinity, "x " << x << " is not finite and positive");
  if (bits <= kFloatMantissaMask) return std::bit_cast<float>(std::bit_ceil(bits));  // subnormal
  // Exponent plus one if any mantissa bit is set. Above 2^127 this is infinity, as 2^128 would be.
  return std::bit_cast<float>((bits + kFloatMantissaMask) & ~kFloatMantissaMask);
}

uint8_t e8m0_from_power_of_two(float power) {
  const uint32_t bits = std::bit_cast<uint32_t>(power);
  constexpr uint32_t kSmallest = 1u << (kFloatMantissaBits - 1);  // 2^-127, an fp32 subnormal
  if (bits == kSmallest) return 0;
  DEEPINFER_ASSERT((bits & kFloatMantissaMask) == 0 && bits > 0 && bits < kFloatInfinity,
                   power << " is not a power of two in [2^-127, 2^127]");
  return static_cast<uint8_t>(bits >> kFloatMantissaBits);
}

void quantize_aq32(std::span<const float> row, double fp8_max, std::span<uint8_t> codes,
                   std::span<uint8_t> scales) {
  DEEPINFER_ASSERT(fp8_max > 0, "fp8_max " << fp8_max);
  // The source multiplies by the fp32 reciprocal; dividing rounds differently (model-verified.md 3,
  // QA).
  const float reciprocal = static_cast<float>(1.0 / fp8_max);
  const auto scale_code = [reciprocal](float amax) {
    return e8m0_from_power_of_two(power_of_two_at_least(std::max(amax, 1e-4f) * reciprocal));
  };
  quantize_blocks(row, kScaleBlock, NumericFormat::kE4M3FN, fp8_max, NumericFormat::kE8M0,
                  scale_code, codes, scales);
}

void quantize_fq4_32(std::span<const float> row, std::span<uint8_t> codes,
                     std::span<uint8_t> scales) {
  const auto scale_code = [](float amax) {
    constexpr float kReciprocal = static_cast<float>(1.0 / 6.0);
    constexpr float kFloor = static_cast<float>(6 * pow2(-126));  // keeps the scale a normal fp32
    return e8m0_from_power_of_two(power_of_two_at_least(std::max(amax, kFloor) * kReciprocal));
  };
  quantize_blocks(row, kScaleBlock, NumericFormat::kE2M1, 0, NumericFormat::kE8M0, scale_code,
                  codes, scales);
}

void quantize_fq4_16(std::span<const float> row, double fp8_max, std::span<uint8_t> codes,
                     std::span<uint8_t> scales) {
  DEEPINFER_ASSERT(fp8_max > 0, "fp8_max " << fp8_max);
  const auto scale_code = [fp8_max](float amax) {
    constexpr float kFloor = static_cast<float>(6 * pow2(-9));  // keeps the e4m3 scale above 0
    return static_cast<uint8_t>(encode(NumericFormat::kE4M3FN, std::max(amax, kFloor) / 6.0f,
                                       Overflow::kSaturate, fp8_max));
  };
  quantize_blocks(row, kFp4ScaleBlock16, NumericFormat::kE2M1, 0, NumericFormat::kE4M3FN,
                  scale_code, codes, scales);
}

void dequantize_aq32(std::span<const uint8_t> codes, std::span<const uint8_t> scales,
                     std::span<float> row) {
  dequantize_blocks(codes, scales, kScaleBlock, NumericFormat::kE4M3FN, NumericFormat::kE8M0, row);
}

void dequantize_fq4_32(std::span<const uint8_t> codes, std::span<const uint8_t> scales,
                       std::span<float> row) {
  dequantize_blocks(codes, scales, kScaleBlock, NumericFormat::kE2M1, NumericFormat::kE8M0, row);
}

void dequantize_fq4_16(std::span<const uint8_t> codes, std::span<const uint8_t> scales,
                       std::span<float> row) {
  dequantize_blocks(codes, scales, kFp4ScaleBlock16, NumericFormat::kE2M1, NumericFormat::kE4M3FN,
                    row);
}

}  // namespace deepinfer
