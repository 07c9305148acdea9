// Coders of the narrow formats (CANONICAL.md C4), for one target. Included once per target by
// codec.cpp and scalar_kernels.cpp.
//
// A magnitude of a format with M mantissa bits and exponent bias B, in fp32 (bit-exact to
// platform/formats.h):
//
//   code            value
//   0 .. 2^M - 1    subnormal: code * 2^(1 - B - M), as an integer made fp32
//   .. max_code     normal: the code's bits moved up to fp32's fields, 127 - B added to the
//   exponent max_code + 1    infinity where the format has one above           NaN

#if defined(DEEPINFER_SIM_CODEC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_SIM_CODEC_INL_H_
#undef DEEPINFER_SIM_CODEC_INL_H_
#else
#define DEEPINFER_SIM_CODEC_INL_H_
#endif

#include <algorithm>

#include "sim/kernels/kernel_tables.h"
#include "sim/kernels/lanes-inl.h"

DEEPINFER_SIM_BEFORE_LANES();
namespace deepinfer::DEEPINFER_SIM_LANES_NAMESPACE {
#if DEEPINFER_SIM_HAVE_LANES
namespace {

inline constexpr int kFp32MantissaBits = 23;
inline constexpr int32_t kFp32Infinity = 0x7F800000;
inline constexpr int32_t kFp32Nan = 0x7FC00000;

// 2^exponent, normal.
inline float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << kFp32MantissaBits);
}

// Runs kernel(i) for whole groups of sixteen, and the rest through buffers.
template <typename From, typename To, typename Kernel>
inline void for_groups(const From* from, int64_t count, To* to, Kernel kernel) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) kernel(from + i, to + i);
  if (i < count) {
    alignas(64) From in[kLanes] = {};
    alignas(64) To out[kLanes];
    std::copy_n(from + i, count - i, in);
    kernel(in, out);
    std::copy_n(out, count - i, to + i);
  }
}

inline I16 decode_group(const CodecFormat& format, const uint8_t* codes) {
  const I16 code = load_bytes(codes);
  const I16 magnitude = code & broadcast_int((1 << format.value_bits) - 1);
  const I16 sign = shift_left<31>(shift_right_zero_by(code, format.value_bits));
  const I16 normal = shift_left_by(magnitude, kFp32MantissaBits - format.mantissa_bits) +
                     broadcast_int((127 - format.bias) << kFp32MantissaBits);
  const I16 subnormal =
      bits(float_of(magnitude) * broadcast(power_of_two(1 - format.bias - format.mantissa_bits)));
  const I16 finite =
      sign | select(broadcast_int(1 << format.mantissa_bits) > magnitude, subnormal, normal);
  const I16 above = format.has_infinity
                        ? select(magnitude == broadcast_int(format.max_code + 1),
                                 sign | broadcast_int(kFp32Infinity), broadcast_int(kFp32Nan))
                        : broadcast_int(kFp32Nan);
  return select(magnitude > broadcast_int(format.max_code), above, finite);
}

struct DecodeFp32 {
  const CodecFormat& format;
  inline void operator()(const uint8_t* codes, float* values) const {
    store_bits(from_bits(decode_group(format, codes)), values);
  }
};
struct DecodeBf16 {
  const CodecFormat& format;
  inline void operator()(const uint8_t* codes, uint16_t* values) const {
    store_halves(shift_right_zero<16>(decode_group(format, codes)), values);
  }
};

void decode_fp32(const CodecFormat& format, const uint8_t* codes, int64_t count, float* values) {
  for_groups(codes, count, values, DecodeFp32{format});
}
void decode_bf16(const CodecFormat& format, const uint8_t* codes, int64_t count, uint16_t* values) {
  for_groups(codes, count, values, DecodeBf16{format});
}

#ifdef DEEPINFER_SIM_SOFTWARE_LANES
void decode_e4m3fn_bf16(const CodecFormat& format, const uint8_t* codes, int64_t count,
                        uint16_t* values) {
  decode_bf16(format, codes, count, values);
}
#else
// e4m3fn to bf16 by bytes, a whole vector of codes at once. Code s eeee mmm gives, with e' = e +
// 120:
//
//   |code|        high byte               low byte
//   0x00 - 0x07   from a table, with s    from a table
//   0x08 - 0x7E   s e'[7:1]               e'[0] mmm 0000; e'[0] = e[0]
//   0x7F          0x7F                    0xC0
//
// The high byte of the second line depends on s and e[3:1], the upper nibble, alone: a table of
// sixteen.
using DBytes = hn::ScalableTag<uint8_t>;
using VBytes = hn::VFromD<DBytes>;

