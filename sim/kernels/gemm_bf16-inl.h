// The bf16 dot product C2.1 as a blocked GEMM on fma vectors, for one Highway target.
// Included once per target by gemm_vector.cpp only.

#if defined(DEEPINFER_SIM_GEMM_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_SIM_GEMM_BF16_INL_H_
#undef DEEPINFER_SIM_GEMM_BF16_INL_H_
#else
#define DEEPINFER_SIM_GEMM_BF16_INL_H_
#endif

#include "sim/kernels/float_scope.h"
#include "sim/kernels/gemm_decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deepinfer::gemm_internal::HWY_NAMESPACE {
#if HWY_NATIVE_FMA
namespace {

// Vector lanes are columns of C (rows of W). A strip of 32 of them is packed in the VNNI layout,
// pairs of k side by side, half a strip after the other: strip[block][half][pair][16]. Widening a
// pair to fp32 is a shift for the even k and a mask for the odd. A is widened once, and its
// elements are broadcast.
inline constexpr int64_t kBf16Columns = 16;  // columns of one half strip
inline constexpr int64_t kBf16MaxRows = 6;   // rows of A that share a widened vector
inline constexpr int64_t kBf16StripBlocks =
    16;  // blocks of K packed at a time: 32 KiB, most of a first-level cache
inline constexpr int64_t kBf16ActivationBytes =
    1 << 20;  // of widened A: half of a second-level cache

// Columns of C that a micro-kernel takes: 2 vectors where there are 32 registers, else 1.
#if HWY_TARGET == HWY_AVX2
inline constexpr size_t kBf16Vectors = 1;
#else
inline constexpr size_t kBf16Vectors = 2;
#endif

// acc[row][column] += blocks [0, blocks) of kRows rows of A with kBf16Vectors vectors of columns.
// `strip` points at the first column's pair; a step of one pair is kBf16Columns words, of one block
// 2 * 16 * 16 words.
template <int kRows>
HWY_INLINE void bf16_micro_kernel(int64_t blocks, const float* HWY_RESTRICT a, int64_t a_stride,
                                  const uint32_t* HWY_RESTRICT strip, float* HWY_RESTRICT acc) {
  const hn::CappedTag<float, 16> df;
  const hn::RebindToUnsigned<decltype(df)> du;
  using V = hn::VFromD<decltype(df)>;
  constexpr size_t kLanes = hn::MaxLanes(df);
  // Where vector v of columns starts, in words of a pair and in columns of acc. With 16 lanes the
  // second vector is in the other half strip.
  constexpr size_t kVectorWords = kLanes == 16 ? 16 * kBf16Columns : kLanes;
  const auto odd_mask = hn::Set(du, 0xFFFF0000u);
  for (int64_t block = 0; block < blocks; ++block) {
    V even[kRows][kBf16Vectors], odd[kRows][kBf16Vectors];
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      for (size_t v = 0; v < kBf16Vectors; ++v) even[r][v] = odd[r][v] = hn::Zero(df);
    }
    const float* HWY_RESTRICT a_block = a + block * kBlock;
    const uint32_t* HWY_RESTRICT w_block = strip + block * (2 * 16 * kBf16Columns);
    for (int64_t pair = 0; pair < kBlock / 2; ++pair) {
      V w_even[kBf16Vectors], w_odd[kBf16Vectors];
      for (size_t v = 0; v < kBf16Vectors; ++v) {
        const auto words = hn::LoadU(du, w_block + pair * kBf16Columns + v * kVectorWords);
        w_even[v] = hn::BitCast(df, hn::ShiftLeft<16>(words));
        w_odd[v] = hn::BitCast(df, hn::And(words, odd_mask));
      }
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) {
        const V a_even = hn::Set(df, a_block[r * a_stride + 2 * pair]);
        for (size_t v = 0; v < kBf16Vectors; ++v)
          even[r][v] = hn::MulAdd(a_even, w_even[v], even[r][v]);
        const V a_odd = hn::Set(df, a_block[r * a_stride + 2 * pair + 1]);
        for (size_t v = 0; v < kBf16Vectors; ++v)
          odd[r][v] = hn::MulAdd(a_odd, w_odd[v], odd[r][v]);
      }
    }
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      for (size_t v = 0; v < kBf16Vectors; ++v) {
        float* at = acc + r * kStripRows + v * kLanes;
        hn::StoreU(hn::Add(hn::LoadU(df, at), hn::Add(even[r][v], odd[r][v])), df, at);
      }
    }
  }
}

