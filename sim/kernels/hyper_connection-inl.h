// Hyper-connections (CANONICAL.md C6.4 and C6.5), for one target. Included once per target by
// hyper_connection.cpp and scalar_kernels.cpp.

#if defined(DEEPINFER_SIM_HYPER_CONNECTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_SIM_HYPER_CONNECTION_INL_H_
#undef DEEPINFER_SIM_HYPER_CONNECTION_INL_H_
#else
#define DEEPINFER_SIM_HYPER_CONNECTION_INL_H_
#endif

#include <algorithm>

#include "sim/kernels/kernel_tables.h"
#include "sim/kernels/math-inl.h"

DEEPINFER_SIM_BEFORE_LANES();
namespace deepinfer::DEEPINFER_SIM_LANES_NAMESPACE {
#if DEEPINFER_SIM_HAVE_LANES
namespace {

inline constexpr int64_t kMaxStreams = 8;

// fma(m_q, scale, base_q), of part 0 (pre), 1 (post) or 2 (comb).
inline F16 linear(const HyperConnectionArgs& args, F16 inverse, const float* dots, int64_t q,
                  int part) {
  return fma(load(dots + q * kLanes) * inverse, broadcast(args.scale[part]),
             broadcast(args.base[q]));
}

// C6.4 for sixteen rows, one a lane. dots[q] is coefficient q of each.
inline void coefficients_of_rows(const HyperConnectionArgs& args, F16 inverse, const float* dots,
                                 float* pre, float* post, float* comb) {
  const int64_t s = args.count;
  const F16 hc_eps = broadcast(args.hc_eps);
  for (int64_t i = 0; i < s; ++i) {
    store(sigmoid(linear(args, inverse, dots, i, 0)) + hc_eps, pre + i * kLanes);
    store(broadcast(2.0f) * sigmoid(linear(args, inverse, dots, s + i, 1)), post + i * kLanes);
  }
  F16 c[kMaxStreams][kMaxStreams];
  for (int64_t j = 0; j < s; ++j) {
    F16 largest = linear(args, inverse, dots, 2 * s + j * s, 2);
    for (int64_t k = 0; k < s; ++k) {
      c[j][k] = linear(args, inverse, dots, 2 * s + j * s + k, 2);
      largest = max_of(largest, c[j][k]);
    }
    for (int64_t k = 0; k < s; ++k) c[j][k] = exp(c[j][k] - largest);
    F16 sum = c[j][0];
    for (int64_t k = 1; k < s; ++k) sum = sum + c[j][k];
    for (int64_t k = 0; k < s; ++k) c[j][k] = c[j][k] / sum + hc_eps;
  }
  // The first step is a column step alone.
  for (int64_t iteration = 0; iteration == 0 || iteration < args.sinkhorn_iterations; ++iteration) {
    for (int64_t j = 0; iteration > 0 && j < s; ++j) {
      F16 sum = c[j][0];
      for (int64_t k = 1; k < s; ++k) sum = sum + c[j][k];
      sum = sum + hc_eps;
      for (int64_t k = 0; k < s; ++k) c[j][k] = c[j][k] / sum;
    }
    for (int64_t k = 0; k < s; ++k) {
      F16 sum = c[0][k];
      for (int64_t j = 1; j < s; ++j) sum = sum + c[j][k];
      sum = sum + hc_eps;
      for (int64_t j = 0; j < s; ++j) c[j][k] = c[j][k] / sum;
    }
  }
  for (int64_t j = 0; j < s; ++j) {
    for (int64_t k = 0; k < s; ++k) store(c[j][k], comb + (j * s + k) * kLanes);
  }
}

// Sums of squares of up to sixteen rows.
template <typename T>
void group_sums(const RowView& x, int64_t first, int64_t rows, float* sums) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    sums_of_squares<4>(x.row<T>(first + r), x.row_stride, x.columns, sums + r);
  }
  for (; r < rows; ++r) sums[r] = sum_of_squares(x.row<T>(first + r), x.columns);
}

