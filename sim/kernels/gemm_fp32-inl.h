// The fp32 dot product C2.2 as a blocked GEMM on fma vectors, for one Highway target.
// Included once per target by gemm_vector.cpp only.

#if defined(DEEPINFER_SIM_GEMM_FP32_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_SIM_GEMM_FP32_INL_H_
#undef DEEPINFER_SIM_GEMM_FP32_INL_H_
#else
#define DEEPINFER_SIM_GEMM_FP32_INL_H_
#endif

#include "sim/kernels/float_scope.h"
#include "sim/kernels/gemm_decode-inl.h"
#include "sim/kernels/gemm_fp32_outer-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deepinfer::gemm_internal::HWY_NAMESPACE {
#if HWY_NATIVE_FMA
namespace {

// The 16 lanes of C2.2 lie along K, so rows of A and of W are read as they are and nothing is
// transposed. A vector holds 16, 8 or 4 of the 16 lanes of one output ("slice"); slices are
// independent until the end, so a narrow target runs them one after the other. Lanes live in memory
// between blocks of K.
inline constexpr int64_t kLanes16 = 16;
inline constexpr int64_t kFp32BlockK = 1024;  // of K at a time: 6 + 4 rows fill a first-level cache
inline constexpr int64_t kFp32ActivationBytes =
    1 << 20;  // of A per pass over W: half of a second-level cache

inline constexpr int64_t kFp32DirectRows = 8;  // of A, for which packing W does not pay

inline constexpr int64_t kFp32StripColumns = 48;  // of C that are stored together

// Outputs of a micro-kernel: rows of A by rows of W. 24 of 32 registers, or 12 of 16.
#if HWY_TARGET == HWY_AVX2
inline constexpr int kFp32Rows = 3, kFp32Columns = 4;
#else
inline constexpr int kFp32Rows = 4, kFp32Columns = 6;
#endif

// Adds the products of `groups` groups of 16 k to lanes[row][column][16], or to +0 for the first of
// K. A is packed, a[group][kRows][16]; W is packed the same way, w[group][kColumns][16], or
// (kPacked false) column c lies at w + c * w_stride.
template <int kRows, int kColumns, bool kPacked>
HWY_NOINLINE void fp32_micro_kernel(int64_t groups, const float* HWY_RESTRICT a,
                                    const float* HWY_RESTRICT w, int64_t w_stride, bool first,
                                    float* HWY_RESTRICT lanes) {
  const hn::CappedTag<float, 16> df;
  using V = hn::VFromD<decltype(df)>;
  constexpr int64_t kVector = static_cast<int64_t>(hn::MaxLanes(df));
  constexpr int64_t kWStep = kPacked ? kColumns * kLanes16 : kLanes16;
  const int64_t column_step = kPacked ? kLanes16 : w_stride;
  for (int64_t slice = 0; slice < kLanes16; slice += kVector) {
    V sum[kRows][kColumns];
    if (first) {
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) {
        HWY_UNROLL(8)
        for (int c = 0; c < kColumns; ++c) sum[r][c] = hn::Zero(df);
      }
    } else {
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) {
        HWY_UNROLL(8)
        for (int c = 0; c < kColumns; ++c) {
          sum[r][c] = hn::LoadU(df, lanes + (r * kFp32Columns + c) * kLanes16 + slice);
        }
      }
    }
    const float* HWY_RESTRICT a_at = a + slice;
    const float* HWY_RESTRICT w_at = w + slice;
    for (int64_t group = 0; group < groups; ++group) {
      V w_vector[kColumns];
      HWY_UNROLL(8)
      for (int c = 0; c < kColumns; ++c) w_vector[c] = hn::LoadU(df, w_at + c * column_step);
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) {
        const V a_vector = hn::LoadU(df, a_at + r * kLanes16);
        HWY_UNROLL(8)
        for (int c = 0; c < kColumns; ++c) sum[r][c] = hn::MulAdd(a_vector, w_vector[c], sum[r][c]);
      }
      a_at += kRows * kLanes16;
      w_at += kWStep;
    }
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      HWY_UNROLL(8)
      for (int c = 0; c < kColumns; ++c) {
        hn::StoreU(sum[r][c], df, lanes + (r * kFp32Columns + c) * kLanes16 + slice);
      }
    }
  }
}

