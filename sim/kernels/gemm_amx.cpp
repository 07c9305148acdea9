// The bf16 dot product C2.1 on AMX tiles: one TDPBF16PS is one block of 32 k.
#include "sim/kernels/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/kernels/gemm_amx.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "platform/errors.h"
#include "sim/kernels/amx.h"
#include "sim/kernels/gemm_decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deepinfer::gemm_internal::HWY_NAMESPACE {
#if HWY_TARGET == HWY_AVX3
namespace {

// TDPBF16PS wants one operand as rows (16 rows of 32 k: how W lies in memory) and the other in the
// VNNI layout (16 pairs of k by 16 columns). Taking W for the rows and A for the columns, only A
// must be transposed, once; the result is C^T in tiles, transposed on its way out. Multiplication
// commutes, so the bits are those of A W^T.
//
//   A   packed once per chunk of rows: a[column group][block][1 or 2 tiles][pair][16]
//   W   decoded piece by piece into w[block][32 rows][32 k], in the shadow of the tile steps on
//       the piece before
//   acc C^T tiles between blocks of K: acc[column group][2 x 1 or 2 tiles][16][16]
inline constexpr int64_t kTile = 16;                     // rows and columns of a tile
inline constexpr int64_t kTileWords = kTile * kTile;     // 1 KiB
inline constexpr int64_t kGroup = 2 * kTile;             // columns (rows of A) of a 2 x 2 step
inline constexpr int64_t kAmxBlocks = 8;                 // of K, decoded at a time: 16 KiB
inline constexpr int64_t kAmxActivationBytes = 1 << 20;  // packed A: half of a second-level cache

// Tile registers 0-3 accumulate, 4-5 hold W, 6-7 hold A. As assembly with their memory operands,
// since the compilers' intrinsics do not say which memory they touch. It holds bf16, pairs or fp32.
struct [[gnu::may_alias]] TileMemory {
  uint32_t words[kTileWords];
};
#define DEEPINFER_SIM_TILE_LOAD(tile, from)       \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #tile \
               :                                  \
               : "r"(from), "r"(int64_t{64}), "m"(*reinterpret_cast<const TileMemory*>(from)))
#define DEEPINFER_SIM_TILE_STORE(to, tile)                \
  asm volatile("tilestored %%tmm" #tile ", (%1,%2,1)"     \
               : "=m"(*reinterpret_cast<TileMemory*>(to)) \
               : "r"(to), "r"(int64_t{64}))