void coefficients(const HyperConnectionArgs& args, const float* dots) {
  const int64_t s = args.count, total = 2 * s + s * s, n = args.streams.columns;
  alignas(64) float by_coefficient[(2 * kMaxStreams + kMaxStreams * kMaxStreams) * kLanes] = {};
  alignas(64) float results[(2 * kMaxStreams + kMaxStreams * kMaxStreams) * kLanes];
  for (int64_t t0 = 0; t0 < args.streams.rows; t0 += kLanes) {
    const int64_t rows = std::min(kLanes, args.streams.rows - t0);
    alignas(64) float sums[kLanes] = {};
    if (args.streams.type == ElementType::kBf16) {
      group_sums<uint16_t>(args.streams, t0, rows, sums);
    } else {
      group_sums<float>(args.streams, t0, rows, sums);
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t q = 0; q < total; ++q)
        by_coefficient[q * kLanes + r] = dots[(t0 + r) * total + q];
    }
    const F16 mean = load(sums) / broadcast(static_cast<float>(n));
    const F16 inverse = broadcast(1.0f) / square_root(mean + broadcast(args.norm_eps));
    float* pre = results;
    float* post = results + s * kLanes;
    float* comb = results + 2 * s * kLanes;
    coefficients_of_rows(args, inverse, by_coefficient, pre, post, comb);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < s; ++i) {
        args.pre[(t0 + r) * s + i] = pre[i * kLanes + r];
        args.post[(t0 + r) * s + i] = post[i * kLanes + r];
      }
      for (int64_t i = 0; i < s * s; ++i) args.comb[(t0 + r) * s * s + i] = comb[i * kLanes + r];
    }
  }
}

// C6.5.
template <typename T>
void collapse_rows(const RowView& streams, int64_t count, const float* pre,
                   const MutableRowView& y) {
  const int64_t columns = y.columns;
  for (int64_t row = 0; row < streams.rows; ++row) {
    const T* h = streams.row<T>(row);
    for (int64_t c = 0; c < columns; c += kLanes) {
      F16 acc = broadcast(pre[row * count]) * load_up_to(h + c, columns - c);
      for (int64_t i = 1; i < count; ++i) {
        acc =
            fma(broadcast(pre[row * count + i]), load_up_to(h + i * columns + c, columns - c), acc);
      }
      store_up_to(acc, columns - c, y.row<T>(row) + c);
    }
  }
}

template <typename T>
void expand_rows(const RowView& y, const RowView& streams, int64_t count, const float* post,
                 const float* comb, const MutableRowView& out) {
  const int64_t columns = y.columns;
  for (int64_t row = 0; row < y.rows; ++row) {
    const T* h = streams.row<T>(row);
    T* to = out.row<T>(row);
    for (int64_t c = 0; c < columns; c += kLanes) {
      const F16 value = load_up_to(y.row<T>(row) + c, columns - c);
      F16 stream[kMaxStreams];
      for (int64_t j = 0; j < count; ++j) stream[j] = load_up_to(h + j * columns + c, columns - c);
      for (int64_t k = 0; k < count; ++k) {
        F16 acc = broadcast(post[row * count + k]) * value;
        for (int64_t j = 0; j < count; ++j) {
          acc = fma(broadcast(comb[(row * count + j) * count + k]), stream[j], acc);
        }
        store_up_to(acc, columns - c, to + k * columns + c);
      }
    }
  }
}

void collapse(const RowView& streams, int64_t count, const float* pre, const MutableRowView& y) {
  if (streams.type == ElementType::kBf16) {
    collapse_rows<uint16_t>(streams, count, pre, y);
  } else {
    collapse_rows<float>(streams, count, pre, y);
  }
}

void expand(const RowView& y, const RowView& streams, int64_t count, const float* post,
            const float* comb, const MutableRowView& out) {
  if (streams.type == ElementType::kBf16) {
    expand_rows<uint16_t>(y, streams, count, post, comb, out);
  } else {
    expand_rows<float>(y, streams, count, post, comb, out);
  }
}

inline constexpr HyperConnectionKernels kHyperConnectionKernels = {coefficients, collapse, expand};

}  // namespace
#endif  // DEEPINFER_SIM_HAVE_LANES
}  // namespace deepinfer::DEEPINFER_SIM_LANES_NAMESPACE
DEEPINFER_SIM_AFTER_LANES();

#endif  // include guard that Highway toggles per target
