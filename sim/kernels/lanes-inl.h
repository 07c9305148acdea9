// Sixteen fp32 lanes (C2.2) with the arithmetic of C1, for one Highway target, or in software.
//
// Kernels that are written in these types compile for every target: a lane group is one AVX-512,
// two AVX2 or four NEON vectors, or sixteen numbers with an fma of their own (lanes_software.h)
// where DEEPINFER_SIM_SOFTWARE_LANES is defined. A kernel file looks like this:
//
//   #if defined(GUARD) == defined(HWY_TARGET_TOGGLE)   // Highway toggles the guard for each target
//   ...
//   #include "sim/kernels/lanes-inl.h"
//   DEEPINFER_SIM_BEFORE_LANES();
//   namespace deepinfer::DEEPINFER_SIM_LANES_NAMESPACE {
//   #if DEEPINFER_SIM_HAVE_LANES
//   ...
//   #endif
//   }
//   DEEPINFER_SIM_AFTER_LANES();
//   #endif

#if defined(DEEPINFER_SIM_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_SIM_LANES_INL_H_
#undef DEEPINFER_SIM_LANES_INL_H_
#else
#define DEEPINFER_SIM_LANES_INL_H_
#endif

#ifdef DEEPINFER_SIM_SOFTWARE_LANES

#include "sim/kernels/lanes_software.h"

#define DEEPINFER_SIM_LANES_NAMESPACE N_SOFTWARE
#define DEEPINFER_SIM_BEFORE_LANES() static_assert(true, "")
#define DEEPINFER_SIM_AFTER_LANES() static_assert(true, "")
#define DEEPINFER_SIM_HAVE_LANES 1

#else

#include <algorithm>
#include <bit>
#include <cstdint>

#include <hwy/highway.h>

#undef DEEPINFER_SIM_LANES_NAMESPACE
#undef DEEPINFER_SIM_BEFORE_LANES
#undef DEEPINFER_SIM_AFTER_LANES
#undef DEEPINFER_SIM_HAVE_LANES
#define DEEPINFER_SIM_LANES_NAMESPACE HWY_NAMESPACE
#define DEEPINFER_SIM_BEFORE_LANES() HWY_BEFORE_NAMESPACE()
#define DEEPINFER_SIM_AFTER_LANES() HWY_AFTER_NAMESPACE()
#define DEEPINFER_SIM_HAVE_LANES HWY_NATIVE_FMA

