// The block quantisers (CANONICAL.md C5), for one target. Included once per target by quantize.cpp
// and scalar_kernels.cpp. Bit-exact to platform/formats.h.
//
// A magnitude rounds to a grid with M mantissa bits by adding 2^(23 - M) times its binade: fp32
// then has no room for more than M bits below. Binades below the format's smallest count as that
// one, which rounds subnormals.

#if defined(DEEPINFER_SIM_QUANTIZE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_SIM_QUANTIZE_INL_H_
#undef DEEPINFER_SIM_QUANTIZE_INL_H_
#else
#define DEEPINFER_SIM_QUANTIZE_INL_H_
#endif

#include <algorithm>
#include <bit>

#include "sim/kernels/gemm_internal.h"
#include "sim/kernels/kernel_tables.h"
#include "sim/kernels/lanes-inl.h"

DEEPINFER_SIM_BEFORE_LANES();
namespace deepinfer::DEEPINFER_SIM_LANES_NAMESPACE {
#if DEEPINFER_SIM_HAVE_LANES
namespace {

inline constexpr int32_t kExponentField = 0x7F800000;
inline constexpr int64_t kBlock32 = 32;
inline constexpr int64_t kBlock16 = 16;
inline constexpr int64_t kBlocksAtOnce = kLanes;  // blocks whose scales are found in one lane group

// The smallest binades, as exponent fields: 2^-6 in e4m3, 2^0 in e2m1.
inline constexpr int32_t kE4m3LowestField = 121 << 23;
inline constexpr int32_t kE2m1LowestField = 127 << 23;
inline constexpr int kE4m3MantissaBits = 3;
inline constexpr int kE2m1MantissaBits = 1;
inline constexpr float kE2m1Max = 6.0f;

// What the quantisers round with: magnitude to the nearest multiple of 2^(binade - kMantissaBits).
template <int kMantissaBits, int32_t kLowestField>
inline I16 binade_field(F16 magnitude) {
  return max_int(bits(magnitude) & broadcast_int(kExponentField), broadcast_int(kLowestField));
}
template <int kMantissaBits>
inline F16 grid_magic(I16 field) {
  return from_bits(field + broadcast_int((23 - kMantissaBits) << 23));
}
template <int kMantissaBits, int32_t kLowestField>
inline F16 round_to_grid(F16 magnitude) {
  const F16 magic = grid_magic<kMantissaBits>(binade_field<kMantissaBits, kLowestField>(magnitude));
  return (magnitude + magic) - magic;
}
inline F16 round_e4m3(F16 magnitude) {
  return round_to_grid<kE4m3MantissaBits, kE4m3LowestField>(magnitude);
}
inline F16 round_e2m1(F16 magnitude) {
  return round_to_grid<kE2m1MantissaBits, kE2m1LowestField>(magnitude);
}

// For a magnitude below the smallest normal fp32 comparisons would flush (C1.2), so limits go by
// bits.
inline F16 limit_magnitude(F16 magnitude, float largest) {
  return from_bits(min_int(bits(magnitude), broadcast_int(std::bit_cast<int32_t>(largest))));
}

// max |x| of each of `blocks` <= 16 blocks, as bits; lanes past them are 0. NaN and infinity come
// out as the largest.
template <int64_t kBlock, typename T>
inline I16 block_maxima(const T* x, int64_t blocks) {
  alignas(64) float maxima[kLanes] = {};
  for (int64_t b = 0; b < blocks; ++b) {
    I16 largest = bits(absolute(load(x + b * kBlock)));
    for (int64_t i = kLanes; i < kBlock; i += kLanes) {
      largest = max_int(largest, bits(absolute(load(x + b * kBlock + i))));
    }
    maxima[b] = std::bit_cast<float>(largest_int(largest));
  }
  return bits(load(maxima));
}
inline bool any_not_finite(I16 maxima) { return any(maxima > broadcast_int(kExponentField - 1)); }

// ue8m0 of the smallest power of two >= max(amax, floor) * reciprocal: exponent, plus one if any
// mantissa bit is set.
inline I16 scale_codes(I16 maxima, float floor, float reciprocal) {
  const I16 raised = max_int(maxima, broadcast_int(std::bit_cast<int32_t>(floor)));
  const I16 target = bits(from_bits(raised) * broadcast(reciprocal));
  return shift_right_zero<23>(target + broadcast_int(0x007FFFFF));
}
inline constexpr float kAq32Floor = 1e-4f;
inline constexpr float kFq4Floor32 = 0x1.8p-124f;  // 6 * 2^-126: keeps the scale a normal fp32
inline constexpr float kFq4Floor16 = 0x1.8p-7f;    // 6 * 2^-9: keeps the e4m3 scale above 0
inline constexpr float kOneSixth = 1.0f / 6.0f;

// 1 / 2^(code - 127), for codes of 1 to 253.
inline F16 inverse_scales(I16 codes) {
  return from_bits(shift_left<23>(broadcast_int(254) - codes));
}
inline F16 scale_values(I16 codes) { return from_bits(shift_left<23>(codes)); }

// The blocks of a row that are worked on together: `count` <= 16 of them from block `first` on.
struct BlockGroup {
  int64_t row, first, count;
  I16 maxima;
};

// Calls quantise(group, x of the group's first element) for all groups of x, in order. Returns the
// first row with a NaN or an infinity, or -1.
template <int64_t kBlock, typename T, typename Quantise>
inline int64_t for_block_groups(const RowView& x, const Quantise& quantise) {
  const int64_t blocks = x.columns / kBlock;
  for (int64_t row = 0; row < x.rows; ++row) {
    for (int64_t b = 0; b < blocks; b += kBlocksAtOnce) {
      const int64_t count = std::min(kBlocksAtOnce, blocks - b);
      const T* from = x.row<T>(row) + b * kBlock;
      const I16 maxima = block_maxima<kBlock>(from, count);
      if (any_not_finite(maxima)) return row;
      quantise(BlockGroup{row, b, count, maxima}, from);
    }
  }
  return -1;
}

// Power-of-two scales of a group's blocks, and their inverses.
struct GroupScales {
  inline explicit GroupScales(I16 scale_codes) {
    store_bits(inverse_scales(scale_codes), inverses);
    store_bits(scale_values(scale_codes), values);
  }
  alignas(64) float inverses[kLanes], values[kLanes];
};

// e4m3fn codes of x * inverse: the count of quanta, plus eight for each binade above the lowest. A
// magnitude that rounds up to the next binade has 16 quanta, which is that binade's first code.
template <typename T>
inline I16 aq32_codes(const T* x, F16 inverse, float fp8_max) {
  const F16 value = load(x);
  const F16 magnitude = limit_magnitude(absolute(value) * inverse, fp8_max);
  const I16 field = binade_field<kE4m3MantissaBits, kE4m3LowestField>(magnitude);
  const F16 magic = grid_magic<kE4m3MantissaBits>(field);
  const I16 quanta = bits(magnitude + magic) - bits(magic);
  const I16 binades = shift_right_zero<20>(field) - broadcast_int(kE4m3LowestField >> 20);
  return (quanta + binades) | (shift_right_zero<24>(bits(value)) & broadcast_int(0x80));
}

template <typename T>
struct Aq32 {
  float fp8_max, reciprocal;
  uint8_t* codes;
  int64_t code_stride;
  uint8_t* scales;
  int64_t scale_stride;