// The last K % 16 products: lanes past `rest` keep their value, since adding 0 * 0 would turn a -0
// lane into +0. Row r of A lies at a + r * 16, column c of W at w + c * w_stride.
HWY_NOINLINE void fp32_rest(int64_t rest, int64_t rows, int64_t columns, const float* a,
                            const float* w, int64_t w_stride, float* lanes) {
  const hn::CappedTag<float, 16> df;
  constexpr int64_t kVector = static_cast<int64_t>(hn::MaxLanes(df));
  alignas(64) float a_rest[kLanes16] = {}, w_rest[kLanes16] = {};
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(a + r * kLanes16, rest, a_rest);
    for (int64_t c = 0; c < columns; ++c) {
      std::copy_n(w + c * w_stride, rest, w_rest);
      for (int64_t slice = 0; slice < rest; slice += kVector) {
        float* at = lanes + (r * kFp32Columns + c) * kLanes16 + slice;
        const auto old = hn::LoadU(df, at);
        const auto sum =
            hn::MulAdd(hn::Load(df, a_rest + slice), hn::Load(df, w_rest + slice), old);
        const auto present = hn::FirstN(df, static_cast<size_t>(std::min(rest - slice, kVector)));
        hn::StoreU(hn::IfThenElse(present, sum, old), df, at);
      }
    }
  }
}

// sums[i] = the 16 lanes of output i combined: l[j] + l[j + 8], then + 4, + 2, + 1. `outputs` is
// rounded up to 4 (16 for AVX-512) on both sides.
#if HWY_TARGET == HWY_AVX3
inline constexpr int64_t kCombined = 16;

HWY_INLINE void combine_lanes(const float* HWY_RESTRICT lanes, int64_t outputs,
                              float* HWY_RESTRICT sums) {
  // Each step adds halves of two vectors to each other, and the sums of both share the result.
  for (int64_t i = 0; i < outputs; i += kCombined) {
    const auto load = [&](int output)
                          HWY_ATTR { return _mm512_load_ps(lanes + (i + output) * kLanes16); };
    const auto add8 = [](__m512 x, __m512 y) HWY_ATTR {
      return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xEE));
    };
    const auto add4 = [](__m512 x, __m512 y) HWY_ATTR {
      return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xDD));
    };
    const auto add2 = [](__m512 x, __m512 y) HWY_ATTR {
      return _mm512_add_ps(_mm512_shuffle_ps(x, y, 0x44), _mm512_shuffle_ps(x, y, 0xEE));
    };
    const auto add1 = [](__m512 x, __m512 y) HWY_ATTR {
      return _mm512_add_ps(_mm512_shuffle_ps(x, y, 0x88), _mm512_shuffle_ps(x, y, 0xDD));
    };
    // add4's quarters hold outputs 4q .. 4q + 3; add2 puts those of two such side by side in each
    // quarter.
    __m512 quads[4];
    for (int q = 0; q < 4; ++q) {
      quads[q] = add4(add8(load(q), load(4 + q)), add8(load(8 + q), load(12 + q)));
    }
    _mm512_store_ps(sums + i, add1(add2(quads[0], quads[1]), add2(quads[2], quads[3])));
  }
}
#else
inline constexpr int64_t kCombined = 4;

HWY_INLINE void combine_lanes(const float* HWY_RESTRICT lanes, int64_t outputs,
                              float* HWY_RESTRICT sums) {
  const hn::CappedTag<float, 4> d;
  const hn::RepartitionToWide<decltype(d)> d64;
  using V = hn::VFromD<decltype(d)>;
  for (int64_t i = 0; i < outputs; i += kCombined) {
    V quarter[4];
    for (int64_t o = 0; o < 4; ++o) {
      const float* l = lanes + (i + o) * kLanes16;
      quarter[o] = hn::Add(hn::Add(hn::LoadU(d, l), hn::LoadU(d, l + 8)),
                           hn::Add(hn::LoadU(d, l + 4), hn::LoadU(d, l + 12)));
    }
    // Transposed, vector j holds lane j of the four outputs.
    const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, quarter[0], quarter[1]));
    const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d, quarter[0], quarter[1]));
    const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d, quarter[2], quarter[3]));
    const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d, quarter[2], quarter[3]));
    const V lane0 = hn::BitCast(d, hn::InterleaveLower(d64, low01, low23));
    const V lane1 = hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23));
    const V lane2 = hn::BitCast(d, hn::InterleaveLower(d64, high01, high23));
    const V lane3 = hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23));
    hn::StoreU(hn::Add(hn::Add(lane0, lane2), hn::Add(lane1, lane3)), d, sums + i);
  }
}
#endif

