// Decodes runs of bf16, fp8 and fp4 operands to bf16 (C2.4), for one Highway target.
// Included once per target by the kernel files only.

#if defined(DEEPINFER_SIM_GEMM_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_SIM_GEMM_DECODE_INL_H_
#undef DEEPINFER_SIM_GEMM_DECODE_INL_H_
#else
#define DEEPINFER_SIM_GEMM_DECODE_INL_H_
#endif

#include <cstring>

#include <hwy/highway.h>

#include "sim/kernels/gemm_internal.h"

HWY_BEFORE_NAMESPACE();
namespace deepinfer::gemm_internal::HWY_NAMESPACE {
#if HWY_NATIVE_FMA
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// e4m3fn to bf16 on the bits. A code is s eeee mmm. Sign-extended to 16 bits and shifted left by 4
// it is s.... eeee mmm 0000; with the copies of the sign masked off, adding (scale - 127 + 127 - 7)
// << 7 to the exponent field gives the bf16 number:
//
//   |code|        result
//   0x00          sign only
//   0x01 - 0x07   subnormal: from a table of its eight values, then the scale is added
//   0x08 - 0x7E   the sum above
//   0x7F          NaN
//
// All but the third line are rare in weights, so 32 codes are checked at once for them.
inline constexpr uint16_t kFp8SignAndMagnitude = 0x87F0;
inline constexpr int kFp8ExponentOffset = 120 - 127;  // added to the scale

inline uint16_t exponent_step(int steps) { return static_cast<uint16_t>(steps * 128); }

template <class D16, class V16 = hn::VFromD<D16>>
HWY_INLINE V16 decode_fp8_any(D16 d16, V16 extended, V16 fast, int scale) {
  const hn::Repartition<uint8_t, D16> d8;
  alignas(16) static constexpr uint8_t kTable[16] = {
      0x00, 0x00, 0x80, 0xC0, 0x00, 0x20, 0x40, 0x60,   // low bytes of bf16(m * 2^-9), m < 8
      0x00, 0x3B, 0x3B, 0x3B, 0x3C, 0x3C, 0x3C, 0x3C};  // high bytes
  const V16 magnitude = hn::And(extended, hn::Set(d16, uint16_t{0x7F}));
  // Low byte m, high byte m + 8, for m < 8; what the table gives for others is not used.
  const V16 low_bits = hn::And(extended, hn::Set(d16, uint16_t{7}));
  const V16 index =
      hn::Add(hn::Or(low_bits, hn::ShiftLeft<8>(low_bits)), hn::Set(d16, uint16_t{0x0800}));
  V16 subnormal =
      hn::BitCast(d16, hn::TableLookupBytes(hn::LoadDup128(d8, kTable), hn::BitCast(d8, index)));
  subnormal = hn::Add(subnormal, hn::IfThenZeroElse(hn::Eq(magnitude, hn::Zero(d16)),
                                                    hn::Set(d16, exponent_step(scale - 127))));
  subnormal = hn::Or(subnormal, hn::And(extended, hn::Set(d16, uint16_t{0x8000})));
  // Signed comparison: magnitude is below 0x80.
  const hn::RebindToSigned<D16> di16;
  const auto is_subnormal = hn::Lt(hn::BitCast(di16, magnitude), hn::Set(di16, int16_t{8}));
  const V16 value = hn::IfThenElse(hn::RebindMask(d16, is_subnormal), subnormal, fast);
  return hn::IfThenElse(hn::Eq(magnitude, hn::Set(d16, uint16_t{0x7F})), hn::Set(d16, kBf16Nan),
                        value);
}

// 32 codes that share a scale.
HWY_INLINE void decode_fp8_32(const uint8_t* HWY_RESTRICT codes, int scale,
                              uint16_t* HWY_RESTRICT out) {
  if (static_cast<unsigned>(scale - kFp8MinScale) > kFp8MaxScale - kFp8MinScale) {
    for (int i = 0; i < kBlock; ++i) out[i] = fp8_to_bf16(codes[i], scale);
    return;
  }
  const hn::CappedTag<uint8_t, 32> d8;
  const hn::CappedTag<uint16_t, 32> d16;
  const hn::RebindToSigned<decltype(d16)> di16;
  const hn::Rebind<int8_t, decltype(d16)> di8_half;
  const auto base = hn::Set(d16, exponent_step(scale + kFp8ExponentOffset));
  const auto keep = hn::Set(d16, kFp8SignAndMagnitude);
  bool rare = false;
  for (size_t i = 0; i < 32; i += hn::Lanes(d8)) {
    // Doubling drops the sign: |code| + 1 modulo 128 is below 9 for zero, subnormals and NaN.
    const auto code = hn::LoadU(d8, codes + i);
    const auto doubled = hn::Add(hn::Add(code, code), hn::Set(d8, uint8_t{2}));
    const auto is_rare = hn::Eq(hn::Min(doubled, hn::Set(d8, uint8_t{17})), doubled);
    rare |= !hn::AllFalse(d8, is_rare);
  }
  for (size_t i = 0; i < 32; i += hn::Lanes(d16)) {
    const auto extended = hn::BitCast(
        d16, hn::PromoteTo(di16, hn::LoadU(di8_half, reinterpret_cast<const int8_t*>(codes) + i)));
    auto value = hn::Add(hn::And(hn::ShiftLeft<4>(extended), keep), base);
    if (HWY_UNLIKELY(rare)) value = decode_fp8_any(d16, extended, value, scale);
    hn::StoreU(value, d16, out + i);
  }
}

#if HWY_TARGET == HWY_AVX3
// Two blocks of 32 codes at once, given what is added to the exponent fields of each: for scales in
// [kFp8MinScale, kFp8MaxScale]. False, and nothing written, if a code is one of the rare ones.
HWY_INLINE bool decode_fp8_64(const uint8_t* HWY_RESTRICT codes, __m512i step0, __m512i step1,
                              uint16_t* HWY_RESTRICT out0, uint16_t* HWY_RESTRICT out1) {
  const __m512i all = _mm512_loadu_si512(codes);
  const __mmask64 small = _mm512_testn_epi8_mask(all, _mm512_set1_epi8(0x78));
  const __mmask64 nan =
      _mm512_cmpeq_epi8_mask(_mm512_or_si512(all, _mm512_set1_epi8(-128)), _mm512_set1_epi8(-1));
  if (HWY_UNLIKELY(!_kortestz_mask64_u8(small, nan))) return false;
  const __m512i keep = _mm512_set1_epi16(static_cast<int16_t>(kFp8SignAndMagnitude));
  const auto half = [&](int at, __m512i step) HWY_ATTR {
    const __m512i extended =
        _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + at)));
    return _mm512_add_epi16(_mm512_and_si512(_mm512_slli_epi16(extended, 4), keep), step);
  };
  _mm512_storeu_si512(out0, half(0, step0));
  _mm512_storeu_si512(out1, half(kBlock, step1));
  return true;
}
#endif