  inline void operator()(const BlockGroup& group, const T* from) const {
    uint8_t* to = codes + group.row * code_stride + group.first * kBlock32;
    const I16 block_scales = scale_codes(group.maxima, kAq32Floor, reciprocal);
    alignas(64) uint8_t scale_bytes[kLanes];
    alignas(64) float inverses[kLanes];
    store_bytes(block_scales, scale_bytes);
    store_bits(inverse_scales(block_scales), inverses);
    std::copy_n(scale_bytes, group.count, scales + group.row * scale_stride + group.first);
    for (int64_t i = 0; i < group.count; ++i, from += kBlock32, to += kBlock32) {
      const F16 inverse = broadcast(inverses[i]);
      store_bytes(aq32_codes(from, inverse, fp8_max), to);
      store_bytes(aq32_codes(from + kLanes, inverse, fp8_max), to + kLanes);
    }
  }
};

template <typename T>
int64_t aq32_rows(const RowView& x, float fp8_max, uint8_t* codes, int64_t code_stride,
                  uint8_t* scales, int64_t scale_stride) {
  return for_block_groups<kBlock32, T>(
      x, Aq32<T>{fp8_max, 1.0f / fp8_max, codes, code_stride, scales, scale_stride});
}

int64_t aq32(const RowView& x, float fp8_max, uint8_t* codes, int64_t code_stride, uint8_t* scales,
             int64_t scale_stride) {
  return x.type == ElementType::kBf16
             ? aq32_rows<uint16_t>(x, fp8_max, codes, code_stride, scales, scale_stride)
             : aq32_rows<float>(x, fp8_max, codes, code_stride, scales, scale_stride);
}

template <typename T>
struct FakeAq32 {
  float fp8_max, reciprocal;
  MutableRowView y;