HWY_BEFORE_NAMESPACE();
namespace deepinfer::HWY_NAMESPACE {
#if HWY_NATIVE_FMA
namespace {

namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int64_t kLanes = 16;

using DF = hn::CappedTag<float, 16>;
using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;
using DU16 = hn::Rebind<uint16_t, DF>;
using DU8 = hn::Rebind<uint8_t, DF>;
using DD = hn::RepartitionToWide<DF>;
inline constexpr int kPartLanes = static_cast<int>(hn::MaxLanes(DF()));
inline constexpr int kParts = static_cast<int>(kLanes) / kPartLanes;

// Constructors that a compiler makes up are not compiled for the target, and cannot inline NEON's.
struct F16 {
  HWY_INLINE F16() {}
  hn::VFromD<DF> p[kParts];
};
struct I16 {
  HWY_INLINE I16() {}
  hn::VFromD<DI> p[kParts];
};
struct M16 {
  HWY_INLINE M16() {}
  decltype(hn::FirstN(DF(), 0)) p[kParts];  // what newer versions of Highway call MFromD<DF>
};
struct D16 {
  HWY_INLINE D16() {}
  hn::VFromD<DD> p[2 * kParts];
};

// `expression` with i = 0 .. kParts - 1. Written out, because compilers keep an array that a loop
// indexes in memory.
#define DEEPINFER_SIM_EACH_PART(Result, expression) \
  Result result;                                    \
  {                                                 \
    constexpr int i = 0;                            \
    result.p[i] = expression;                       \
  }                                                 \
  if constexpr (kParts > 1) {                       \
    constexpr int i = kParts > 1 ? 1 : 0;           \
    result.p[i] = expression;                       \
  }                                                 \
  if constexpr (kParts > 2) {                       \
    {                                               \
      constexpr int i = kParts > 2 ? 2 : 0;         \
      result.p[i] = expression;                     \
    }                                               \
    constexpr int i = kParts > 2 ? 3 : 0;           \
    result.p[i] = expression;                       \
  }                                                 \
  return result
static_assert(kParts == 1 || kParts == 2 || kParts == 4);

// C1.1, each rounded once.
HWY_INLINE F16 operator+(F16 a, F16 b) { DEEPINFER_SIM_EACH_PART(F16, hn::Add(a.p[i], b.p[i])); }
HWY_INLINE F16 operator-(F16 a, F16 b) { DEEPINFER_SIM_EACH_PART(F16, hn::Sub(a.p[i], b.p[i])); }
HWY_INLINE F16 operator*(F16 a, F16 b) { DEEPINFER_SIM_EACH_PART(F16, hn::Mul(a.p[i], b.p[i])); }
HWY_INLINE F16 operator/(F16 a, F16 b) { DEEPINFER_SIM_EACH_PART(F16, hn::Div(a.p[i], b.p[i])); }
HWY_INLINE F16 square_root(F16 a) { DEEPINFER_SIM_EACH_PART(F16, hn::Sqrt(a.p[i])); }
// a * b + c, and c - a * b.
HWY_INLINE F16 fma(F16 a, F16 b, F16 c) {
  DEEPINFER_SIM_EACH_PART(F16, hn::MulAdd(a.p[i], b.p[i], c.p[i]));
}
HWY_INLINE F16 fnma(F16 a, F16 b, F16 c) {
  DEEPINFER_SIM_EACH_PART(F16, hn::NegMulAdd(a.p[i], b.p[i], c.p[i]));
}

HWY_INLINE F16 broadcast(float value) { DEEPINFER_SIM_EACH_PART(F16, hn::Set(DF(), value)); }
HWY_INLINE I16 broadcast_int(int32_t value) { DEEPINFER_SIM_EACH_PART(I16, hn::Set(DI(), value)); }

// Bits.
HWY_INLINE I16 bits(F16 a) { DEEPINFER_SIM_EACH_PART(I16, hn::BitCast(DI(), a.p[i])); }
HWY_INLINE F16 from_bits(I16 a) { DEEPINFER_SIM_EACH_PART(F16, hn::BitCast(DF(), a.p[i])); }
HWY_INLINE F16 absolute(F16 a) { DEEPINFER_SIM_EACH_PART(F16, hn::Abs(a.p[i])); }
HWY_INLINE F16 negate(F16 a) { DEEPINFER_SIM_EACH_PART(F16, hn::Neg(a.p[i])); }
// The magnitude must have its sign bit clear.
HWY_INLINE F16 with_sign_of(F16 magnitude, F16 sign) {
  DEEPINFER_SIM_EACH_PART(F16, hn::CopySignToAbs(magnitude.p[i], sign.p[i]));
}
HWY_INLINE I16 operator+(I16 a, I16 b) { DEEPINFER_SIM_EACH_PART(I16, hn::Add(a.p[i], b.p[i])); }
HWY_INLINE I16 operator-(I16 a, I16 b) { DEEPINFER_SIM_EACH_PART(I16, hn::Sub(a.p[i], b.p[i])); }
HWY_INLINE I16 operator&(I16 a, I16 b) { DEEPINFER_SIM_EACH_PART(I16, hn::And(a.p[i], b.p[i])); }
HWY_INLINE I16 operator|(I16 a, I16 b) { DEEPINFER_SIM_EACH_PART(I16, hn::Or(a.p[i], b.p[i])); }
HWY_INLINE I16 max_int(I16 a, I16 b) { DEEPINFER_SIM_EACH_PART(I16, hn::Max(a.p[i], b.p[i])); }
HWY_INLINE I16 min_int(I16 a, I16 b) { DEEPINFER_SIM_EACH_PART(I16, hn::Min(a.p[i], b.p[i])); }
template <int kBits>
HWY_INLINE I16 shift_left(I16 a) {
  DEEPINFER_SIM_EACH_PART(I16, hn::ShiftLeft<kBits>(a.p[i]));
}
template <int kBits>
HWY_INLINE I16 shift_right(I16 a) {  // of the sign bit too
  DEEPINFER_SIM_EACH_PART(I16, hn::ShiftRight<kBits>(a.p[i]));
}
template <int kBits>
HWY_INLINE I16 shift_right_zero(I16 a) {
  DEEPINFER_SIM_EACH_PART(I16, hn::BitCast(DI(), hn::ShiftRight<kBits>(hn::BitCast(DU(), a.p[i]))));
}
HWY_INLINE I16 shift_left_by(I16 a, int count) {
  DEEPINFER_SIM_EACH_PART(I16, hn::ShiftLeftSame(a.p[i], count));
}
HWY_INLINE I16 shift_right_zero_by(I16 a, int count) {
  DEEPINFER_SIM_EACH_PART(I16,
                          hn::BitCast(DI(), hn::ShiftRightSame(hn::BitCast(DU(), a.p[i]), count)));
}
HWY_INLINE F16 float_of(I16 a) { DEEPINFER_SIM_EACH_PART(F16, hn::ConvertTo(DF(), a.p[i])); }

// Comparisons: false with a NaN.
HWY_INLINE M16 operator<(F16 a, F16 b) { DEEPINFER_SIM_EACH_PART(M16, hn::Lt(a.p[i], b.p[i])); }
HWY_INLINE M16 operator<=(F16 a, F16 b) { DEEPINFER_SIM_EACH_PART(M16, hn::Le(a.p[i], b.p[i])); }
HWY_INLINE M16 operator==(F16 a, F16 b) { DEEPINFER_SIM_EACH_PART(M16, hn::Eq(a.p[i], b.p[i])); }
HWY_INLINE M16 is_nan(F16 a) { DEEPINFER_SIM_EACH_PART(M16, hn::IsNaN(a.p[i])); }
HWY_INLINE M16 operator>(I16 a, I16 b) {
  DEEPINFER_SIM_EACH_PART(M16, hn::RebindMask(DF(), hn::Gt(a.p[i], b.p[i])));
}
HWY_INLINE M16 operator==(I16 a, I16 b) {
  DEEPINFER_SIM_EACH_PART(M16, hn::RebindMask(DF(), hn::Eq(a.p[i], b.p[i])));
}
HWY_INLINE F16 select(M16 m, F16 yes, F16 no) {
  DEEPINFER_SIM_EACH_PART(F16, hn::IfThenElse(m.p[i], yes.p[i], no.p[i]));
}
HWY_INLINE I16 select(M16 m, I16 yes, I16 no) {
  DEEPINFER_SIM_EACH_PART(I16, hn::IfThenElse(hn::RebindMask(DI(), m.p[i]), yes.p[i], no.p[i]));
}
// Lanes 0 to count - 1.
HWY_INLINE M16 first_lanes(int64_t count) {
  DEEPINFER_SIM_EACH_PART(M16, hn::FirstN(DF(), static_cast<size_t>(std::clamp<int64_t>(
                                                    count - i * kPartLanes, 0, kPartLanes))));
}
HWY_INLINE bool any(M16 m) {
  bool found = false;
  for (int i = 0; i < kParts; ++i) found = found || !hn::AllFalse(DF(), m.p[i]);
  return found;
}

// Memory. bf16 is widened exactly; bytes are zero-extended.
HWY_INLINE F16 load(const float* from) {
  DEEPINFER_SIM_EACH_PART(F16, hn::LoadU(DF(), from + i * kPartLanes));
}
HWY_INLINE F16 load(const uint16_t* from) {
  DEEPINFER_SIM_EACH_PART(
      F16, hn::BitCast(DF(), hn::ShiftLeft<16>(
                                 hn::PromoteTo(DU(), hn::LoadU(DU16(), from + i * kPartLanes)))));
}
HWY_INLINE I16 load_bytes(const uint8_t* from) {
  DEEPINFER_SIM_EACH_PART(I16, hn::PromoteTo(DI(), hn::LoadU(DU8(), from + i * kPartLanes)));
}
// The lowest byte of each lane.
HWY_INLINE void store_bytes(I16 a, uint8_t* to) {
  for (int i = 0; i < kParts; ++i) {
    hn::StoreU(hn::TruncateTo(DU8(), hn::BitCast(DU(), a.p[i])), DU8(), to + i * kPartLanes);
  }
}
// The lower half of each lane.
HWY_INLINE void store_halves(I16 a, uint16_t* to) {
  for (int i = 0; i < kParts; ++i) {
    hn::StoreU(hn::TruncateTo(DU16(), hn::BitCast(DU(), a.p[i])), DU16(), to + i * kPartLanes);
  }
}
HWY_INLINE void store_bits(F16 a, float* to) {
  for (int i = 0; i < kParts; ++i) hn::StoreU(a.p[i], DF(), to + i * kPartLanes);
}

// to[j] has word j of the sixteen words at from[i] in lane i: a transposition of 16 x 16.
HWY_INLINE void load_transposed(const void* const* from, F16* to) {
#if HWY_TARGET == HWY_AVX3
  // Rows i, i + 4, i + 8, i + 12 by quarters come straight from memory (masked broadcasts need no
  // shuffle port), so that 32 shuffles remain.
  __m512 quarter[16];
  HWY_UNROLL(16)
  for (int i = 0; i < 16; ++i) {
    const auto row = [&](int r) HWY_ATTR {
      return _mm_loadu_ps(static_cast<const float*>(from[i / 4 + r]) + i % 4 * 4);
    };
    __m512 v = _mm512_castps128_ps512(row(0));
    v = _mm512_mask_broadcast_f32x4(v, 0x00F0, row(4));
    v = _mm512_mask_broadcast_f32x4(v, 0x0F00, row(8));
    quarter[i] = _mm512_mask_broadcast_f32x4(v, 0xF000, row(12));
  }
  HWY_UNROLL(4)
  for (int q = 0; q < 4; ++q) {
    const auto low = [&](int i) HWY_ATTR {
      return _mm512_castps_pd(_mm512_unpacklo_ps(quarter[4 * i + q], quarter[4 * i + 4 + q]));
    };
    const auto high = [&](int i) HWY_ATTR {
      return _mm512_castps_pd(_mm512_unpackhi_ps(quarter[4 * i + q], quarter[4 * i + 4 + q]));
    };
    to[4 * q].p[0].raw = _mm512_castpd_ps(_mm512_unpacklo_pd(low(0), low(2)));
    to[4 * q + 1].p[0].raw = _mm512_castpd_ps(_mm512_unpackhi_pd(low(0), low(2)));
    to[4 * q + 2].p[0].raw = _mm512_castpd_ps(_mm512_unpacklo_pd(high(0), high(2)));
    to[4 * q + 3].p[0].raw = _mm512_castpd_ps(_mm512_unpackhi_pd(high(0), high(2)));
  }
#else
  const hn::CappedTag<float, 4> d;
  const hn::RepartitionToWide<decltype(d)> d64;
  alignas(64) float words[kLanes * kLanes];
  for (int row = 0; row < kLanes; row += 4) {
    for (int column = 0; column < kLanes; column += 4) {
      const auto load4 = [&](int r) HWY_ATTR {
        return hn::LoadU(d, static_cast<const float*>(from[row + r]) + column);
      };
      const auto a = load4(0), b = load4(1), c = load4(2), e = load4(3);
      const auto ab_low = hn::BitCast(d64, hn::InterleaveLower(d, a, b));
      const auto ab_high = hn::BitCast(d64, hn::InterleaveUpper(d, a, b));
      const auto ce_low = hn::BitCast(d64, hn::InterleaveLower(d, c, e));
      const auto ce_high = hn::BitCast(d64, hn::InterleaveUpper(d, c, e));
      float* out = words + column * kLanes + row;
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, ab_low, ce_low)), d, out);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, ab_low, ce_low)), d, out + kLanes);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, ab_high, ce_high)), d, out + 2 * kLanes);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, ab_high, ce_high)), d, out + 3 * kLanes);
    }
  }
  for (int j = 0; j < kLanes; ++j) to[j] = load(words + j * kLanes);