#if HWY_TARGET == HWY_AVX3
// (scale - 127) in the exponent field of bf16, twice in a word: from memory, since a broadcast of a
// register takes the port that permutations need.
struct ExponentSteps {
  uint32_t of[256];
  constexpr ExponentSteps() : of() {
    for (int scale = 0; scale < 256; ++scale) {
      of[scale] = (static_cast<uint32_t>(scale - 127) << 7 & 0xFFFFu) * 0x10001u;
    }
  }
};
inline constexpr ExponentSteps kExponentSteps;

// 32 e2m1 codes in 16 bytes with a scale in [kFp4MinScale, kFp4MaxScale].
HWY_INLINE __m512i decode_fp4_plain(const uint8_t* HWY_RESTRICT codes, int scale) {
  // VPERMW reads five bits of each index: the table is there twice, and the fifth bit may be
  // anything.
  alignas(64) static constexpr uint16_t kTable[32] = {
      0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0, 0x8000, 0xBF00, 0xBF80,
      0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0, 0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040,
      0x4080, 0x40C0, 0x8000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0};
  constexpr __mmask32 kNotZero = 0xFEFEFEFE;
  const __m512i table = _mm512_load_si512(kTable);
  const __m512i step = _mm512_set1_epi32(static_cast<int32_t>(kExponentSteps.of[scale]));
  const __m512i scaled = _mm512_mask_add_epi16(table, kNotZero, table, step);
  const __m512i bytes =
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  // The even code in the lower half of each word, the odd one in the upper.
  const __m512i index = _mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12));
  return _mm512_permutexvar_epi16(index, scaled);
}

inline bool is_plain_fp4_scale(int scale) {
  return static_cast<unsigned>(scale - kFp4MinScale) <= kFp4MaxScale - kFp4MinScale;
}
#endif