  inline void operator()(const BlockGroup& group, const T* from) const {
    T* to = y.row<T>(group.row) + group.first * kBlock32;
    const GroupScales scales(scale_codes(group.maxima, kAq32Floor, reciprocal));
    for (int64_t i = 0; i < group.count * kBlock32; i += kLanes) {
      const F16 value = load(from + i);
      const F16 inverse = broadcast(scales.inverses[i / kBlock32]);
      const F16 magnitude = round_e4m3(limit_magnitude(absolute(value) * inverse, fp8_max));
      store(with_sign_of(magnitude * broadcast(scales.values[i / kBlock32]), value), to + i);
    }
  }
};

template <typename T>
int64_t fake_aq32_rows(const RowView& x, float fp8_max, const MutableRowView& y) {
  return for_block_groups<kBlock32, T>(x, FakeAq32<T>{fp8_max, 1.0f / fp8_max, y});
}

int64_t fake_aq32(const RowView& x, float fp8_max, const MutableRowView& y) {
  return x.type == ElementType::kBf16 ? fake_aq32_rows<uint16_t>(x, fp8_max, y)
                                      : fake_aq32_rows<float>(x, fp8_max, y);
}

// A subnormal x is below an eighth of a scale of 2^-123 or more, and rounds to zero whether it was
// flushed or not. Below, x / s is made from x's bits, and half a scale of 2^-126 is written as
// bits.
inline constexpr int kTinyScale = 4;

template <typename T>
inline F16 tiny_fq4_32(const T* x, int scale) {
  const F16 value = load(x);
  const I16 magnitude_bits = bits(absolute(value));
  const auto power = [](int field) {
    return std::bit_cast<float>(static_cast<uint32_t>(field) << 23);
  };
  // A subnormal is `bits` * 2^-149; 1 / s = 2^(127 - scale).
  const F16 from_subnormal = float_of(magnitude_bits) * broadcast(power(127 - 149 + 127 - scale));
  const F16 from_normal = absolute(value) * broadcast(power(254 - scale));
  F16 magnitude = select(broadcast_int(0x00800000) > magnitude_bits, from_subnormal, from_normal);
  magnitude = round_e2m1(limit_magnitude(magnitude, kE2m1Max));
  F16 result = magnitude * broadcast(power(scale));
  if (scale == 1) {
    result = select(magnitude == broadcast(0.5f), from_bits(broadcast_int(0x00400000)), result);
  }
  return with_sign_of(result, value);
}

template <typename T>
struct FakeFq4Of32 {
  MutableRowView y;

  inline void operator()(const BlockGroup& group, const T* from) const {
    T* to = y.row<T>(group.row) + group.first * kBlock32;
    const GroupScales scales(scale_codes(group.maxima, kFq4Floor32, kOneSixth));
    for (int64_t i = 0; i < group.count * kBlock32; i += kLanes) {
      const float scale = scales.values[i / kBlock32];
      const int code = static_cast<int>(std::bit_cast<uint32_t>(scale) >> 23);
      if (code < kTinyScale) {
        store(tiny_fq4_32(from + i, code), to + i);
        continue;
      }
      const F16 value = load(from + i);
      const F16 inverse = broadcast(scales.inverses[i / kBlock32]);
      const F16 magnitude = round_e2m1(limit_magnitude(absolute(value) * inverse, kE2m1Max));
      store(with_sign_of(magnitude * broadcast(scale), value), to + i);
    }
  }
};

template <typename T>
int64_t fake_fq4_32_rows(const RowView& x, const MutableRowView& y) {
  return for_block_groups<kBlock32, T>(x, FakeFq4Of32<T>{y});
}

int64_t fake_fq4_32(const RowView& x, const MutableRowView& y) {
  return x.type == ElementType::kBf16 ? fake_fq4_32_rows<uint16_t>(x, y)
                                      : fake_fq4_32_rows<float>(x, y);
}

template <typename T>
struct FakeFq4Of16 {
  float fp8_max;
  MutableRowView y;

