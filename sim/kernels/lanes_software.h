// The sixteen lanes of lanes-inl.h in plain C++: no fma instruction, no floating-point mode (C1.1,
// C1.2).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "sim/kernels/software_float.h"

namespace deepinfer::N_SOFTWARE {

inline constexpr int64_t kLanes = 16;

using software_float::canonical_add;
using software_float::canonical_divide;
using software_float::canonical_fma;
using software_float::canonical_multiply;
using software_float::canonical_sqrt;
using software_float::flush;
using software_float::round_and_flush;

struct F16 {
  float p[kLanes];
};
struct I16 {
  int32_t p[kLanes];
};
struct M16 {
  bool p[kLanes];
};
struct D16 {
  double p[kLanes];
};

#define DEEPINFER_SIM_EACH_LANE(Result, expression)            \
  Result result;                                               \
  for (int i = 0; i < kLanes; ++i) result.p[i] = (expression); \
  return result

inline F16 operator+(F16 a, F16 b) { DEEPINFER_SIM_EACH_LANE(F16, canonical_add(a.p[i], b.p[i])); }
inline F16 operator-(F16 a, F16 b) { DEEPINFER_SIM_EACH_LANE(F16, canonical_add(a.p[i], -b.p[i])); }
inline F16 operator*(F16 a, F16 b) {
  DEEPINFER_SIM_EACH_LANE(F16, canonical_multiply(a.p[i], b.p[i]));
}
inline F16 operator/(F16 a, F16 b) {
  DEEPINFER_SIM_EACH_LANE(F16, canonical_divide(a.p[i], b.p[i]));
}
inline F16 square_root(F16 a) { DEEPINFER_SIM_EACH_LANE(F16, canonical_sqrt(a.p[i])); }
inline F16 fma(F16 a, F16 b, F16 c) {
  DEEPINFER_SIM_EACH_LANE(F16, canonical_fma(a.p[i], b.p[i], c.p[i]));
}
inline F16 fnma(F16 a, F16 b, F16 c) {
  DEEPINFER_SIM_EACH_LANE(F16, canonical_fma(-a.p[i], b.p[i], c.p[i]));
}

inline F16 broadcast(float value) { DEEPINFER_SIM_EACH_LANE(F16, value); }
inline I16 broadcast_int(int32_t value) { DEEPINFER_SIM_EACH_LANE(I16, value); }

inline I16 bits(F16 a) { DEEPINFER_SIM_EACH_LANE(I16, std::bit_cast<int32_t>(a.p[i])); }
inline F16 from_bits(I16 a) { DEEPINFER_SIM_EACH_LANE(F16, std::bit_cast<float>(a.p[i])); }
inline F16 absolute(F16 a) { DEEPINFER_SIM_EACH_LANE(F16, std::fabs(a.p[i])); }
inline F16 negate(F16 a) { DEEPINFER_SIM_EACH_LANE(F16, -a.p[i]); }
inline F16 with_sign_of(F16 magnitude, F16 sign) {
  DEEPINFER_SIM_EACH_LANE(F16, std::copysign(magnitude.p[i], sign.p[i]));
}
// Integers wrap.
inline I16 operator+(I16 a, I16 b) {
  DEEPINFER_SIM_EACH_LANE(
      I16, static_cast<int32_t>(static_cast<uint32_t>(a.p[i]) + static_cast<uint32_t>(b.p[i])));
}
inline I16 operator-(I16 a, I16 b) {
  DEEPINFER_SIM_EACH_LANE(
      I16, static_cast<int32_t>(static_cast<uint32_t>(a.p[i]) - static_cast<uint32_t>(b.p[i])));
}
inline I16 operator&(I16 a, I16 b) { DEEPINFER_SIM_EACH_LANE(I16, a.p[i] & b.p[i]); }
inline I16 operator|(I16 a, I16 b) { DEEPINFER_SIM_EACH_LANE(I16, a.p[i] | b.p[i]); }
inline I16 max_int(I16 a, I16 b) { DEEPINFER_SIM_EACH_LANE(I16, std::max(a.p[i], b.p[i])); }
inline I16 min_int(I16 a, I16 b) { DEEPINFER_SIM_EACH_LANE(I16, std::min(a.p[i], b.p[i])); }
inline I16 shift_left_by(I16 a, int count) {
  DEEPINFER_SIM_EACH_LANE(I16, static_cast<int32_t>(static_cast<uint32_t>(a.p[i]) << count));
}
inline I16 shift_right_zero_by(I16 a, int count) {
  DEEPINFER_SIM_EACH_LANE(I16, static_cast<int32_t>(static_cast<uint32_t>(a.p[i]) >> count));
}
template <int kBits>
inline I16 shift_left(I16 a) {
  return shift_left_by(a, kBits);
}
template <int kBits>
inline I16 shift_right(I16 a) {
  DEEPINFER_SIM_EACH_LANE(I16, a.p[i] >> kBits);
}
template <int kBits>
inline I16 shift_right_zero(I16 a) {
  return shift_right_zero_by(a, kBits);
}
inline F16 float_of(I16 a) { DEEPINFER_SIM_EACH_LANE(F16, static_cast<float>(a.p[i])); }

inline M16 operator<(F16 a, F16 b) { DEEPINFER_SIM_EACH_LANE(M16, flush(a.p[i]) < flush(b.p[i])); }
inline M16 operator<=(F16 a, F16 b) {
  DEEPINFER_SIM_EACH_LANE(M16, flush(a.p[i]) <= flush(b.p[i]));
}
inline M16 operator==(F16 a, F16 b) {
  DEEPINFER_SIM_EACH_LANE(M16, flush(a.p[i]) == flush(b.p[i]));
}
inline M16 is_nan(F16 a) { DEEPINFER_SIM_EACH_LANE(M16, std::isnan(a.p[i])); }
inline M16 operator>(I16 a, I16 b) { DEEPINFER_SIM_EACH_LANE(M16, a.p[i] > b.p[i]); }
inline M16 operator==(I16 a, I16 b) { DEEPINFER_SIM_EACH_LANE(M16, a.p[i] == b.p[i]); }
inline F16 select(M16 m, F16 yes, F16 no) {
  DEEPINFER_SIM_EACH_LANE(F16, m.p[i] ? yes.p[i] : no.p[i]);
}
inline I16 select(M16 m, I16 yes, I16 no) {
  DEEPINFER_SIM_EACH_LANE(I16, m.p[i] ? yes.p[i] : no.p[i]);
}
inline M16 first_lanes(int64_t count) { DEEPINFER_SIM_EACH_LANE(M16, i < count); }
inline bool any(M16 m) { return std::find(m.p, m.p + kLanes, true) != m.p + kLanes; }

inline F16 load(const float* from) { DEEPINFER_SIM_EACH_LANE(F16, from[i]); }
inline F16 load(const uint16_t* from) {
  DEEPINFER_SIM_EACH_LANE(F16, std::bit_cast<float>(static_cast<uint32_t>(from[i]) << 16));
}
inline I16 load_bytes(const uint8_t* from) { DEEPINFER_SIM_EACH_LANE(I16, from[i]); }
inline void store_bytes(I16 a, uint8_t* to) {
  for (int i = 0; i < kLanes; ++i) to[i] = static_cast<uint8_t>(a.p[i]);
}
inline void store_halves(I16 a, uint16_t* to) {
  for (int i = 0; i < kLanes; ++i) to[i] = static_cast<uint16_t>(a.p[i]);
}
inline void store_bits(F16 a, float* to) { std::memcpy(to, a.p, sizeof(a.p)); }

inline void load_transposed(const void* const* from, F16* to) {
  for (int i = 0; i < kLanes; ++i) {
    float words[kLanes];
    std::memcpy(words, from[i], sizeof(words));
    for (int j = 0; j < kLanes; ++j) to[j].p[i] = words[j];
  }
}

inline F16 even_twice(F16 a) { DEEPINFER_SIM_EACH_LANE(F16, a.p[i & ~1]); }
inline F16 odd_twice(F16 a) { DEEPINFER_SIM_EACH_LANE(F16, a.p[i | 1]); }

inline float combine(F16 a) {
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; ++j) a.p[j] = canonical_add(a.p[j], a.p[j + half]);
  }
  return a.p[0];
}
inline int32_t largest_int(I16 a) { return *std::max_element(a.p, a.p + kLanes); }

inline D16 widen(F16 a) { DEEPINFER_SIM_EACH_LANE(D16, static_cast<double>(flush(a.p[i]))); }
inline F16 narrow(D16 a) { DEEPINFER_SIM_EACH_LANE(F16, round_and_flush(a.p[i])); }
inline D16 broadcast_wide(double value) { DEEPINFER_SIM_EACH_LANE(D16, value); }
inline D16 operator*(D16 a, D16 b) { DEEPINFER_SIM_EACH_LANE(D16, a.p[i] * b.p[i]); }
// std::fma rounds once by the C standard, with or without an instruction for it.
inline D16 fma(D16 a, D16 b, D16 c) {
  DEEPINFER_SIM_EACH_LANE(D16, std::fma(a.p[i], b.p[i], c.p[i]));
}
inline D16 fnma(D16 a, D16 b, D16 c) {
  DEEPINFER_SIM_EACH_LANE(D16, std::fma(-a.p[i], b.p[i], c.p[i]));
}
inline D16 nearest_integer(D16 a) { DEEPINFER_SIM_EACH_LANE(D16, std::nearbyint(a.p[i])); }

#undef DEEPINFER_SIM_EACH_LANE

}  // namespace deepinfer::N_SOFTWARE