// 32 e2m1 codes in 16 bytes that share a scale. A code is s ee m; the sixteen bf16 values come from
// a table, and the scale is added to the exponent field of all but the two zeros.
HWY_INLINE void decode_fp4_32(const uint8_t* HWY_RESTRICT codes, int scale,
                              uint16_t* HWY_RESTRICT out) {
  if (static_cast<unsigned>(scale - kFp4MinScale) > kFp4MaxScale - kFp4MinScale) {
    for (int i = 0; i < kBlock; ++i) {
      out[i] = fp4_to_bf16(static_cast<uint8_t>((codes[i / 2] >> (4 * (i % 2))) & 15), scale);
    }
    return;
  }
#if HWY_TARGET == HWY_AVX3
  _mm512_storeu_si512(out, decode_fp4_plain(codes, scale));
#else
  alignas(16) static constexpr uint8_t kLow[16] = {0x00, 0x00, 0x80, 0xC0, 0x00, 0x40, 0x80, 0xC0,
                                                   0x00, 0x00, 0x80, 0xC0, 0x00, 0x40, 0x80, 0xC0};
  alignas(16) static constexpr uint8_t kHigh[16] = {0x00, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40,
                                                    0x80, 0xBF, 0xBF, 0xBF, 0xC0, 0xC0, 0xC0, 0xC0};
  const hn::CappedTag<uint8_t, 16> d8;
  const hn::CappedTag<uint16_t, 8> d16;
  const auto step = hn::Set(d16, exponent_step(scale - 127));
  const auto nibble = hn::Set(d8, uint8_t{15});
  const auto bytes = hn::LoadU(d8, codes);
  const auto even = hn::And(bytes, nibble);
  const auto odd = hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, bytes)));
  const auto odd_nibble = hn::And(odd, nibble);
  const auto low_table = hn::Load(d8, kLow);
  const auto high_table = hn::Load(d8, kHigh);
  const auto store = [&](auto code, uint16_t* to) HWY_ATTR {
    const auto low = hn::TableLookupBytes(low_table, code);
    const auto high = hn::TableLookupBytes(high_table, code);
    for (int half = 0; half < 2; ++half) {
      const auto value = hn::BitCast(
          d16, half == 0 ? hn::InterleaveLower(d8, low, high) : hn::InterleaveUpper(d8, low, high));
      const auto is_zero = hn::Eq(hn::Add(value, value), hn::Zero(d16));  // the sign shifted out
      hn::StoreU(hn::Add(value, hn::IfThenZeroElse(is_zero, step)), d16, to + 8 * half);
    }
  };
  store(hn::InterleaveLower(d8, even, odd_nibble), out);
  store(hn::InterleaveUpper(d8, even, odd_nibble), out + 16);
#endif
}

HWY_INLINE void copy_bf16_32(const uint16_t* HWY_RESTRICT from, uint16_t* HWY_RESTRICT out) {
  const hn::CappedTag<uint16_t, 32> d16;
  for (size_t i = 0; i < 32; i += hn::Lanes(d16))
    hn::StoreU(hn::LoadU(d16, from + i), d16, out + i);
}

// Block `block` (of 32 k) of a row to out[0..31]; what lies past column k of the operand becomes
// +0. A template on the type, so that no branch on it is left in a loop over blocks.
template <GemmType kType>
HWY_INLINE void decode_block(const RowView& row, int64_t block, int64_t k,
                             uint16_t* HWY_RESTRICT out) {
  static_assert(kType != GemmType::kFp32);
  const int64_t k0 = block * kBlock;
  if (HWY_LIKELY(k0 + kBlock <= k)) {
    if constexpr (kType == GemmType::kBf16) {
      copy_bf16_32(reinterpret_cast<const uint16_t*>(row.data) + k0, out);
    } else if constexpr (kType == GemmType::kFp8) {
      decode_fp8_32(row.data + k0, scale_at(row, k0), out);
    } else {
      decode_fp4_32(row.data + k0 / 2, scale_at(row, k0), out);
    }
    return;
  }
  for (int64_t i = 0; i < kBlock; ++i) {
    out[i] = k0 + i < k ? element_bf16(kType, row, k0 + i) : uint16_t{0};
  }
}

// Calls run(std::integral_constant<GemmType, type>) for a type other than kFp32.
template <class Run>
HWY_INLINE void with_type(GemmType type, Run&& run) {
  switch (type) {
    case GemmType::kFp8:
      return run(std::integral_constant<GemmType, GemmType::kFp8>());
    case GemmType::kFp4:
      return run(std::integral_constant<GemmType, GemmType::kFp4>());
    default:
      return run(std::integral_constant<GemmType, GemmType::kBf16>());
  }
}