#define DEEPINFER_SIM_TILE_ZERO(tile) asm volatile("tilezero %%tmm" #tile ::)
#define DEEPINFER_SIM_TILE_MULTIPLY(acc, rows, columns) \
  asm volatile("tdpbf16ps %%tmm" #columns ", %%tmm" #rows ", %%tmm" #acc ::)

// Bytes of one block of 32 k in memory.
constexpr int64_t block_bytes(GemmType type) {
  return type == GemmType::kBf16 ? 64 : type == GemmType::kFp8 ? 32 : 16;
}

// A piece of W: blocks [block, block + blocks) of rows [row, row + rows), rows <= 32.
struct Piece {
  int64_t row, rows, block, blocks;
};

// Decodes pieces of W, a little at a time, and prefetches the piece after. A unit of work is a row
// of two blocks; rows of the same blocks follow each other, since rows of fp8 tiles share their
// scales.
template <GemmType kType>
class PieceDecoder {
 public:
  static constexpr int64_t kUnits = kAmxBlocks / 2 * kStripRows;  // in a whole piece

  PieceDecoder(const GemmOperand& w, int64_t k)
      : w_(w), k_(k), row_bytes_(w.row_stride * (kType == GemmType::kBf16 ? 2 : 1)) {}

  // Starts on `piece`, to `to`; `next` is what will be asked for after it. A whole piece is left to
  // run(); one at the edge of W is decoded at once.
  HWY_INLINE void start(const Piece& piece, const Piece& next, uint16_t* to) {
    first_row_ = piece.row;
    block_ = piece.block;
    end_block_ = piece.block + piece.blocks;
    row_ = 0;
    to_ = to;
    if (piece.rows < kStripRows || piece.blocks % 2 != 0 || end_block_ * kBlock > k_) {
      decode_at_once(piece, to);
      block_ = end_block_;
      return;
    }
    // Addresses as numbers, since those ahead may lie outside of W.
    ahead_ = static_cast<uintptr_t>((next.row - piece.row) * row_bytes_ +
                                    (next.block - piece.block) * block_bytes(kType));
    start_blocks();
  }

  // The next kRows units, a divisor of 32, if any are left.
  template <int kRows>
  HWY_INLINE void run() {
    if (block_ == end_block_) return;
    uintptr_t from = from_;
    uint16_t* to = to_;
    const uintptr_t ahead = ahead_, row_bytes = static_cast<uintptr_t>(row_bytes_);
    const __m512i step0 = _mm512_set1_epi16(static_cast<int16_t>(step0_));
    const __m512i step1 = _mm512_set1_epi16(static_cast<int16_t>(step1_));
    const bool plain = plain_;
    const int64_t scale_stride = plain ? w_.scale_stride : 0;
    const uint8_t* scales = scales_ + row_ * scale_stride;
    for (int i = 0; i < kRows; ++i, from += row_bytes, to += kBlock) {
      prefetch(from + ahead);
      if constexpr (kType == GemmType::kBf16) {
        prefetch(from + ahead + 64);
        copy_bf16_32(reinterpret_cast<const uint16_t*>(from), to);
        copy_bf16_32(reinterpret_cast<const uint16_t*>(from) + kBlock, to + kBlockWords);
      } else {
        if constexpr (kType == GemmType::kFp8) {
          if (HWY_LIKELY(plain) && HWY_LIKELY(decode_fp8_64(reinterpret_cast<const uint8_t*>(from),
                                                            step0, step1, to, to + kBlockWords))) {
            continue;
          }
        }
        if constexpr (kType == GemmType::kFp4) {
          const int scale0 = scales[0], scale1 = scales[1];
          scales += scale_stride;
          if (HWY_LIKELY(plain && is_plain_fp4_scale(scale0) && is_plain_fp4_scale(scale1))) {
            const uint8_t* codes = reinterpret_cast<const uint8_t*>(from);
            _mm512_storeu_si512(to, decode_fp4_plain(codes, scale0));
            _mm512_storeu_si512(to + kBlockWords, decode_fp4_plain(codes + kBlock / 2, scale1));
            continue;
          }
        }
        decode_row(row_ + i, to);
      }
    }
    from_ = from;
    to_ = to;
    row_ += kRows;
    if (row_ == kStripRows) {
      row_ = 0;
      block_ += 2;
      to_ += kBlockWords;  // past the odd block
      if (block_ != end_block_) start_blocks();
    }
  }

  // What is left, in the steps that it was begun in: others would not end at a whole strip.
  template <int kRows>
  HWY_INLINE void finish() {
    while (block_ != end_block_) run<kRows>();
  }

 private:
  static constexpr int64_t kBlockWords = kStripRows * kBlock;

  HWY_INLINE void start_blocks() {
    from_ = reinterpret_cast<uintptr_t>(w_.data) +
            static_cast<uintptr_t>(first_row_ * row_bytes_ + block_ * block_bytes(kType));
    if constexpr (kType == GemmType::kFp8) {
      const RowView view = row_of(w_, first_row_);
      const int scale0 = scale_at(view, block_ * kBlock),
                scale1 = scale_at(view, (block_ + 1) * kBlock);
      plain_ = std::min(scale0, scale1) >= kFp8MinScale &&
               std::max(scale0, scale1) <= kFp8MaxScale &&
               (w_.scales == nullptr || w_.scale_rows != 1);
      step0_ = exponent_step(scale0 + kFp8ExponentOffset);
      step1_ = exponent_step(scale1 + kFp8ExponentOffset);
    }
    if constexpr (kType == GemmType::kFp4) {
      plain_ = w_.scales != nullptr && w_.scale_rows == 1;
      if (plain_) scales_ = row_of(w_, first_row_).scales + block_;
    }
  }

  HWY_NOINLINE void decode_row(int64_t row, uint16_t* to) const {
    const RowView view = row_of(w_, first_row_ + row);
    decode_block<kType>(view, block_, k_, to);
    decode_block<kType>(view, block_ + 1, k_, to + kBlockWords);
  }

  HWY_NOINLINE void decode_at_once(const Piece& piece, uint16_t* to) const {
    std::memset(to, 0, static_cast<size_t>(piece.blocks * kBlockWords) * sizeof(uint16_t));
    for (int64_t row = 0; row < piece.rows; ++row) {
      for (int64_t i = 0; i < piece.blocks; ++i) {
        decode_block<kType>(row_of(w_, piece.row + row), piece.block + i, k_,
                            to + i * kBlockWords + row * kBlock);
      }
    }
  }

  static HWY_INLINE void prefetch(uintptr_t address) {
    _mm_prefetch(reinterpret_cast<const char*>(address), _MM_HINT_T2);
  }

  const GemmOperand w_;
  const int64_t k_;
  const int64_t row_bytes_;
  uintptr_t ahead_ = 0;  // from a byte of this piece to that of the next
  // In work: row row_ of the strip that starts at first_row_, blocks block_ and block_ + 1.
  int64_t first_row_ = 0, row_ = 0, block_ = 0, end_block_ = 0;
  uintptr_t from_ = 0;
  uint16_t* to_ = nullptr;
  // fp8: whether rows share scales, and those are ordinary; their exponent steps. fp4: whether
  // every row has scales; those of the first. (Never read where they are not set.)
  bool plain_ = false;
  uint16_t step0_ = 0, step1_ = 0;
  alignas(2) static constexpr uint8_t kNoScales[2] = {};
  const uint8_t* scales_ = kNoScales;
};

// Blocks [0, blocks) of one column group: acc (+)= W A^T, with kRows units of decoding after each
// step.
template <int kTiles, int kRows, class Decoder>
HWY_INLINE void amx_group(int64_t blocks, bool first, const uint16_t* w, const uint32_t* a,
                          float* acc, Decoder& decoder) {
  if (first) {
    DEEPINFER_SIM_TILE_ZERO(0);
    DEEPINFER_SIM_TILE_ZERO(2);
    if constexpr (kTiles == 2) {
      DEEPINFER_SIM_TILE_ZERO(1);
      DEEPINFER_SIM_TILE_ZERO(3);
    }
  } else {
    DEEPINFER_SIM_TILE_LOAD(0, acc);
    DEEPINFER_SIM_TILE_LOAD(2, acc + kTileWords);
    if constexpr (kTiles == 2) {
      DEEPINFER_SIM_TILE_LOAD(1, acc + 2 * kTileWords);
      DEEPINFER_SIM_TILE_LOAD(3, acc + 3 * kTileWords);
    }
  }
  for (int64_t block = 0; block < blocks; ++block) {
    const uint16_t* w_block = w + block * kStripRows * kBlock;
    const uint32_t* a_block = a + block * kTiles * kTileWords;
    DEEPINFER_SIM_TILE_LOAD(6, a_block);
    DEEPINFER_SIM_TILE_LOAD(4, w_block);
    DEEPINFER_SIM_TILE_MULTIPLY(0, 4, 6);
    if constexpr (kTiles == 2) {
      DEEPINFER_SIM_TILE_LOAD(7, a_block + kTileWords);
      DEEPINFER_SIM_TILE_MULTIPLY(1, 4, 7);
    }
    DEEPINFER_SIM_TILE_LOAD(5, w_block + kTile * kBlock);
    DEEPINFER_SIM_TILE_MULTIPLY(2, 5, 6);
    if constexpr (kTiles == 2) DEEPINFER_SIM_TILE_MULTIPLY(3, 5, 7);
    decoder.template run<kRows>();
  }
  DEEPINFER_SIM_TILE_STORE(acc, 0);
  DEEPINFER_SIM_TILE_STORE(acc + kTileWords, 2);
  if constexpr (kTiles == 2) {
    DEEPINFER_SIM_TILE_STORE(acc + 2 * kTileWords, 1);
    DEEPINFER_SIM_TILE_STORE(acc + 3 * kTileWords, 3);
  }
}

// Rows [m0, m0 + rows) of A, in the layout above; rows past m become +0.
template <GemmType kType>
void pack_activations(const GemmProblem& p, int64_t m0, int64_t rows, int64_t blocks, uint32_t* a) {
  alignas(64) uint16_t tile[kTile * kBlock];
  const int64_t tiles = ceil_div(rows, kTile);
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t in_group = std::min<int64_t>(tiles - t / 2 * 2, 2);
    uint32_t* to = a + (t / 2 * 2 * blocks + t % 2) * kTileWords;
    const int64_t count = std::min(kTile, rows - t * kTile);
    if (count < kTile) std::memset(tile, 0, sizeof(tile));
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t r = 0; r < count; ++r) {
        decode_block<kType>(row_of(p.a, m0 + t * kTile + r), block, p.k, tile + r * kBlock);
      }
      transpose_16x16(reinterpret_cast<const uint32_t*>(tile), kTile,
                      to + block * in_group * kTileWords, kTile);
    }
  }
}