#endif
}

// Both lanes of each pair get its even (odd) one.
HWY_INLINE F16 even_twice(F16 a) { DEEPINFER_SIM_EACH_PART(F16, hn::DupEven(a.p[i])); }
HWY_INLINE F16 odd_twice(F16 a) { DEEPINFER_SIM_EACH_PART(F16, hn::DupOdd(a.p[i])); }

// C2.2: lanes j and j + 8, then + 4, + 2, + 1.
HWY_INLINE float combine(F16 a) {
  alignas(64) float quarter[4];
  const hn::CappedTag<float, 4> d4;
#if HWY_TARGET == HWY_AVX3
  const hn::Half<DF> d8;
  const auto eight = hn::Add(hn::LowerHalf(d8, a.p[0]), hn::UpperHalf(d8, a.p[0]));
  const auto four = hn::Add(hn::LowerHalf(d4, eight), hn::UpperHalf(d4, eight));
#elif HWY_TARGET == HWY_AVX2
  const auto eight = hn::Add(a.p[0], a.p[1]);
  const auto four = hn::Add(hn::LowerHalf(d4, eight), hn::UpperHalf(d4, eight));
#else
  const auto four = hn::Add(hn::Add(a.p[0], a.p[2]), hn::Add(a.p[1], a.p[3]));
#endif
  hn::Store(four, d4, quarter);
  return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}
