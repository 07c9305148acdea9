// The fp32 dot product C2.2 for many rows on both sides: outer products, lane by lane.
// Included once per target by gemm_fp32-inl.h only.

#if defined(DEEPINFER_SIM_GEMM_FP32_OUTER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_SIM_GEMM_FP32_OUTER_INL_H_
#undef DEEPINFER_SIM_GEMM_FP32_OUTER_INL_H_
#else
#define DEEPINFER_SIM_GEMM_FP32_OUTER_INL_H_
#endif

#include "sim/kernels/float_scope.h"
#include "sim/kernels/gemm_decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deepinfer::gemm_internal::HWY_NAMESPACE {
#if HWY_NATIVE_FMA
namespace {

// A vector holds the same lane of neighbouring outputs. Lane j of C2.2 is then the product of the
// matrices of the columns j, j + 16, ... of A and W, which is a plain blocked GEMM; 16 of them are
// added up by the tree, vector by vector, without a shuffle. What that costs is that both operands
// are packed transposed, which many rows on the other side pay for.
//
// Of the two operands one lies along the vectors (a panel of kOuterVectors vectors), the other one
// is broadcast (tiles of up to kOuterRows rows): fma does not care which.
inline constexpr int64_t kOuterLanes = 16;
// 24 + 3 + 1 of 32 registers, or 12 + 2 + 1 of 16: few loads for an fma, as the front end also
// feeds another thread where cores have two.
#if HWY_TARGET == HWY_AVX2
inline constexpr int kOuterRows = 6;
#else
inline constexpr int kOuterRows = 12;
#endif
inline constexpr int kOuterVectors = 2;

// Of the broadcast operand per pass over the panels: half of a second-level cache, but at least so
// many rows that packing a panel (about 7 cycles a vector, against half a cycle for each row of
// fma) costs little.
inline constexpr int64_t kOuterBytes = 1 << 20;
inline constexpr int64_t kOuterLeastRows = 240;
// Of packed panels that are kept from one chunk of tiles to the next.
inline constexpr int64_t kOuterKeptBytes = 8 << 20;

using OuterTag = hn::CappedTag<float, 16>;
inline int64_t outer_vector() { return static_cast<int64_t>(hn::Lanes(OuterTag())); }

// The order in which lanes are worked on: bit-reversed, so that the tree l[j] + l[j + 8], + 4, + 2,
// + 1 combines neighbours, and partial sums wait at most at four levels.
inline constexpr int kOuterOrder[kOuterLanes] = {0, 8, 4, 12, 2, 10, 6, 14,
                                                 1, 9, 5, 13, 3, 11, 7, 15};
inline constexpr int kOuterLevels = 5;

// One lane of a tile: `steps` outer products of a[kRows] and w[kVectors vectors] from +0,
// ascending. Then `merges` levels of the tree are added, the waiting sum first, and the sum is left
// at level `merges`. levels[kOuterLevels][kRows][kVectors].
template <int kRows, int kVectors>
HWY_NOINLINE void outer_kernel(int64_t steps, const float* HWY_RESTRICT a,
                               const float* HWY_RESTRICT w, int merges, int64_t level_size,
                               float* HWY_RESTRICT levels) {
  const OuterTag df;
  using V = hn::VFromD<OuterTag>;
  constexpr int64_t kVector = static_cast<int64_t>(hn::MaxLanes(df));
  V sum[kRows][kVectors];
  HWY_UNROLL(16)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(4)
    for (int c = 0; c < kVectors; ++c) sum[r][c] = hn::Zero(df);
  }
  for (int64_t step = 0; step < steps; ++step) {
    V w_vector[kVectors];
    HWY_UNROLL(4)
    for (int c = 0; c < kVectors; ++c) w_vector[c] = hn::Load(df, w + c * kVector);
    HWY_UNROLL(16)
    for (int r = 0; r < kRows; ++r) {
      const V a_vector = hn::Set(df, a[r]);
      HWY_UNROLL(4)
      for (int c = 0; c < kVectors; ++c) sum[r][c] = hn::MulAdd(a_vector, w_vector[c], sum[r][c]);
    }
    a += kRows;
    w += kVectors * kVector;
  }
  for (int level = 0; level < merges; ++level) {
    HWY_UNROLL(16)
    for (int r = 0; r < kRows; ++r) {
      HWY_UNROLL(4)
      for (int c = 0; c < kVectors; ++c) {
        sum[r][c] = hn::Add(hn::Load(df, levels + (r * kVectors + c) * kVector), sum[r][c]);
      }
    }
    levels += level_size;
  }
  HWY_UNROLL(16)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(4)
    for (int c = 0; c < kVectors; ++c) {
      hn::Store(sum[r][c], df, levels + (r * kVectors + c) * kVector);
    }
  }
}