// Where a micro-kernel finds `columns` rows of W.
struct Fp32Columns {
  const float* data;
  int64_t stride;  // floats from one to the next
  bool packed;
};

template <int kRows, int kColumns>
void fp32_tile(int64_t rows, int64_t columns, int64_t groups, const float* a, const Fp32Columns& w,
               bool first, float* lanes) {
  // Narrows the template arguments down to the sizes at hand.
  if constexpr (kRows > 1) {
    if (rows < kRows)
      return fp32_tile<kRows - 1, kColumns>(rows, columns, groups, a, w, first, lanes);
  }
  if constexpr (kColumns > 1) {
    if (columns < kColumns)
      return fp32_tile<kRows, kColumns - 1>(rows, columns, groups, a, w, first, lanes);
  }
  if (w.packed)
    return fp32_micro_kernel<kRows, kColumns, true>(groups, a, w.data, w.stride, first, lanes);
  fp32_micro_kernel<kRows, kColumns, false>(groups, a, w.data, w.stride, first, lanes);
}

// Columns [k0, k0 + count) of `rows` rows as fp32, side by side in groups of 16 k: to[k /
// 16][rows][16]. k0 is a multiple of 32; `to` has room for whole blocks of 32. What lies past K is
// not read by the micro-kernel.
void fp32_pack(const GemmOperand& x, int64_t row, int64_t rows, int64_t k0, int64_t count,
               int64_t k, float* to) {
  const hn::CappedTag<float, 16> df;
  constexpr int64_t kVector = static_cast<int64_t>(hn::MaxLanes(df));
  const int64_t step = rows * kLanes16;
  if (x.type == GemmType::kFp32) {
    for (int64_t r = 0; r < rows; ++r) {
      const float* from = reinterpret_cast<const float*>(row_of(x, row + r).data) + k0;
      float* at = to + r * kLanes16;
      int64_t i = 0;
      for (; i + kLanes16 <= count; i += kLanes16, at += step) {
        for (int64_t j = 0; j < kLanes16; j += kVector)
          hn::StoreU(hn::LoadU(df, from + i + j), df, at + j);
      }
      std::copy_n(from + i, count - i, at);
    }
    return;
  }
  const hn::Rebind<uint16_t, decltype(df)> d16;
  const hn::RebindToUnsigned<decltype(df)> du;
  alignas(64) uint16_t narrow[kBlock];
  with_type(x.type, [&](auto type) HWY_ATTR {
    for (int64_t r = 0; r < rows; ++r) {
      const RowView view = row_of(x, row + r);
      float* at = to + r * kLanes16;
      for (int64_t i = 0; i < count; i += kBlock) {
        decode_block<type()>(view, (k0 + i) / kBlock, k, narrow);
        for (int64_t j = 0; j < kBlock; j += kVector) {
          const auto wide = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::Load(d16, narrow + j)));
          hn::StoreU(hn::BitCast(df, wide), df, at + j / kLanes16 * step + j % kLanes16);
        }
        at += 2 * step;
      }
    }
  });
}

