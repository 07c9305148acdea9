// Norm, rotation and activation (CANONICAL.md C6.1 to C6.3), for one target. Included once per
// target by rows.cpp and scalar_kernels.cpp.

#if defined(DEEPINFER_SIM_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_SIM_ROWS_INL_H_
#undef DEEPINFER_SIM_ROWS_INL_H_
#else
#define DEEPINFER_SIM_ROWS_INL_H_
#endif

#include <algorithm>

#include "sim/kernels/kernel_tables.h"
#include "sim/kernels/math-inl.h"

DEEPINFER_SIM_BEFORE_LANES();
namespace deepinfer::DEEPINFER_SIM_LANES_NAMESPACE {
#if DEEPINFER_SIM_HAVE_LANES
namespace {

// C6.1 for kRows rows.
template <int kRows, typename T, typename W>
void rms_norm_rows(const T* x, int64_t x_stride, const W* weight, int64_t columns, float eps, T* y,
                   int64_t y_stride) {
  float sums[kRows];
  sums_of_squares<kRows>(x, x_stride, columns, sums);
  F16 inverse[kRows];
  for (int r = 0; r < kRows; ++r) inverse[r] = inverse_rms(sums[r], columns, eps);
  int64_t i = 0;
  for (; i + kLanes <= columns; i += kLanes) {
    const F16 w = load(weight + i);
    for (int r = 0; r < kRows; ++r) {
      store(w * (load(x + r * x_stride + i) * inverse[r]), y + r * y_stride + i);
    }
  }
  if (i < columns) {
    const F16 w = load_part(weight + i, columns - i);
    for (int r = 0; r < kRows; ++r) {
      store_part(w * (load_part(x + r * x_stride + i, columns - i) * inverse[r]), columns - i,
                 y + r * y_stride + i);
    }
  }
}

template <typename T, typename W>
void rms_norm_typed(const RowView& x, const W* weight, float eps, const MutableRowView& y) {
  constexpr int kRows = 4;
  int64_t row = 0;
  for (; row + kRows <= x.rows; row += kRows) {
    rms_norm_rows<kRows>(x.row<T>(row), x.row_stride, weight, x.columns, eps, y.row<T>(row),
                         y.row_stride);
  }
  for (; row < x.rows; ++row) {
    rms_norm_rows<1>(x.row<T>(row), x.row_stride, weight, x.columns, eps, y.row<T>(row),
                     y.row_stride);
  }
}

void rms_norm(const RowView& x, const RowView& weight, float eps, const MutableRowView& y) {
  const bool narrow_weight = weight.type == ElementType::kBf16;
  if (x.type == ElementType::kBf16) {
    if (narrow_weight) {
      rms_norm_typed<uint16_t>(x, weight.row<uint16_t>(0), eps, y);
    } else {
      rms_norm_typed<uint16_t>(x, weight.row<float>(0), eps, y);
    }
  } else if (narrow_weight) {
    rms_norm_typed<float>(x, weight.row<uint16_t>(0), eps, y);
  } else {
    rms_norm_typed<float>(x, weight.row<float>(0), eps, y);
  }
}

// C6.2.
void rope_table(const int64_t* positions, int64_t count, const float* frequencies, int64_t pairs,
                float* cosines, float* sines) {
  for (int64_t t = 0; t < count; ++t) {
    const F16 position = broadcast(static_cast<float>(positions[t]));
    for (int64_t i = 0; i < pairs; i += kLanes) {
      F16 sine, cosine;
      sin_cos(position * load_up_to(frequencies + i, pairs - i), sine, cosine);
      store_up_to(cosine, pairs - i, cosines + t * pairs + i);
      store_up_to(sine, pairs - i, sines + t * pairs + i);
    }
  }
}

// Eight pairs (e, o) at a time: (e', o') = fma((e, e), (c, s), (o, o) * (-s, c)).
template <typename T>
void rope_rows(const RowView& x, int64_t rows_per_angle, const float* cosines, const float* sines,
               int64_t pairs, bool inverse, const MutableRowView& y) {
  constexpr int64_t kPairsAtOnce = kLanes / 2;
  const int64_t kept = x.columns - 2 * pairs;
  if (x.data != y.data) {
    for (int64_t row = 0; row < x.rows; ++row) std::copy_n(x.row<T>(row), kept, y.row<T>(row));
  }
  for (int64_t begin = 0; begin < x.rows; begin += rows_per_angle) {
    const int64_t angle = begin / rows_per_angle;
    for (int64_t pair = 0; pair < pairs; pair += kPairsAtOnce) {
      const int64_t now = std::min(kPairsAtOnce, pairs - pair);
      alignas(64) float even_factors[kLanes] = {}, odd_factors[kLanes] = {};
      for (int64_t i = 0; i < now; ++i) {
        const float c = cosines[angle * pairs + pair + i];
        const float s =
            inverse ? -sines[angle * pairs + pair + i] : sines[angle * pairs + pair + i];
        even_factors[2 * i] = c, even_factors[2 * i + 1] = s;
        odd_factors[2 * i] = -s, odd_factors[2 * i + 1] = c;
      }
      const F16 even = load(even_factors), odd = load(odd_factors);
      const int64_t column = kept + 2 * pair;
      for (int64_t row = begin; row < begin + rows_per_angle; ++row) {
        const F16 value = load_up_to(x.row<T>(row) + column, 2 * now);
        store_up_to(fma(even_twice(value), even, odd_twice(value) * odd), 2 * now,
                    y.row<T>(row) + column);
      }
    }
  }
}

void rope(const RowView& x, int64_t rows_per_angle, const float* cosines, const float* sines,
          int64_t pairs, bool inverse, const MutableRowView& y) {
  if (x.type == ElementType::kBf16) {
    rope_rows<uint16_t>(x, rows_per_angle, cosines, sines, pairs, inverse, y);
  } else {
    rope_rows<float>(x, rows_per_angle, cosines, sines, pairs, inverse, y);
  }
}

// C6.3.
template <typename T>
void swiglu_rows(const RowView& gate, const RowView& up, const float* row_weights, float limit,
                 const MutableRowView& y) {
  const F16 upper = broadcast(limit), lower = broadcast(-limit);
  for (int64_t row = 0; row < gate.rows; ++row) {
    for (int64_t i = 0; i < gate.columns; i += kLanes) {
      const int64_t left = gate.columns - i;
      const F16 g = min_of(load_up_to(gate.row<T>(row) + i, left), upper);
      const F16 u = min_of(max_of(load_up_to(up.row<T>(row) + i, left), lower), upper);
      F16 a = silu(g) * u;
      if (row_weights != nullptr) a = a * broadcast(row_weights[row]);
      store_up_to(a, left, y.row<T>(row) + i);
    }
  }
}

void swiglu(const RowView& gate, const RowView& up, const float* row_weights, float limit,
            const MutableRowView& y) {
  if (gate.type == ElementType::kBf16) {
    swiglu_rows<uint16_t>(gate, up, row_weights, limit, y);
  } else {
    swiglu_rows<float>(gate, up, row_weights, limit, y);
  }
}

inline constexpr RowKernels kRowKernels = {rms_norm, rope_table, rope, swiglu};

}  // namespace
#endif  // DEEPINFER_SIM_HAVE_LANES
}  // namespace deepinfer::DEEPINFER_SIM_LANES_NAMESPACE
DEEPINFER_SIM_AFTER_LANES();

#endif  // include guard that Highway toggles per target