// Tiles of C^T to rows [m0, m0 + rows) and columns [n0, n0 + columns) of C.
void store_strip(const GemmProblem& p, int64_t m0, int64_t rows, int64_t n0, int64_t columns,
                 const float* acc) {
  alignas(64) uint32_t words[kTile * kGroup];
  for (int64_t r = 0; r < rows; r += kTile) {
    const float* tiles = acc + (r / kGroup * 4 + r / kTile % 2 * 2) * kTileWords;
    for (int half = 0; half < 2; ++half) {
      transpose_16x16(reinterpret_cast<const uint32_t*>(tiles + half * kTileWords), kTile,
                      words + half * kTile, kGroup);
    }
    for (int64_t i = 0; i < std::min(kTile, rows - r); ++i) {
      store_row(p.c, m0 + r + i, n0, columns, reinterpret_cast<const float*>(words + i * kGroup));
    }
  }
}

// All columns of C for one chunk of rows; kRows units of decoding go with each step.
template <GemmType kType, int kRows>
void amx_chunk(const GemmProblem& p, int64_t m0, int64_t rows, int64_t blocks, const uint32_t* a,
               uint16_t* w, float* acc) {
  const int64_t tiles = ceil_div(rows, kTile);
  const int64_t cuts = ceil_div(blocks, kAmxBlocks);  // of K
  const int64_t pieces = cuts * ceil_div(p.n, kStripRows);
  const auto piece_at = [&](int64_t i) {
    const int64_t row = i / cuts * kStripRows, block = i % cuts * kAmxBlocks;
    return Piece{row, std::clamp<int64_t>(p.n - row, 0, kStripRows), block,
                 std::min(kAmxBlocks, blocks - block)};
  };
  constexpr int64_t kBufferSize = kAmxBlocks * kStripRows * kBlock;
  PieceDecoder<kType> decoder(p.w, p.k);
  Piece piece = piece_at(0), next = piece_at(1);
  decoder.start(piece, next, w);
  decoder.template finish<kRows>();
  for (int64_t i = 0; i < pieces; ++i) {
    const Piece after = piece_at(i + 2);
    const uint16_t* w_now = w + i % 2 * kBufferSize;
    if (i + 1 < pieces) decoder.start(next, after, w + (i + 1) % 2 * kBufferSize);
    for (int64_t t = 0; t < tiles; t += 2) {
      const uint32_t* a_group = a + t * blocks * kTileWords;
      float* acc_group = acc + t * 2 * kTileWords;
      if (t + 1 < tiles) {
        amx_group<2, kRows>(piece.blocks, piece.block == 0, w_now,
                            a_group + 2 * piece.block * kTileWords, acc_group, decoder);
      } else {
        amx_group<1, kRows>(piece.blocks, piece.block == 0, w_now,
                            a_group + piece.block * kTileWords, acc_group, decoder);
      }
    }
    decoder.template finish<kRows>();
    if (piece.block + piece.blocks == blocks) {
      store_strip(p, m0, rows, piece.row, piece.rows, acc);
    }
    piece = next;
    next = after;
  }
}