HWY_INLINE int32_t largest_int(I16 a) {
  auto largest = a.p[0];
  for (int i = 1; i < kParts; ++i) largest = hn::Max(largest, a.p[i]);
  return hn::GetLane(hn::MaxOfLanes(DI(), largest));
}

// fp64 lanes, for angles.
HWY_INLINE D16 widen(F16 a) {
  const hn::Half<DF> half;
  D16 result;
  for (int i = 0; i < kParts; ++i) {
    result.p[2 * i] = hn::PromoteTo(DD(), hn::LowerHalf(half, a.p[i]));
    result.p[2 * i + 1] = hn::PromoteTo(DD(), hn::UpperHalf(half, a.p[i]));
  }
  return result;
}
HWY_INLINE F16 narrow(D16 a) {
  const hn::Half<DF> half;
  DEEPINFER_SIM_EACH_PART(
      F16, hn::Combine(DF(), hn::DemoteTo(half, a.p[2 * i + 1]), hn::DemoteTo(half, a.p[2 * i])));
}
#define DEEPINFER_SIM_EACH_WIDE_PART(expression)                 \
  D16 result;                                                    \
  HWY_UNROLL(8)                                                  \
  for (int i = 0; i < 2 * kParts; ++i) result.p[i] = expression; \
  return result
