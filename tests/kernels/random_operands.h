// Test data of the kernel tests: a counter-based random stream, and operands whose values provoke
// what goes wrong.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "platform/random.h"
#include "sim/kernels/gemm.h"

namespace deepinfer {

// What the values of an operand are like.
enum class Values {
  kOrdinary,  // random mantissa, exponents over 2^-10 .. 2^10, some zeros of both signs
  kTiny,      // products around 2^-126, where results become subnormal
  kAny,       // every bit pattern but infinity and NaN: subnormals, overflow
  kSpecial,   // kOrdinary with infinities and NaN strewn in
};
inline constexpr int64_t kValueKinds = 4;

inline float random_fp32(RandomStream& random, Values values) {
  const uint32_t bits = random.word();
  const uint32_t kind = random.word() % 64;
  const uint32_t sign = bits & 0x80000000;
  if (kind == 0) return std::bit_cast<float>(sign);
  const auto with_exponent = [&](int64_t biased) {
    return std::bit_cast<float>(sign | static_cast<uint32_t>(biased) << 23 | (bits & 0x7FFFFF));
  };
  switch (values) {
    case Values::kOrdinary:
      return with_exponent(127 - 10 + random.below(21));
    case Values::kTiny:
      // Two of them multiply to about 2^-126; few bits of mantissa, so that sums cancel.
      return std::bit_cast<float>(sign |
                                  static_cast<uint32_t>(127 - 63 - 2 + random.below(5)) << 23 |
                                  (bits & (kind < 32 ? 0x7F0000u : 0x700000u)));
    case Values::kAny:
      return with_exponent(random.below(255));
    case Values::kSpecial:
      if (kind == 1 && random.word() % 32 == 0) return std::bit_cast<float>(sign | 0x7F800000);
      if (kind == 2 && random.word() % 128 == 0) return std::bit_cast<float>(sign | 0x7FA00001);
      return with_exponent(127 - 10 + random.below(21));
  }
  return 0;
}

// A random operand [rows, K] and the memory it points to, which has the exact size that the operand
// needs.
struct RandomOperand {
  GemmOperand operand;
  std::vector<float> fp32;
  std::vector<uint16_t> bf16;
  std::vector<uint8_t> codes, scales;
};

// `tiles`: an fp8 operand with a scale for 32 x 32 values, else for 32 of a row.
inline RandomOperand random_operand(RandomStream& random, GemmType type, bool tiles, int64_t rows,
                                    int64_t k, Values values) {
  RandomOperand x;
  const int64_t width = type == GemmType::kFp4 ? (k + 1) / 2 : k;
  const int64_t stride = width + random.below(3) * (type == GemmType::kFp32 ? 5 : 7);
  const size_t size = rows == 0 ? 0 : static_cast<size_t>((rows - 1) * stride + width);
  if (type == GemmType::kFp32) {
    x.fp32.resize(size);
    for (float& value : x.fp32) value = random_fp32(random, values);
    x.operand = fp32_operand(x.fp32.data(), stride);
    return x;
  }
  if (type == GemmType::kBf16) {
    x.bf16.resize(size);
    for (uint16_t& value : x.bf16) {
      // A NaN whose payload lies below bf16 would become infinity: fine, both are special.
      value = static_cast<uint16_t>(std::bit_cast<uint32_t>(random_fp32(random, values)) >> 16);
    }
    x.operand = bf16_operand(x.bf16.data(), stride);
    return x;
  }
  x.codes.resize(size);
  for (uint8_t& code : x.codes) {
    code = static_cast<uint8_t>(random.word());
    const bool is_nan = type == GemmType::kFp8 && (code & 0x7F) == 0x7F;
    if (is_nan && (values != Values::kSpecial || random.word() % 64 != 0)) code ^= 0x18;
  }
  const int64_t blocks = (k + 31) / 32;
  const int64_t scale_stride = blocks + random.below(3);
  const int64_t scale_rows = tiles ? (rows + 31) / 32 : rows;
  x.scales.resize(scale_rows == 0 ? 0
                                  : static_cast<size_t>((scale_rows - 1) * scale_stride + blocks));
  for (uint8_t& scale : x.scales) {
    switch (values) {
      case Values::kOrdinary:
        scale = static_cast<uint8_t>(127 - 8 + random.below(17));
        break;
      case Values::kTiny:
        scale = static_cast<uint8_t>(127 - 63 - 4 + random.below(5));
        break;
      case Values::kAny:
        scale = static_cast<uint8_t>(random.below(255));
        break;
      case Values::kSpecial:
        scale = static_cast<uint8_t>(random.word() % 64 == 0 ? 240 + random.below(16)
                                                             : 127 - 8 + random.below(17));
        break;
    }
  }
  x.operand = type == GemmType::kFp4
                  ? fp4_operand(x.codes.data(), stride, x.scales.data(), scale_stride)
              : tiles ? fp8_tiles_operand(x.codes.data(), stride, x.scales.data(), scale_stride)
                      : fp8_rows_operand(x.codes.data(), stride, x.scales.data(), scale_stride);
  return x;
}

}  // namespace deepinfer