// `ordered` so that interleaving within 128-bit blocks gives codes in order: its lower half first
// in all blocks.
HWY_INLINE void decode_e4m3fn_bytes(VBytes ordered, uint16_t* values) {
  const DBytes d;
  const hn::Repartition<uint16_t, DBytes> d16;
  alignas(16) static constexpr uint8_t kHigh[16] = {0x3C, 0x3D, 0x3E, 0x3F, 0x40, 0x41, 0x42, 0x43,
                                                    0xBC, 0xBD, 0xBE, 0xBF, 0xC0, 0xC1, 0xC2, 0xC3};
  // m * 2^-9 for m = 0..7: 0, 0x3B00, 0x3B80, 0x3BC0, 0x3C00, 0x3C20, 0x3C40, 0x3C60.
  alignas(16) static constexpr uint8_t kSubnormalHigh[16] = {0x00, 0x3B, 0x3B, 0x3B,
                                                             0x3C, 0x3C, 0x3C, 0x3C};
  alignas(16) static constexpr uint8_t kSubnormalLow[16] = {0x00, 0x00, 0x80, 0xC0,
                                                            0x00, 0x20, 0x40, 0x60};
  const VBytes sign = hn::And(ordered, hn::Set(d, uint8_t{0x80}));
  const VBytes low_nibble = hn::And(ordered, hn::Set(d, uint8_t{0x0F}));
  const auto subnormal = hn::Eq(hn::And(ordered, hn::Set(d, uint8_t{0x78})), hn::Zero(d));
  VBytes high = hn::TableLookupBytes(hn::LoadDup128(d, kHigh), hn::ShiftRight<4>(ordered));
  VBytes low = hn::ShiftLeft<4>(ordered);
  high = hn::IfThenElse(
      subnormal, hn::Or(hn::TableLookupBytes(hn::LoadDup128(d, kSubnormalHigh), low_nibble), sign),
      high);
  low = hn::IfThenElse(subnormal,
                       hn::TableLookupBytes(hn::LoadDup128(d, kSubnormalLow), low_nibble), low);
  const auto nan = hn::Eq(hn::Or(ordered, hn::Set(d, uint8_t{0x80})), hn::Set(d, uint8_t{0xFF}));
  if (HWY_UNLIKELY(!hn::AllFalse(d, nan))) {
    high = hn::IfThenElse(nan, hn::Set(d, uint8_t{0x7F}), high);
    low = hn::IfThenElse(nan, hn::Set(d, uint8_t{0xC0}), low);
  }
  hn::StoreU(hn::BitCast(d16, hn::InterleaveLower(d, low, high)), d16, values);
  hn::StoreU(hn::BitCast(d16, hn::InterleaveUpper(d, low, high)), d16, values + hn::Lanes(d16));
}

void decode_e4m3fn_bf16(const CodecFormat& format, const uint8_t* codes, int64_t count,
                        uint16_t* values) {
  const DBytes d;
  const hn::Repartition<uint64_t, DBytes> d64;
  constexpr int64_t kBytes = static_cast<int64_t>(hn::MaxLanes(d));
  constexpr int64_t kWords = kBytes / 8;
  // Block b takes the 8-byte words b and kWords / 2 + b.
  alignas(64) uint64_t order[kWords];
  for (int64_t i = 0; i < kWords; ++i)
    order[i] = static_cast<uint64_t>(i / 2 + (i % 2) * (kWords / 2));
  const auto indices = hn::SetTableIndices(d64, order);
  int64_t i = 0;
  for (; i + kBytes <= count; i += kBytes) {
    const auto words = hn::BitCast(d64, hn::LoadU(d, codes + i));
    decode_e4m3fn_bytes(hn::BitCast(d, hn::TableLookupLanes(words, indices)), values + i);
  }
  decode_bf16(format, codes + i, count - i, values + i);
}
#endif  // DEEPINFER_SIM_SOFTWARE_LANES

// 2^(code - 127). Code 0 is subnormal in fp32 and in bf16, so it is written as bits.
inline I16 decode_e8m0_group(const uint8_t* codes) {
  const I16 code = load_bytes(codes);
  const I16 value =
      select(code == broadcast_int(0), broadcast_int(0x00400000), shift_left<23>(code));
  return select(code == broadcast_int(0xFF), broadcast_int(kFp32Nan), value);
}
struct DecodeE8m0 {
  inline void operator()(const uint8_t* codes, float* values) const {
    store_bits(from_bits(decode_e8m0_group(codes)), values);
  }
};
struct DecodeE8m0Bf16 {
  inline void operator()(const uint8_t* codes, uint16_t* values) const {
    store_halves(shift_right_zero<16>(decode_e8m0_group(codes)), values);
  }
};
void decode_e8m0(const uint8_t* codes, int64_t count, float* values) {
  for_groups(codes, count, values, DecodeE8m0{});
}
void decode_e8m0_bf16(const uint8_t* codes, int64_t count, uint16_t* values) {
  for_groups(codes, count, values, DecodeE8m0Bf16{});
}

