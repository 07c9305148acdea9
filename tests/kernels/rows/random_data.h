// Random test data by Philox4x32-10: a pure function of (seed, op, case), so that one line repeats
// a case.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "platform/random.h"

namespace deepinfer {

// Nearest even, for finite values.
inline uint16_t to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
inline float from_bf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// The project's stream of (seed, op, case), with the values that row kernels are given.
class RandomData : public RandomStream {
 public:
  RandomData(uint64_t seed, uint32_t op, uint32_t case_number)
      : RandomStream(seed, uint64_t{op}, case_number) {}

  uint32_t bits() { return word(); }
  // Near zero mostly, of every sign, with exponents spread over 2^-spread to 2^spread.
  float spread(int exponents) {
    return uniform() * std::bit_cast<float>(
                           static_cast<uint32_t>(127 + below(2 * exponents + 1) - exponents) << 23);
  }
  std::vector<float> uniforms(int64_t count, float scale = 1) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = uniform() * scale;
    return values;
  }
  std::vector<float> spreads(int64_t count, int exponents) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = spread(exponents);
    return values;
  }
};

inline std::vector<uint16_t> to_bf16(std::span<const float> values) {
  std::vector<uint16_t> narrow;
  narrow.reserve(values.size());
  for (const float value : values) narrow.push_back(to_bf16(value));
  return narrow;
}
inline std::vector<float> from_bf16(std::span<const uint16_t> values) {
  std::vector<float> wide;
  wide.reserve(values.size());
  for (const uint16_t value : values) wide.push_back(from_bf16(value));
  return wide;
}

}  // namespace deepinfer