template <int kRows = kOuterRows, int kVectors = kOuterVectors>
void outer_tile(int64_t rows, int64_t vectors, int64_t steps, const float* a, const float* w,
                int merges, int64_t level_size, float* levels) {
  // Narrows the template arguments down to the sizes at hand.
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return outer_tile<kRows - 1, kVectors>(rows, vectors, steps, a, w, merges, level_size,
                                             levels);
    }
  }
  if constexpr (kVectors > 1) {
    if (vectors < kVectors) {
      return outer_tile<kRows, kVectors - 1>(rows, vectors, steps, a, w, merges, level_size,
                                             levels);
    }
  }
  outer_kernel<kRows, kVectors>(steps, a, w, merges, level_size, levels);
}

// Four k of a vector of rows, transposed: to[i] = element i of each row. Row r lies at from + r *
// stride.
HWY_INLINE void transpose_four(const float* HWY_RESTRICT from, int64_t stride,
                               float* HWY_RESTRICT to0, float* HWY_RESTRICT to1,
                               float* HWY_RESTRICT to2, float* HWY_RESTRICT to3) {
  const OuterTag df;
  const hn::RepartitionToWide<OuterTag> d64;
  using V = hn::VFromD<OuterTag>;
  // Block b of a vector: row 4b + i. Then 4 x 4 words are transposed within blocks.
  const auto rows = [&](int64_t i) HWY_ATTR {
#if HWY_TARGET == HWY_AVX3
    __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(from + i * stride));
    v = _mm512_insertf32x4(v, _mm_loadu_ps(from + (4 + i) * stride), 1);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(from + (8 + i) * stride), 2);
    return V{_mm512_insertf32x4(v, _mm_loadu_ps(from + (12 + i) * stride), 3)};
#elif HWY_TARGET == HWY_AVX2
    const __m256 v = _mm256_castps128_ps256(_mm_loadu_ps(from + i * stride));
    return V{_mm256_insertf128_ps(v, _mm_loadu_ps(from + (4 + i) * stride), 1)};
#else
    return hn::LoadU(df, from + i * stride);
#endif
  };
  const V row0 = rows(0), row1 = rows(1), row2 = rows(2), row3 = rows(3);
  const auto low01 = hn::BitCast(d64, hn::InterleaveLower(df, row0, row1));
  const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(df, row0, row1));
  const auto low23 = hn::BitCast(d64, hn::InterleaveLower(df, row2, row3));
  const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(df, row2, row3));
  hn::StoreU(hn::BitCast(df, hn::InterleaveLower(d64, low01, low23)), df, to0);
  hn::StoreU(hn::BitCast(df, hn::InterleaveUpper(d64, low01, low23)), df, to1);
  hn::StoreU(hn::BitCast(df, hn::InterleaveLower(d64, high01, high23)), df, to2);
  hn::StoreU(hn::BitCast(df, hn::InterleaveUpper(d64, high01, high23)), df, to3);
}

// Where packed elements lie: those of lane j of C2.2 at j * lane, and of its step s (k = 16 s + j)
// at s * step.
struct OuterLayout {
  int64_t step, lane;
};

// Floats from one lane to the next, which hold `size`: with room for what packing writes too much,
// and an odd number of cache lines, which keeps the 16 lanes out of each other's sets.
int64_t outer_lane_stride(int64_t size) {
  constexpr int64_t kLine = 16;
  return (ceil_div(size + kOuterLanes, kLine) | 1) * kLine;
}

// Of K at a time in packing: whole cache lines of a row one after the other. Rows are often a
// multiple of 4 KiB apart, and 16 of them would push each other out of one set of the cache.
inline constexpr int64_t kOuterPackK = 64;
inline constexpr int64_t kOuterPackAhead = 2 * kOuterPackK;  // of a row that is fetched
inline constexpr int64_t kOuterPackStride = kOuterPackK + kOuterLanes;