// Nearest code of the magnitude as if the format's exponent had no end. A normal one rounds on its
// bits; for a subnormal one, adding 2^23 quanta leaves the rounded count of quanta in the low bits.
inline I16 nearest_codes(const CodecFormat& format, I16 magnitude) {
  const int shift = kFp32MantissaBits - format.mantissa_bits;
  const I16 odd = shift_right_zero_by(magnitude, shift) & broadcast_int(1);
  const I16 normal =
      shift_right_zero_by(magnitude + odd + broadcast_int((1 << (shift - 1)) - 1), shift) -
      broadcast_int((127 - format.bias) << format.mantissa_bits);
  const F16 magic =
      broadcast(power_of_two(1 - format.bias - format.mantissa_bits + kFp32MantissaBits));
  const I16 subnormal = bits(from_bits(magnitude) + magic) - bits(magic);
  const I16 smallest_normal = broadcast_int((1 - format.bias + 127) << kFp32MantissaBits);
  return select(smallest_normal > magnitude, subnormal, normal);
}

int64_t encode(const CodecFormat& format, const float* values, int64_t count, int32_t largest_code,
               int32_t overflow_code, uint8_t* codes) {
  const bool codeless_overflow = overflow_code < 0;
  int64_t without_code = -1;
  for (int64_t i = 0; i < count; i += kLanes) {
    const F16 value = load_up_to(values + i, count - i);
    const I16 magnitude = bits(value) & broadcast_int(0x7FFFFFFF);
    const I16 sign = shift_left_by(shift_right_zero<31>(bits(value)), format.value_bits);
    const I16 nearest = nearest_codes(format, magnitude);
    const M16 nan = magnitude > broadcast_int(kFp32Infinity);
    const M16 over = nearest > broadcast_int(largest_code);
    const I16 overflow = overflow_code == format.nan_code ? broadcast_int(overflow_code)
                                                          : (sign | broadcast_int(overflow_code));
    I16 code = select(over, overflow, sign | nearest);
    code = select(nan, broadcast_int(format.nan_code), code);
    alignas(64) uint8_t group[kLanes];
    store_bytes(code, group);
    std::copy_n(group, std::min(kLanes, count - i), codes + i);
    if (without_code < 0 && format.nan_code < 0 && (any(nan) || (codeless_overflow && any(over)))) {
      // The first of these lanes, by its bits.
      alignas(64) float lanes[kLanes];
      store_bits(
          from_bits(select(nan, broadcast_int(1),
                           codeless_overflow ? select(over, broadcast_int(1), broadcast_int(0))
                                             : broadcast_int(0))),
          lanes);
      int64_t lane = 0;
      while (std::bit_cast<uint32_t>(lanes[lane]) == 0) ++lane;
      without_code = i + lane;
    }
  }
  return without_code;
}

// Nearest power of two, a tie (1.5 * 2^n) upwards; what is below 2^-127 has code 0, and 1.5 *
// 2^-127 is 0x00600000. A negative number has no code but NaN; -0 is 0.
void encode_e8m0(const float* values, int64_t count, int32_t largest_code, int32_t overflow_code,
                 uint8_t* codes) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const I16 value = bits(load_up_to(values + i, count - i));
    const I16 magnitude = value & broadcast_int(0x7FFFFFFF);
    I16 code = shift_right_zero<23>(magnitude + broadcast_int(0x00400000));
    code = select(broadcast_int(0x00600000) > magnitude, broadcast_int(0), code);
    code = select(code > broadcast_int(largest_code), broadcast_int(overflow_code), code);
    code = select(magnitude > broadcast_int(kFp32Infinity), broadcast_int(0xFF), code);
    const I16 below_zero = select(broadcast_int(0) > value, magnitude, broadcast_int(0));
    code = select(below_zero > broadcast_int(0), broadcast_int(0xFF), code);
    alignas(64) uint8_t group[kLanes];
    store_bytes(code, group);
    std::copy_n(group, std::min(kLanes, count - i), codes + i);
  }
}

struct ToBf16 {
  inline void operator()(const float* values, uint16_t* narrow) const {
    store(load(values), narrow);
  }
};
struct ToFp32 {
  inline void operator()(const uint16_t* values, float* wide) const {
    store_bits(load(values), wide);
  }
};
void to_bf16(const float* values, int64_t count, uint16_t* narrow) {
  for_groups(values, count, narrow, ToBf16{});
}
void to_fp32(const uint16_t* values, int64_t count, float* wide) {
  for_groups(values, count, wide, ToFp32{});
}

inline constexpr CodecKernels kCodecKernels = {decode_fp32, decode_bf16,      decode_e4m3fn_bf16,
                                               decode_e8m0, decode_e8m0_bf16, encode,
                                               encode_e8m0, to_bf16,          to_fp32};

}  // namespace
#endif  // DEEPINFER_SIM_HAVE_LANES
}  // namespace deepinfer::DEEPINFER_SIM_LANES_NAMESPACE
DEEPINFER_SIM_AFTER_LANES();

#endif  // include guard that Highway toggles per target
