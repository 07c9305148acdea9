// Matrix products C[M, N] = A[M, K] W[N, K]^T in canonical arithmetic (CANONICAL.md C2), over raw
// memory.
#pragma once

#include <cstdint>
#include <span>

#include "sim/kernels/target.h"

namespace deepinfer {

enum class GemmType {
  kFp32,
  kBf16,  // carried in uint16_t
  kFp8,   // e4m3fn, one code a byte
  kFp4,   // e2m1, two codes a byte: element 2i in the low nibble of byte i
};

// A row-major operand [rows, K]. Make one with the functions below.
//
// Block-scaled operands stand for the bf16 values of C2.4: code times 2^(scale - 127). A NaN code,
// or scale 255, gives NaN; a product below bf16's normal range counts as zero of its sign; one
// above it is infinity.
struct GemmOperand {
  GemmType type = GemmType::kFp32;
  const void* data = nullptr;
  int64_t row_stride = 0;           // in elements (fp32, bf16) or bytes (fp8, fp4)
  const uint8_t* scales = nullptr;  // ue8m0 [ceil(rows / scale_rows), ceil(K / 32)]; null: all 2^0
  int64_t scale_stride = 0;         // bytes from one row of scales to the next
  int64_t scale_rows = 1;           // rows that share a scale: 1, or 32 for 32x32 tiles

  // The rows from `row` on. With shared scales `row` is a multiple of scale_rows (asserted).
  GemmOperand from_row(int64_t row) const;
  // The columns from `k` on. For scaled types `k` is a multiple of 32 (asserted); for kFp4 of 2.
  GemmOperand from_column(int64_t k) const;
};

// data [rows, K] fp32, row_stride in elements.
GemmOperand fp32_operand(const float* data, int64_t row_stride);
// data [rows, K] bf16, row_stride in elements.
GemmOperand bf16_operand(const uint16_t* data, int64_t row_stride);
// codes [rows, K] e4m3fn, scales [rows, ceil(K / 32)] ue8m0: what AQ32 makes of activations.
GemmOperand fp8_rows_operand(const uint8_t* codes, int64_t row_stride, const uint8_t* scales,
                             int64_t scale_stride);
// codes [rows, K] e4m3fn, scales [ceil(rows / 32), ceil(K / 32)] ue8m0: weights in 32x32 tiles.
GemmOperand fp8_tiles_operand(const uint8_t* codes, int64_t row_stride, const uint8_t* scales,
                              int64_t scale_stride);
// codes [rows, ceil(K / 2)] packed e2m1, scales [rows, ceil(K / 32)] ue8m0: expert weights.
GemmOperand fp4_operand(const uint8_t* codes, int64_t row_stride, const uint8_t* scales,
                        int64_t scale_stride);

// Where the result goes: [M, N] fp32 or bf16 (rounded once, C1.4), row-major. A NaN is always
// written as the positive quiet NaN (0x7FC00000, 0x7FC0), so that equality of bits holds for it too
// (C2.7).
struct GemmOutput {
  GemmType type = GemmType::kFp32;  // kFp32 or kBf16
  void* data = nullptr;
  int64_t row_stride = 0;  // in elements
};
GemmOutput fp32_output(float* data, int64_t row_stride);
GemmOutput bf16_output(uint16_t* data, int64_t row_stride);

struct GemmOptions {
  Target target = best_target();
  // Threads that share the work, the caller among them. Never changes a bit.
  int threads = 1;
};

// C[M, N] = A[M, K] W[N, K]^T. Order of operations: C2.2 if either operand is kFp32, else C2.1.
// Operands and output must not overlap. M, N, K may be 0; K = 0 gives +0. Throws UnsupportedError
// for a target that is not available.
void gemm(int64_t m, int64_t n, int64_t k, const GemmOperand& a, const GemmOperand& w,
          const GemmOutput& c, const GemmOptions& options = {});

// Rows row_offsets[g] to row_offsets[g + 1] of A times weights[g]^T, for every group g (an expert
// with its tokens). row_offsets has weights.size() + 1 ascending entries (asserted); rows of C
// outside are left alone.
void gemm_grouped(std::span<const int64_t> row_offsets, int64_t n, int64_t k, const GemmOperand& a,
                  std::span<const GemmOperand> weights, const GemmOutput& c,
                  const GemmOptions& options = {});

// Row-parallel product (C2.6). Leaf i takes the columns leaf_offsets[i] to leaf_offsets[i + 1] of
// K; offsets ascend and, except the last, are multiples of 32 (asserted). A leaf with no columns is
// absent.
//
// One fp32 partial per leaf: partials [leaves, M, N], contiguous. An absent leaf's partial is +0.
void gemm_leaf_partials(int64_t m, int64_t n, std::span<const int64_t> leaf_offsets,
                        const GemmOperand& a, const GemmOperand& w, float* partials,
                        const GemmOptions& options = {});
// The partials combined by the tree (C2.5, contiguous), then rounded once to the output type.
void gemm_row_parallel(int64_t m, int64_t n, std::span<const int64_t> leaf_offsets,
                       const GemmOperand& a, const GemmOperand& w, const GemmOutput& c,
                       const GemmOptions& options = {});

// What a rank contributes to it: leaf i stands at tree position first_position + i, and each
// maximal subtree of these positions (platform/shard_map.h) gives one fp32 partial, in tree order.
// partials [subtrees, M, N], contiguous. A subtree without columns is -0: adding it is skipping it.
void gemm_subtree_partials(int64_t m, int64_t n, int64_t first_position,
                           std::span<const int64_t> leaf_offsets, const GemmOperand& a,
                           const GemmOperand& w, float* partials, const GemmOptions& options = {});

// Combines partials of `count` values each by the tree C2.5 (contiguous axis) into `c` (one row of
// `count` values; its stride is not used). partials[i] is leaf i's, or null if it is absent. No
// leaf at all gives +0.
void combine_leaves(std::span<const float* const> partials, int64_t count, const GemmOutput& c);

}  // namespace deepinfer