// Packs `rows` (at most a vector) rows of x from `row` on; missing ones are +0, and so is what lies
// past K. Writes whole vectors, ascending: what a narrower tile has too much is overwritten by its
// next step.
void outer_pack(const GemmOperand& x, int64_t row, int64_t rows, int64_t k,
                const OuterLayout& layout, float* to) {
  const OuterTag df;
  const int64_t vector = outer_vector();
  const hn::Rebind<uint16_t, OuterTag> d16;
  const hn::RebindToUnsigned<OuterTag> du;
  alignas(64) float values[kOuterLanes * kOuterPackStride];
  alignas(64) uint16_t narrow[kBlock];
  if (rows < vector || k % kOuterPackK != 0) std::fill(std::begin(values), std::end(values), 0.0f);
  for (int64_t k0 = 0; k0 < k; k0 += kOuterPackK) {
    const int64_t count = std::min(kOuterPackK, k - k0);
    if (x.type == GemmType::kFp32) {
      for (int64_t r = 0; r < rows; ++r) {
        const float* from = reinterpret_cast<const float*>(row_of(x, row + r).data) + k0;
        float* at = values + r * kOuterPackStride;
        if (HWY_LIKELY(count == kOuterPackK)) {
          // The processor does not see a stream in reads that go from row to row.
          for (int64_t i = 0; i < kOuterPackK; i += kOuterLanes) {
            __builtin_prefetch(from + kOuterPackAhead + i, 0, 2);  // to the second-level cache
          }
          for (int64_t i = 0; i < kOuterPackK; i += vector) {
            hn::Store(hn::LoadU(df, from + i), df, at + i);
          }
        } else {
          std::fill(std::copy_n(from, count, at), at + kOuterPackK, 0.0f);
        }
      }
    } else {
      with_type(x.type, [&](auto type) HWY_ATTR {
        for (int64_t r = 0; r < rows; ++r) {
          const RowView view = row_of(x, row + r);
          for (int64_t i = 0; i < count; i += kBlock) {
            decode_block<type()>(view, (k0 + i) / kBlock, k, narrow);
            float* at = values + r * kOuterPackStride + i;
            for (int64_t j = 0; j < kBlock; j += vector) {
              const auto wide = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::Load(d16, narrow + j)));
              hn::Store(hn::BitCast(df, wide), df, at + j);
            }
          }
        }
      });
    }
    for (int64_t i = 0; i < round_up(count, kOuterLanes); i += 4) {
      float* at = to + (i % kOuterLanes) * layout.lane + (k0 + i) / kOuterLanes * layout.step;
      transpose_four(values + i, kOuterPackStride, at, at + layout.lane, at + 2 * layout.lane,
                     at + 3 * layout.lane);
    }
  }
}