// All columns of a strip that are wanted, for kRows rows of A.
template <int kRows>
void bf16_rows(int64_t blocks, int64_t columns, const float* a, int64_t a_stride,
               const uint32_t* strip, float* acc) {
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(hn::CappedTag<float, 16>()));
  constexpr int64_t kStep = kLanes * static_cast<int64_t>(kBf16Vectors);
  for (int64_t column = 0; column < columns; column += kStep) {
    const uint32_t* at =
        strip + (column / kBf16Columns) * 16 * kBf16Columns + column % kBf16Columns;
    bf16_micro_kernel<kRows>(blocks, a, a_stride, at, acc + column);
  }
}

// Blocks [block, block + blocks) of rows [row, row + 32) of W in the layout above; rows past n
// become +0.
template <GemmType kType>
void pack_strip(const GemmProblem& p, int64_t row, int64_t block, int64_t blocks, uint32_t* strip) {
  alignas(64) uint16_t rows[16 * kBlock] = {};
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t first = row + half * kBf16Columns;
    const int64_t count = std::clamp<int64_t>(p.n - first, 0, kBf16Columns);
    if (count < kBf16Columns) std::memset(rows, 0, sizeof(rows));
    for (int64_t b = 0; b < blocks; ++b) {
      for (int64_t r = 0; r < count; ++r) {
        decode_block<kType>(row_of(p.w, first + r), block + b, p.k, rows + r * kBlock);
      }
      transpose_16x16(reinterpret_cast<const uint32_t*>(rows), kBlock / 2,
                      strip + (2 * b + half) * 16 * kBf16Columns, kBf16Columns);
    }
  }
}

void gemm_bf16(const GemmProblem& p) {
  const int64_t blocks = ceil_div(p.k, kBlock);
  const int64_t width = std::max<int64_t>(blocks, 1) * kBlock;
  const int64_t max_rows =
      std::max<int64_t>(kBf16ActivationBytes / (width * 4) / kBf16MaxRows, 4) * kBf16MaxRows;
  const int64_t chunk = std::min(max_rows, p.m);
  GemmScratch& scratch = gemm_scratch();
  float* a = scratch.activations.get<float>(chunk * width);
  uint32_t* strip = scratch.weights.get<uint32_t>(kBf16StripBlocks * 2 * 16 * kBf16Columns);
  float* acc = scratch.accumulators.get<float>(chunk * kStripRows);
  alignas(64) uint16_t narrow[kBlock];
  for (int64_t m0 = 0; m0 < p.m; m0 += chunk) {
    const int64_t rows = std::min(chunk, p.m - m0);
    with_type(p.a.type, [&](auto type) HWY_ATTR {
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t block = 0; block < blocks; ++block) {
          decode_block<type()>(row_of(p.a, m0 + r), block, p.k, narrow);
          for (int64_t i = 0; i < kBlock; ++i)
            a[r * width + block * kBlock + i] = bf16_to_fp32(narrow[i]);
        }
      }
    });
    for (int64_t n0 = 0; n0 < p.n; n0 += kStripRows) {
      const int64_t columns = std::min(kStripRows, p.n - n0);
      std::fill(acc, acc + rows * kStripRows, 0.0f);
      UnderflowWatch underflow;
      underflow.start();
      for (int64_t block = 0; block < blocks; block += kBf16StripBlocks) {
        const int64_t count = std::min(kBf16StripBlocks, blocks - block);
        with_type(p.w.type,
                  [&](auto type) HWY_ATTR { pack_strip<type()>(p, n0, block, count, strip); });
        for (int64_t r = 0; r < rows; r += kBf16MaxRows) {
          const float* from = a + r * width + block * kBlock;
          float* to = acc + r * kStripRows;
          switch (std::min(kBf16MaxRows, rows - r)) {
            case 1:
              bf16_rows<1>(count, columns, from, width, strip, to);
              break;
            case 2:
              bf16_rows<2>(count, columns, from, width, strip, to);
              break;
            case 3:
              bf16_rows<3>(count, columns, from, width, strip, to);
              break;
            case 4:
              bf16_rows<4>(count, columns, from, width, strip, to);
              break;
            case 5:
              bf16_rows<5>(count, columns, from, width, strip, to);
              break;
            default:
              bf16_rows<6>(count, columns, from, width, strip, to);
              break;
          }
        }
      }
      for (int64_t r = 0; r < rows; ++r) store_row(p.c, m0 + r, n0, columns, acc + r * kStripRows);
      if (underflow.seen()) scalar_gemm_kernels().bf16(part_of(p, m0, rows, n0, columns));
    }
  }
}

}  // namespace
#endif  // HWY_NATIVE_FMA
}  // namespace deepinfer::gemm_internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard that Highway toggles per target
