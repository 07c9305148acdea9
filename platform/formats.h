// The narrow number formats of the deployment, as plain and obviously right code: decode, encode,
// scales.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace deepinfer {

enum class NumericFormat { kE4M3FN, kE4M3, kE5M2, kE3M4, kE2M1, kE8M0, kBF16 };

// What happens to |x| above the largest finite value on encode (trn2.md 2.3).
enum class Overflow {
  kSaturate,  // to +-max (or +-limit)
  kInfinity,  // to infinity where the format has one, else NaN
};

// Layout and limits of a format (trn2.md 2.1).
struct FormatInfo {
  NumericFormat format;
  std::string_view name;  // "e4m3fn", "e4m3", "e5m2", "e3m4", "e2m1", "e8m0", "bf16"
  int bits;
  int exponent_bits;
  int mantissa_bits;
  int bias;
  bool has_sign;
  bool has_infinity;
  bool has_nan;
  double max_finite;
  double min_normal;
  double min_subnormal;  // 0 where the format has no subnormals
};

const FormatInfo& format_info(NumericFormat format);
std::span<const FormatInfo> all_formats();
// Throws ConfigError that names the nearest known format.
NumericFormat parse_format(std::string_view name);

// Exact value of a code. Bits above the format's width must be 0 (asserted).
float decode(NumericFormat format, uint32_t code);
// Nearest code, ties to even, from the fp32 value in one rounding. NaN encodes to the format's
// canonical NaN; formats without NaN (e2m1) assert. `limit` > 0 saturates at a smaller magnitude
// that must be a value of the format (fp8_max 448 / 240 / 224).
uint32_t encode(NumericFormat format, float value, Overflow overflow, double limit = 0);

// Smallest power of two >= x, for finite x > 0, read off the bits: exponent, plus one if any
// mantissa bit is set (model-verified.md 3, "P2"). Subnormal x and results are handled exactly.
float power_of_two_at_least(float x);
// e8m0 code of a power of two in [2^-127, 2^127] (asserted).
uint8_t e8m0_from_power_of_two(float power);

inline constexpr int64_t kScaleBlock = 32;       // values that share an AQ32, FQ8 or FQ4-32 scale
inline constexpr int64_t kFp4ScaleBlock16 = 16;  // values that share an FQ4-16 scale

// Block quantisers on one row (model-verified.md 3: QA, QI, QC). `row` is a multiple of the block
// long (asserted); codes[i] is one byte a value (e2m1 codes unpacked), scales one byte a block.
void quantize_aq32(std::span<const float> row, double fp8_max, std::span<uint8_t> codes,
                   std::span<uint8_t> scales);  // scales e8m0
void quantize_fq4_32(std::span<const float> row, std::span<uint8_t> codes,
                     std::span<uint8_t> scales);  // scales e8m0
void quantize_fq4_16(std::span<const float> row, double fp8_max, std::span<uint8_t> codes,
                     std::span<uint8_t> scales);  // scales e4m3
// The inverse of each.
void dequantize_aq32(std::span<const uint8_t> codes, std::span<const uint8_t> scales,
                     std::span<float> row);
void dequantize_fq4_32(std::span<const uint8_t> codes, std::span<const uint8_t> scales,
                       std::span<float> row);
void dequantize_fq4_16(std::span<const uint8_t> codes, std::span<const uint8_t> scales,
                       std::span<float> row);

}  // namespace deepinfer