// A W^T with `p.a` broadcast and `p.w` along the vectors, or (kSwapped) the other way round.
template <bool kSwapped>
void gemm_fp32_outer(const GemmProblem& p) {
  const GemmOperand& broadcast = kSwapped ? p.w : p.a;
  const GemmOperand& along = kSwapped ? p.a : p.w;
  const int64_t broadcast_rows = kSwapped ? p.n : p.m, along_rows = kSwapped ? p.m : p.n;
  const int64_t vector = outer_vector(), panel_rows = kOuterVectors * vector;

  // Tiles of nearly one height, and chunks of nearly one number of tiles.
  const int64_t all_tiles = ceil_div(broadcast_rows, kOuterRows);
  const int64_t tile_rows = ceil_div(broadcast_rows, all_tiles);
  const int64_t most_tiles =
      std::max(kOuterBytes / std::max<int64_t>(p.k * 4, 1), kOuterLeastRows) / kOuterRows;
  const int64_t chunk_tiles = ceil_div(all_tiles, ceil_div(all_tiles, most_tiles));

  const int64_t steps = ceil_div(p.k, kOuterLanes);
  // tiles[lane][tile][step][row], and panels of [lane][step][column].
  const int64_t tile_size = steps * tile_rows,
                tile_lane = outer_lane_stride(chunk_tiles * tile_size);
  const int64_t panel_lane = outer_lane_stride(steps * panel_rows);
  const int64_t sums_size = tile_rows * panel_rows, level_size = chunk_tiles * sums_size;
  const int64_t panel_size = kOuterLanes * panel_lane;
  const int64_t panels = ceil_div(along_rows, panel_rows);
  const bool keep = panels * panel_size * 4 <= kOuterKeptBytes;
  GemmScratch& scratch = gemm_scratch();
  float* tiles = scratch.activations.get<float>(kOuterLanes * tile_lane);
  float* packed = scratch.weights.get<float>((keep ? panels : 1) * panel_size);
  float* levels = scratch.accumulators.get<float>(kOuterLevels * level_size);
  float* turned = scratch.rows.get<float>(kSwapped ? panel_rows * chunk_tiles * tile_rows : 0);

  for (int64_t tile0 = 0; tile0 < all_tiles; tile0 += chunk_tiles) {
    const int64_t begin = tile0 * tile_rows;
    const int64_t end = std::min(begin + chunk_tiles * tile_rows, broadcast_rows);
    const int64_t tile_count = ceil_div(end - begin, tile_rows);
    const auto rows_of = [&](int64_t tile) {
      return std::min(tile_rows, end - begin - tile * tile_rows);
    };
    for (int64_t tile = 0; tile < tile_count; ++tile) {
      // A tile may be several short vectors high. The last is packed first: what it writes too much
      // is the next step of the first.
      const int64_t rows = rows_of(tile);
      for (int64_t r = (rows - 1) / vector * vector; r >= 0; r -= vector) {
        outer_pack(broadcast, begin + tile * tile_rows + r, std::min(vector, rows - r), p.k,
                   {rows, tile_lane}, tiles + tile * tile_size + r);
      }
    }
    for (int64_t n0 = 0; n0 < along_rows; n0 += panel_rows) {
      const int64_t columns = std::min(panel_rows, along_rows - n0);
      const int64_t vectors = ceil_div(columns, vector), width = vectors * vector;
      UnderflowWatch underflow;
      underflow.start();
      float* panel = packed + (keep ? n0 / panel_rows * panel_size : 0);
      for (int64_t v = 0; v < vectors && (tile0 == 0 || !keep); ++v) {
        const int64_t row = n0 + v * vector;
        outer_pack(along, row, std::min(vector, along_rows - row), p.k, {width, panel_lane},
                   panel + v * vector);
      }
      for (int64_t i = 0; i < kOuterLanes; ++i) {
        const int64_t lane = kOuterOrder[i];
        const int64_t lane_steps = p.k > lane ? ceil_div(p.k - lane, kOuterLanes) : 0;
        // As many sums of the tree end with this lane as its number has ones at its end.
        const int merges = std::countr_one(static_cast<uint32_t>(i));
        for (int64_t tile = 0; tile < tile_count; ++tile) {
          outer_tile(rows_of(tile), vectors, lane_steps,
                     tiles + lane * tile_lane + tile * tile_size, panel + lane * panel_lane, merges,
                     level_size, levels + tile * sums_size);
          if (i + 1 < kOuterLanes) continue;
          // Stored one by one between tiles, misses of the cache hide behind the next tile's work.
          const float* sums = levels + (kOuterLevels - 1) * level_size + tile * sums_size;
          for (int64_t r = 0; r < rows_of(tile); ++r) {
            if constexpr (kSwapped) {
              float* to = turned + tile * tile_rows + r;
              for (int64_t c = 0; c < columns; ++c) to[c * (end - begin)] = sums[r * width + c];
            } else {
              store_row(p.c, begin + tile * tile_rows + r, n0, columns, sums + r * width);
            }
          }
        }
      }
      if constexpr (kSwapped) {
        for (int64_t c = 0; c < columns; ++c) {
          store_row(p.c, n0 + c, begin, end - begin, turned + c * (end - begin));
        }
      }
      if (underflow.seen()) {
        scalar_gemm_kernels().fp32(kSwapped ? part_of(p, n0, columns, begin, end - begin)
                                            : part_of(p, begin, end - begin, n0, columns));
      }
    }
  }
}

// fma slots that a product takes, with what the last tiles and panels leave empty.
int64_t outer_slots(int64_t broadcast_rows, int64_t along_rows) {
  return broadcast_rows * round_up(along_rows, outer_vector());
}

// Rows of both operands from which packing them transposed pays, measured against the kernel with
// lanes along K; less for a short K, where that kernel's sums of lanes weigh more. And a K that is
// worth the tree.
inline constexpr int64_t kOuterFromRows = 128;
inline constexpr int64_t kOuterShortK = 256, kOuterFromRowsOfShortK = 64;
inline constexpr int64_t kOuterFromK = 64;

bool outer_pays(const GemmProblem& p) {
  const int64_t from = p.k <= kOuterShortK ? kOuterFromRowsOfShortK : kOuterFromRows;
  return p.m >= from && p.n >= from && p.k >= kOuterFromK;
}

void gemm_fp32_outer(const GemmProblem& p) {
  if (outer_slots(p.n, p.m) < outer_slots(p.m, p.n)) return gemm_fp32_outer<true>(p);
  gemm_fp32_outer<false>(p);
}

}  // namespace
#endif  // HWY_NATIVE_FMA
}  // namespace deepinfer::gemm_internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard that Highway toggles per target
