// What the GEMM implementations share: the problem they get, exact decoding of one element, and
// scratch memory.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "sim/kernels/gemm.h"

namespace deepinfer::gemm_internal {

inline constexpr int64_t kBlock = 32;  // k of one C2.1 block, and of one scale
inline constexpr int64_t kStripRows =
    32;  // rows of W that a bf16 kernel takes at a time: one row of scale tiles
inline constexpr uint16_t kBf16Nan = 0x7FC0;
inline constexpr uint32_t kFp32Nan = 0x7FC00000;
inline constexpr int kNanScale = 255;

struct GemmProblem {
  int64_t m, n, k;
  GemmOperand a, w;
  GemmOutput c;
};

// One implementation, on the calling thread, inside a FloatScope.
struct GemmKernels {
  void (*bf16)(const GemmProblem& problem);  // C2.1
  void (*fp32)(const GemmProblem& problem);  // C2.2
};
const GemmKernels& scalar_gemm_kernels();
const GemmKernels& vector_gemm_kernels(Target target);  // a Highway target, or kScalar
void amx_gemm_bf16(const GemmProblem& problem);

inline int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }
inline int64_t round_up(int64_t x, int64_t y) { return ceil_div(x, y) * y; }

// ---- One element, exactly (C2.4). The vector decoders call these where a block is out of the
// ordinary.

// sign * significand * 2^(exponent + scale - 127) as bf16; significand < 16 in units of 2^exponent.
inline uint16_t scaled_to_bf16(uint32_t sign, uint32_t significand, int exponent, int scale) {
  const uint16_t sign_bit = static_cast<uint16_t>(sign << 15);
  if (scale == kNanScale) return kBf16Nan;
  if (significand == 0) return sign_bit;
  const int top = std::bit_width(significand) - 1;
  const int biased = top + exponent + scale;  // bias 127 cancels the scale's
  if (biased < 1) return sign_bit;            // below 2^-126: zero of its sign
  if (biased > 254) return static_cast<uint16_t>(sign_bit | 0x7F80);
  const uint32_t mantissa = (significand << (7 - top)) & 0x7F;
  return static_cast<uint16_t>(sign_bit | (static_cast<uint32_t>(biased) << 7) | mantissa);
}

inline uint16_t fp8_to_bf16(uint8_t code, int scale) {
  const uint32_t magnitude = code & 0x7Fu;
  if (magnitude == 0x7F) return kBf16Nan;
  const uint32_t exponent = magnitude >> 3;
  const uint32_t mantissa = magnitude & 7;
  // Normal: (8 + mantissa) * 2^(exponent - 7 - 3). Subnormal: mantissa * 2^(-6 - 3).
  return exponent == 0
             ? scaled_to_bf16(code >> 7, mantissa, -9, scale)
             : scaled_to_bf16(code >> 7, 8 + mantissa, static_cast<int>(exponent) - 10, scale);
}

inline uint16_t fp4_to_bf16(uint8_t code, int scale) {
  const uint32_t exponent = (code >> 1) & 3u;
  const uint32_t mantissa = code & 1u;
  // Normal: (2 + mantissa) * 2^(exponent - 1 - 1). Subnormal: mantissa * 2^-1.
  return exponent == 0 ? scaled_to_bf16((code >> 3) & 1u, mantissa, -1, scale)
                       : scaled_to_bf16((code >> 3) & 1u, 2 + mantissa,
                                        static_cast<int>(exponent) - 2, scale);
}

// Scales for which code * scale is a normal bf16 number for every code but 0 and NaN: e4m3 spans
// 2^-9 to 1.75 * 2^8, e2m1 spans 2^-1 to 1.5 * 2^2. The vector decoders add such a scale to the
// exponent field.
inline constexpr int kFp8MinScale = 10, kFp8MaxScale = 246;
inline constexpr int kFp4MinScale = 2, kFp4MaxScale = 252;

inline float bf16_to_fp32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// One row of an operand.
struct RowView {
  const uint8_t* data;    // its first byte
  const uint8_t* scales;  // its scale of k = 0, or null
};