void gemm_fp32(const GemmProblem& p) {
  if (outer_pays(p)) return gemm_fp32_outer(p);
  const int64_t width = std::max<int64_t>(round_up(p.k, kBlock), kBlock);
  const int64_t max_rows =
      std::max<int64_t>(kFp32ActivationBytes / (width * 4) / kFp32Rows, 2) * kFp32Rows;
  const int64_t chunk = std::min(max_rows, p.m);
  const int64_t tiles = ceil_div(chunk, kFp32Rows);
  constexpr int64_t kOutputs = kFp32Rows * kFp32Columns;
  constexpr int64_t kTileLanes = kOutputs * kLanes16;
  constexpr int64_t kSlack = kCombined * kLanes16;  // combine_lanes takes whole steps
  // fp32 weights that are used a few times only are read where they are. Else they are packed: rows
  // of a power of two of bytes would fall on the same sets of the cache, and unaligned vectors on
  // two lines.
  const bool direct = p.w.type == GemmType::kFp32 && chunk <= kFp32DirectRows;
  GemmScratch& scratch = gemm_scratch();
  float* lanes = scratch.accumulators.get<float>(tiles * kTileLanes + kSlack);
  float* w_panel = scratch.weights.get<float>(kFp32Columns * kFp32BlockK);
  float* a_panels = scratch.activations.get<float>(tiles * kFp32Rows * width);
  float* results = scratch.rows.get<float>(tiles * kFp32Rows * kFp32StripColumns);
  for (int64_t m0 = 0; m0 < p.m; m0 += chunk) {
    const int64_t rows = std::min(chunk, p.m - m0);
    for (int64_t r = 0; r < rows; r += kFp32Rows) {
      fp32_pack(p.a, m0 + r, std::min<int64_t>(kFp32Rows, rows - r), 0, p.k, p.k,
                a_panels + r * width);
    }
    for (int64_t strip = 0; strip < p.n; strip += kFp32StripColumns) {
      const int64_t strip_columns = std::min(kFp32StripColumns, p.n - strip);
      UnderflowWatch underflow;
      underflow.start();
      for (int64_t n0 = 0; n0 < strip_columns; n0 += kFp32Columns) {
        const int64_t columns = std::min<int64_t>(kFp32Columns, strip_columns - n0);
        int64_t k0 = 0;
        do {  // also once for K = 0, which gives +0
          const int64_t count = std::min(kFp32BlockK, p.k - k0);
          if (!direct) fp32_pack(p.w, strip + n0, columns, k0, count, p.k, w_panel);
          Fp32Columns w = {w_panel, kLanes16, true};
          if (direct) {
            w = {reinterpret_cast<const float*>(row_of(p.w, strip + n0).data) + k0, p.w.row_stride,
                 false};
          }
          const int64_t groups = count / kLanes16, rest = count % kLanes16;
          const bool last = k0 + count == p.k;
          for (int64_t r = 0; r < rows; r += kFp32Rows) {
            const int64_t tile_rows = std::min<int64_t>(kFp32Rows, rows - r);
            const float* a = a_panels + r * width + k0 * tile_rows;
            // Lanes that need not wait for more of K never leave the first-level cache.
            float* tile_lanes = lanes + (p.k <= kFp32BlockK ? 0 : r / kFp32Rows * kTileLanes);
            fp32_tile<kFp32Rows, kFp32Columns>(tile_rows, columns, groups, a, w, k0 == 0,
                                               tile_lanes);
            if (rest > 0) {
              const float* w_rest = w.data + groups * kLanes16 * (direct ? 1 : columns);
              fp32_rest(rest, tile_rows, columns, a + groups * kLanes16 * tile_rows, w_rest,
                        w.stride, tile_lanes);
            }
            if (!last) continue;
            alignas(64) float sums[kOutputs + kCombined];
            combine_lanes(tile_lanes, kOutputs, sums);
            for (int64_t i = 0; i < kFp32Rows; ++i) {
              std::memcpy(results + (r + i) * kFp32StripColumns + n0, sums + i * kFp32Columns,
                          kFp32Columns * sizeof(float));
            }
          }
          k0 += kFp32BlockK;
        } while (k0 < p.k);
      }
      for (int64_t r = 0; r < rows; ++r) {
        store_row(p.c, m0 + r, strip, strip_columns, results + r * kFp32StripColumns);
      }
      if (underflow.seen()) {
        scalar_gemm_kernels().fp32(part_of(p, m0, rows, strip, strip_columns));
      }
    }
  }
}

}  // namespace
#endif  // HWY_NATIVE_FMA
}  // namespace deepinfer::gemm_internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard that Highway toggles per target