// ---- 16 x 16 words of 32 bits, transposed: pairs of k of 16 rows become 16 rows of pairs (the
// VNNI layout). from: row r at from + r * from_stride; to: row i at to + i * to_stride. Strides in
// words.
#if HWY_TARGET == HWY_AVX3
HWY_INLINE void transpose_16x16(const uint32_t* HWY_RESTRICT from, int64_t from_stride,
                                uint32_t* HWY_RESTRICT to, int64_t to_stride) {
  // Rows i, i+4, i+8, i+12 by 128-bit quarters come straight from memory (masked broadcasts need no
  // shuffle port), so 32 shuffles remain: pairs of words, then pairs of double words.
  __m512i quarter[16];
  for (int i = 0; i < 4; ++i) {
    for (int q = 0; q < 4; ++q) {
      const uint32_t* at = from + i * from_stride + 4 * q;
      const auto row = [&](int g) HWY_ATTR {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 4 * g * from_stride));
      };
      __m512i v = _mm512_castsi128_si512(row(0));
      v = _mm512_mask_broadcast_i32x4(v, 0x00F0, row(1));
      v = _mm512_mask_broadcast_i32x4(v, 0x0F00, row(2));
      v = _mm512_mask_broadcast_i32x4(v, 0xF000, row(3));
      quarter[4 * i + q] = v;  // quarter g of v: row i + 4g, words 4q .. 4q+3
    }
  }
  for (int q = 0; q < 4; ++q) {
    const __m512i a = quarter[q], b = quarter[4 + q], c = quarter[8 + q], d = quarter[12 + q];
    const __m512i ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b);
    const __m512i cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
    uint32_t* at = to + 4 * q * to_stride;
    _mm512_storeu_si512(at, _mm512_unpacklo_epi64(ab_low, cd_low));
    _mm512_storeu_si512(at + to_stride, _mm512_unpackhi_epi64(ab_low, cd_low));
    _mm512_storeu_si512(at + 2 * to_stride, _mm512_unpacklo_epi64(ab_high, cd_high));
    _mm512_storeu_si512(at + 3 * to_stride, _mm512_unpackhi_epi64(ab_high, cd_high));
  }
}
#else
HWY_INLINE void transpose_16x16(const uint32_t* HWY_RESTRICT from, int64_t from_stride,
                                uint32_t* HWY_RESTRICT to, int64_t to_stride) {
  const hn::CappedTag<uint32_t, 4> d;
  const hn::CappedTag<uint64_t, 2> d64;
  for (int row = 0; row < 16; row += 4) {
    for (int column = 0; column < 16; column += 4) {
      const uint32_t* at = from + row * from_stride + column;
      const auto a = hn::LoadU(d, at), b = hn::LoadU(d, at + from_stride);
      const auto c = hn::LoadU(d, at + 2 * from_stride), e = hn::LoadU(d, at + 3 * from_stride);
      const auto ab_low = hn::BitCast(d64, hn::InterleaveLower(d, a, b));
      const auto ab_high = hn::BitCast(d64, hn::InterleaveUpper(d, a, b));
      const auto ce_low = hn::BitCast(d64, hn::InterleaveLower(d, c, e));
      const auto ce_high = hn::BitCast(d64, hn::InterleaveUpper(d, c, e));
      uint32_t* out = to + column * to_stride + row;
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, ab_low, ce_low)), d, out);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, ab_low, ce_low)), d, out + to_stride);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, ab_high, ce_high)), d,
                 out + 2 * to_stride);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, ab_high, ce_high)), d,
                 out + 3 * to_stride);
    }
  }
}
#endif

// values[0 .. count) to row `row`, columns from `column`, of c: one rounding (C1.4), NaN as in
// C2.7.
HWY_INLINE void store_row(const GemmOutput& c, int64_t row, int64_t column, int64_t count,
                          const float* HWY_RESTRICT values) {
  const hn::CappedTag<float, 16> df;
  const hn::RebindToUnsigned<decltype(df)> du;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  const int64_t at = row * c.row_stride + column;
  int64_t i = 0;
  if (c.type == GemmType::kBf16) {
    const hn::Rebind<uint16_t, decltype(df)> du16;
    uint16_t* out = static_cast<uint16_t*>(c.data) + at;
    for (; i + lanes <= count; i += lanes) {
      const auto value = hn::LoadU(df, values + i);
      const auto bits = hn::BitCast(du, value);
      const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
      const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFu)), odd));
      const auto result = hn::IfThenElse(hn::RebindMask(du, hn::Eq(value, value)), rounded,
                                         hn::Set(du, uint32_t{kBf16Nan}));
      hn::StoreU(hn::TruncateTo(du16, result), du16, out + i);
    }
  } else {
    float* out = static_cast<float*>(c.data) + at;
    const auto nan = hn::BitCast(df, hn::Set(du, kFp32Nan));
    for (; i + lanes <= count; i += lanes) {
      const auto value = hn::LoadU(df, values + i);
      hn::StoreU(hn::IfThenElse(hn::Eq(value, value), value, nan), df, out + i);
    }
  }
  for (; i < count; ++i) store_element(c, row, column + i, values[i]);
}

}  // namespace
#endif  // HWY_NATIVE_FMA
}  // namespace deepinfer::gemm_internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard that Highway toggles per target