inline RowView row_of(const GemmOperand& x, int64_t row) {
  const int64_t element_bytes = x.type == GemmType::kFp32 ? 4 : x.type == GemmType::kBf16 ? 2 : 1;
  // scale_rows is 1 or 32 (checked at the entry), and a division would cost more than a block's
  // decoding.
  const int64_t scale_row = x.scale_rows == 1 ? row : row / kStripRows;
  return {static_cast<const uint8_t*>(x.data) + row * x.row_stride * element_bytes,
          x.scales == nullptr ? nullptr : x.scales + scale_row * x.scale_stride};
}

inline int scale_at(const RowView& row, int64_t k) {
  return row.scales == nullptr ? 127 : row.scales[k / kBlock];
}

// Element k of a row of type kBf16, kFp8 or kFp4 as bf16.
inline uint16_t element_bf16(GemmType type, const RowView& row, int64_t k) {
  if (type == GemmType::kBf16) return reinterpret_cast<const uint16_t*>(row.data)[k];
  const int scale = scale_at(row, k);
  if (type == GemmType::kFp8) return fp8_to_bf16(row.data[k], scale);
  return fp4_to_bf16(static_cast<uint8_t>((row.data[k / 2] >> (4 * (k % 2))) & 15), scale);
}

inline float element_fp32(GemmType type, const RowView& row, int64_t k) {
  return type == GemmType::kFp32 ? reinterpret_cast<const float*>(row.data)[k]
                                 : bf16_to_fp32(element_bf16(type, row, k));
}

// C1.4, with the NaN of C2.7.
inline uint16_t round_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return kBf16Nan;
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline void store_element(const GemmOutput& c, int64_t row, int64_t column, float value) {
  const int64_t at = row * c.row_stride + column;
  if (c.type == GemmType::kBf16) {
    static_cast<uint16_t*>(c.data)[at] = round_to_bf16(value);
  } else {
    static_cast<float*>(c.data)[at] = value != value ? std::bit_cast<float>(kFp32Nan) : value;
  }
}

// Rows [row, ...) and columns [column, ...) of an output.
inline GemmOutput output_from(const GemmOutput& c, int64_t row, int64_t column) {
  GemmOutput part = c;
  const int64_t at = row * c.row_stride + column;
  part.data = c.type == GemmType::kBf16 ? static_cast<void*>(static_cast<uint16_t*>(c.data) + at)
                                        : static_cast<void*>(static_cast<float*>(c.data) + at);
  return part;
}

// Rows [row, row + rows) and columns [column, column + columns) of a problem. Where rows of an
// operand share scales, the part begins with the first of them.
inline GemmProblem part_of(const GemmProblem& p, int64_t row, int64_t rows, int64_t column,
                           int64_t columns) {
  const int64_t first_row = row / p.a.scale_rows * p.a.scale_rows;
  const int64_t first_column = column / p.w.scale_rows * p.w.scale_rows;
  GemmProblem part = p;
  part.m = row + rows - first_row;
  part.n = column + columns - first_column;
  part.a = p.a.from_row(first_row);
  part.w = p.w.from_row(first_column);
  part.c = output_from(p.c, first_row, first_column);
  return part;
}

// Grows and never shrinks; contents do not survive a call. One per purpose and thread, since a
// fresh megabyte from the system costs more in page faults than a small GEMM.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch() { std::free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // At least `count` elements, aligned to a cache line, contents undefined.
  template <typename T>
  T* get(int64_t count) {
    const size_t bytes =
        static_cast<size_t>(round_up(std::max<int64_t>(count, 1) * sizeof(T), 4096));
    if (bytes > bytes_) {
      std::free(data_);
      data_ = std::aligned_alloc(4096, bytes);
      bytes_ = data_ == nullptr ? 0 : bytes;
      if (data_ == nullptr) throw std::bad_alloc();
    }
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// What a bf16 or fp32 kernel keeps between its blocks.
struct GemmScratch {
  Scratch activations;                         // packed A
  Scratch weights;                             // one or two blocks of packed W
  Scratch accumulators;                        // between K blocks
  Scratch rows;                                // small temporaries
  Scratch scalar_activations, scalar_weights;  // of the scalar twin, which others fall back to
};
// Scratch memory of the calling thread: no state, only memory that is not given back at once.
GemmScratch& gemm_scratch();

}  // namespace deepinfer::gemm_internal