HWY_INLINE D16 broadcast_wide(double value) { DEEPINFER_SIM_EACH_WIDE_PART(hn::Set(DD(), value)); }
HWY_INLINE D16 operator*(D16 a, D16 b) { DEEPINFER_SIM_EACH_WIDE_PART(hn::Mul(a.p[i], b.p[i])); }
HWY_INLINE D16 fma(D16 a, D16 b, D16 c) {
  DEEPINFER_SIM_EACH_WIDE_PART(hn::MulAdd(a.p[i], b.p[i], c.p[i]));
}
HWY_INLINE D16 fnma(D16 a, D16 b, D16 c) {
  DEEPINFER_SIM_EACH_WIDE_PART(hn::NegMulAdd(a.p[i], b.p[i], c.p[i]));
}
HWY_INLINE D16 nearest_integer(D16 a) { DEEPINFER_SIM_EACH_WIDE_PART(hn::Round(a.p[i])); }

#undef DEEPINFER_SIM_EACH_PART
#undef DEEPINFER_SIM_EACH_WIDE_PART

}  // namespace
#endif  // HWY_NATIVE_FMA
}  // namespace deepinfer::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DEEPINFER_SIM_SOFTWARE_LANES

#include "sim/kernels/lanes_common-inl.h"

#endif  // include guard that Highway toggles per target