  inline void operator()(const BlockGroup& group, const T* from) const {
    T* to = y.row<T>(group.row) + group.first * kBlock16;
    const I16 raised = max_int(group.maxima, broadcast_int(std::bit_cast<int32_t>(kFq4Floor16)));
    const F16 quotient = from_bits(raised) / broadcast(kE2m1Max);
    alignas(64) float scales[kLanes];
    store_bits(round_e4m3(limit_magnitude(quotient, fp8_max)), scales);
    for (int64_t i = 0; i < group.count; ++i) {
      const F16 value = load(from + i * kBlock16);
      const F16 scale = broadcast(scales[i]);
      const F16 magnitude = round_e2m1(limit_magnitude(absolute(value) / scale, kE2m1Max));
      store(with_sign_of(magnitude * scale, value), to + i * kBlock16);
    }
  }
};

template <typename T>
int64_t fake_fq4_16_rows(const RowView& x, float fp8_max, const MutableRowView& y) {
  return for_block_groups<kBlock16, T>(x, FakeFq4Of16<T>{fp8_max, y});
}

int64_t fake_fq4_16(const RowView& x, float fp8_max, const MutableRowView& y) {
  return x.type == ElementType::kBf16 ? fake_fq4_16_rows<uint16_t>(x, fp8_max, y)
                                      : fake_fq4_16_rows<float>(x, fp8_max, y);
}

// One value of an e4m3fn code and a ue8m0 scale, exactly: significand * 2^exponent.
inline float exact_product(uint8_t code, int scale) {
  const uint32_t magnitude = code & 0x7Fu;
  if (magnitude == 0x7F || scale == 0xFF) return std::bit_cast<float>(0x7FC00000u);
  const uint32_t sign = static_cast<uint32_t>(code >> 7) << 31;
  const uint32_t field = magnitude >> 3;
  const uint32_t significand = field == 0 ? magnitude : (magnitude & 7) | 8;
  const int exponent = (field == 0 ? -9 : static_cast<int>(field) - 10) + scale - 127;
  if (significand == 0) return std::bit_cast<float>(sign);
  const int top = std::bit_width(significand) - 1;
  const int biased = top + exponent + 127;
  if (biased > 254) return std::bit_cast<float>(sign | static_cast<uint32_t>(kExponentField));
  if (biased < 1) return std::bit_cast<float>(sign | (significand << (exponent + 149)));
  const uint32_t mantissa = (significand << (23 - top)) & 0x007FFFFF;
  return std::bit_cast<float>(sign | (static_cast<uint32_t>(biased) << 23) | mantissa);
}

template <typename T>
void dequantize_block(const uint8_t* codes, int scale, T* to) {
  alignas(64) float values[kBlock32];
  // Within these scales every product but zero is a normal bf16 number.
  if (scale < gemm_internal::kFp8MinScale || scale > gemm_internal::kFp8MaxScale) {
    for (int64_t i = 0; i < kBlock32; ++i) values[i] = exact_product(codes[i], scale);
    store(load(values), to);
    store(load(values + kLanes), to + kLanes);
    return;
  }
  for (int64_t i = 0; i < kBlock32; i += kLanes) {
    const I16 code = load_bytes(codes + i);
    const I16 magnitude = code & broadcast_int(0x7F);
    const I16 normal = shift_left<20>(magnitude) + broadcast_int((scale - 7) << 23);
    const I16 subnormal =
        bits(float_of(magnitude) *
             broadcast(std::bit_cast<float>(static_cast<uint32_t>(scale - 9) << 23)));
    I16 value = select(broadcast_int(8) > magnitude, subnormal, normal) |
                shift_left<24>(code & broadcast_int(0x80));
    value = select(magnitude == broadcast_int(0x7F), broadcast_int(0x7FC00000), value);
    store(from_bits(value), to + i);
  }
}

template <typename T>
void dequantize_rows(const uint8_t* codes, int64_t code_stride, const uint8_t* scales,
                     int64_t scale_stride, const MutableRowView& y) {
  for (int64_t row = 0; row < y.rows; ++row) {
    for (int64_t b = 0; b < y.columns / kBlock32; ++b) {
      dequantize_block(codes + row * code_stride + b * kBlock32, scales[row * scale_stride + b],
                       y.row<T>(row) + b * kBlock32);
    }
  }
}

void dequantize_aq32(const uint8_t* codes, int64_t code_stride, const uint8_t* scales,
                     int64_t scale_stride, const MutableRowView& y) {
  if (y.type == ElementType::kBf16) {
    dequantize_rows<uint16_t>(codes, code_stride, scales, scale_stride, y);
  } else {
    dequantize_rows<float>(codes, code_stride, scales, scale_stride, y);
  }
}

inline constexpr QuantizeKernels kQuantizeKernels = {aq32, dequantize_aq32, fake_aq32, fake_fq4_32,
                                                     fake_fq4_16};

}  // namespace
#endif  // DEEPINFER_SIM_HAVE_LANES
}  // namespace deepinfer::DEEPINFER_SIM_LANES_NAMESPACE
DEEPINFER_SIM_AFTER_LANES();

#endif  // include guard that Highway toggles per target
