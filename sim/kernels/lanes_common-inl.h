// What follows from the sixteen lanes of lanes-inl.h alone, whatever they are made of.
// Included once per target by lanes-inl.h only.

DEEPINFER_SIM_BEFORE_LANES();
namespace deepinfer::DEEPINFER_SIM_LANES_NAMESPACE {
#if DEEPINFER_SIM_HAVE_LANES
namespace {

inline F16 zero() { return broadcast(0.0f); }
inline F16 quiet_nan() { return from_bits(broadcast_int(0x7FC00000)); }

// C1.6: a NaN in x stays; of two equal numbers the first comes back.
inline F16 min_of(F16 x, F16 bound) { return select(bound < x, bound, x); }
inline F16 max_of(F16 x, F16 bound) { return select(x < bound, bound, x); }

// C1.4 in the upper half of each lane, with the NaN of C2.7; the lower half is 0.
inline F16 round_bf16(F16 a) {
  const I16 from = bits(a);
  const I16 odd = shift_right_zero<16>(from) & broadcast_int(1);
  const I16 rounded =
      (from + odd + broadcast_int(0x7FFF)) & broadcast_int(static_cast<int32_t>(0xFFFF0000));
  return select(is_nan(a), quiet_nan(), from_bits(rounded));
}

// Output, C2.7.
inline void store(F16 a, float* to) { store_bits(select(is_nan(a), quiet_nan(), a), to); }
inline void store(F16 a, uint16_t* to) {
  store_halves(shift_right_zero<16>(bits(round_bf16(a))), to);
}

// `count` < 16 elements: those missing are +0, and nothing is written past the last.
template <typename T>
inline F16 load_part(const T* from, int64_t count) {
  alignas(64) T buffer[kLanes] = {};
  std::copy_n(from, count, buffer);
  return load(buffer);
}
template <typename T>
inline void store_part(F16 a, int64_t count, T* to) {
  alignas(64) T buffer[kLanes];
  store(a, buffer);
  std::copy_n(buffer, count, to);
}
template <typename T>
inline F16 load_up_to(const T* from, int64_t count) {
  return count >= kLanes ? load(from) : load_part(from, count);
}
template <typename T>
inline void store_up_to(F16 a, int64_t count, T* to) {
  if (count >= kLanes) {
    store(a, to);
  } else {
    store_part(a, count, to);
  }
}

// Sums of squares (C2.3) of kRows rows, side by side: each is one chain of dependent additions.
template <int kRows, typename T>
inline void sums_of_squares(const T* x, int64_t row_stride, int64_t count, float* sums) {
  F16 lanes[kRows];
  for (int r = 0; r < kRows; ++r) lanes[r] = zero();
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int r = 0; r < kRows; ++r) {
      const F16 value = load(x + r * row_stride + i);
      lanes[r] = fma(value, value, lanes[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    if (i < count) {
      // Lanes that miss an element keep their value.
      const F16 value = load_part(x + r * row_stride + i, count - i);
      lanes[r] = select(first_lanes(count - i), fma(value, value, lanes[r]), lanes[r]);
    }
    sums[r] = combine(lanes[r]);
  }
}
template <typename T>
inline float sum_of_squares(const T* x, int64_t count) {
  float sum;
  sums_of_squares<1>(x, 0, count, &sum);
  return sum;
}

// 1 / sqrt(sum / n + eps) in every lane.
inline F16 inverse_rms(float sum, int64_t n, float eps) {
  const F16 mean = broadcast(sum) / broadcast(static_cast<float>(n));
  return broadcast(1.0f) / square_root(mean + broadcast(eps));
}

}  // namespace
#endif  // DEEPINFER_SIM_HAVE_LANES
}  // namespace deepinfer::DEEPINFER_SIM_LANES_NAMESPACE
DEEPINFER_SIM_AFTER_LANES();
