// CANONICAL.md written down one operation at a time, for numbers that are not subnormal: what
// kernel tests compare with.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sim/kernels/math.h"
#include "sim/kernels/row_view.h"
#include "tests/kernels/rows/random_data.h"

namespace deepinfer::literal {

inline float function(MathFunction f, float x) {
  float result;
  evaluate(f, {&x, 1}, {&result, 1}, Target::kScalar);
  return result;
}
inline float exp(float x) { return function(MathFunction::kExp, x); }
inline float log(float x) { return function(MathFunction::kLog, x); }
inline float sigmoid(float x) { return function(MathFunction::kSigmoid, x); }

inline float combine(float (&lanes)[16]) {
  for (int half = 8; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) lanes[j] = lanes[j] + lanes[j + half];
  }
  return lanes[0];
}
// C2.2.
inline float dot_fp32(std::span<const float> a, std::span<const float> b) {
  float lanes[16] = {};
  for (size_t k = 0; k < a.size(); ++k) lanes[k % 16] = std::fma(a[k], b[k], lanes[k % 16]);
  return combine(lanes);
}
// C2.1.
inline float dot_bf16(std::span<const float> a, std::span<const float> b) {
  float acc = 0;
  for (size_t k0 = 0; k0 < a.size(); k0 += 32) {
    float even = 0, odd = 0;
    for (size_t k = k0; k < k0 + 32; k += 2) {
      even = std::fma(k < a.size() ? a[k] : 0.0f, k < a.size() ? b[k] : 0.0f, even);
      odd = std::fma(k + 1 < a.size() ? a[k + 1] : 0.0f, k + 1 < a.size() ? b[k + 1] : 0.0f, odd);
    }
    acc = acc + (even + odd);
  }
  return acc;
}
inline float round_bf16(float x) { return from_bf16(to_bf16(x)); }

// 1 / sqrt(sum of squares / n + eps).
inline float inverse_rms(std::span<const float> x, float eps) {
  return 1.0f / std::sqrt(dot_fp32(x, x) / static_cast<float>(x.size()) + eps);
}

// Random numbers as the type that a kernel gets, and the same as fp32.
struct Data {
  Data(std::vector<float> values, bool bf16) : is_bf16(bf16), wide(std::move(values)) {
    if (bf16) narrow = to_bf16(wide), wide = from_bf16(narrow);
  }
  RowView rows(int64_t count) const {
    const int64_t columns = count == 0 ? 0 : static_cast<int64_t>(wide.size()) / count;
    return is_bf16 ? view(narrow.data(), count, columns) : view(wide.data(), count, columns);
  }
  std::span<const float> row(int64_t index, int64_t columns) const {
    return std::span(wide).subspan(static_cast<size_t>(index * columns),
                                   static_cast<size_t>(columns));
  }
  bool is_bf16;
  std::vector<float> wide;
  std::vector<uint16_t> narrow;
};

// A result of `rows` rows in one of the two types, with a row of guards behind it.
struct Result {
  Result(int64_t row_count, int64_t column_count, bool bf16)
      : is_bf16(bf16),
        rows(row_count),
        columns(column_count),
        wide(static_cast<size_t>((row_count + 1) * column_count), -77.0f),
        narrow(wide.size(), 0x7777) {}
  MutableRowView out() {
    return is_bf16 ? view(narrow.data(), rows, columns) : view(wide.data(), rows, columns);
  }
  // Elements that differ in bits from `expected`, which is fp32 and is rounded here; guards count
  // too.
  int64_t wrong(std::span<const float> expected) const {
    int64_t count = static_cast<int64_t>(expected.size()) == rows * columns ? 0 : 1;
    for (size_t i = 0; i < wide.size(); ++i) {
      const bool guard = i >= expected.size();
      if (is_bf16) {
        count += narrow[i] != (guard ? 0x7777 : to_bf16(expected[i])) ? 1 : 0;
      } else {
        count += std::bit_cast<uint32_t>(wide[i]) !=
                         std::bit_cast<uint32_t>(guard ? -77.0f : expected[i])
                     ? 1
                     : 0;
      }
    }
    return count;
  }
  bool is_bf16;
  int64_t rows, columns;
  std::vector<float> wide;
  std::vector<uint16_t> narrow;
};

inline int64_t different(std::span<const float> a, std::span<const float> b) {
  int64_t count = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    count += std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]) ? 1 : 0;
  }
  return count;
}

}  // namespace deepinfer::literal