template <GemmType kType>
void amx_chunk(const GemmProblem& p, int64_t m0, int64_t rows, int64_t blocks, const uint32_t* a,
               uint16_t* w, float* acc) {
  // As few units a step as keep the decoder ahead.
  const int64_t steps = ceil_div(rows, kGroup) * kAmxBlocks;
  const int64_t units = ceil_div(PieceDecoder<kType>::kUnits, steps);
  if (units > 8) return amx_chunk<kType, 16>(p, m0, rows, blocks, a, w, acc);
  if (units > 4) return amx_chunk<kType, 8>(p, m0, rows, blocks, a, w, acc);
  if (units > 2) return amx_chunk<kType, 4>(p, m0, rows, blocks, a, w, acc);
  if (units > 1) return amx_chunk<kType, 2>(p, m0, rows, blocks, a, w, acc);
  return amx_chunk<kType, 1>(p, m0, rows, blocks, a, w, acc);
}

void gemm(const GemmProblem& p) {
  if (p.m == 0 || p.n == 0) return;
  // K = 0 is one block of padding: +0.
  const int64_t blocks = std::max<int64_t>(ceil_div(p.k, kBlock), 1);
  const int64_t max_rows =
      std::max<int64_t>(kAmxActivationBytes / (blocks * kTileWords * 4) * kTile / kGroup, 2) *
      kGroup;
  const int64_t chunk = std::min(max_rows, p.m);
  const int64_t tiles = ceil_div(chunk, kTile);
  GemmScratch& scratch = gemm_scratch();
  uint32_t* a = scratch.activations.get<uint32_t>(tiles * blocks * kTileWords);
  uint16_t* w = scratch.weights.get<uint16_t>(2 * kAmxBlocks * kStripRows * kBlock);
  float* acc = scratch.accumulators.get<float>(tiles * 2 * kTileWords);
  const AmxScope tile_registers;
  for (int64_t m0 = 0; m0 < p.m; m0 += chunk) {
    const int64_t rows = std::min(chunk, p.m - m0);
    with_type(p.a.type,
              [&](auto type) HWY_ATTR { pack_activations<type()>(p, m0, rows, blocks, a); });
    with_type(p.w.type,
              [&](auto type) HWY_ATTR { amx_chunk<type()>(p, m0, rows, blocks, a, w, acc); });
  }
}

}  // namespace

void (*const kAmxGemm)(const GemmProblem&) = gemm;
#endif  // HWY_TARGET == HWY_AVX3
}  // namespace deepinfer::gemm_internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deepinfer::gemm_internal {

void amx_gemm_bf16([[maybe_unused]] const GemmProblem& problem) {
#if DEEPINFER_SIM_HAVE_AVX512
  N_AVX3::kAmxGemm(problem);
#else
  DEEPINFER_ASSERT(false, "AMX kernel in a build without AVX-512");
#endif
}

}  // namespace deepinfer::gemm_internal
#endif  // HWY_ONCE
