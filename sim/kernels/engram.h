// Engram: n-gram hash, table fetch, gate (CANONICAL.md C9).
#pragma once

#include <cstdint>
#include <span>

#include "sim/kernels/row_view.h"
#include "sim/kernels/target.h"

namespace deepinfer {

// C9.1. Table rows of the last `rows` of the compressed ids (-1: image token): [rows, columns] with
// columns = primes.size() = (N - 1) * heads, N = multipliers.size() >= 2. `pad` stands for
// everything before the start or past an image token. Products wrap modulo 2^64; the remainder has
// the prime's sign. Shapes are asserted.
void engram_hash(std::span<const int64_t> compressed_ids, int64_t rows,
                 std::span<const int64_t> multipliers, std::span<const int64_t> primes,
                 std::span<const int64_t> offsets, int64_t pad, int64_t* table_rows);

// C9.1. codes [R, C] e4m3fn, scales [R, C / 32] ue8m0, contiguous; out row i = table row
// table_rows[i], dequantised. Returns the first i whose row is outside the table, before anything
// is written, or -1.
[[nodiscard]] int64_t engram_fetch(const uint8_t* codes, const uint8_t* scales,
                                   int64_t rows_in_table, const int64_t* table_rows,
                                   const MutableRowView& out, Target target = best_vector_target());

// C9.2. streams and out [T, S * D], key_value [T, (S + 1) * D] of streams' type (S keys, then the
// value), q_weight and k_weight [S, D] of one type, text [T] (0: gate 0). gates [T, S] fp32. out
// may be streams. Shapes are asserted.
void engram_gate(const RowView& streams, int64_t count, const RowView& key_value,
                 const RowView& q_weight, const RowView& k_weight, const uint8_t* text,
                 float norm_eps, const MutableRowView& out, float* gates,
                 Target target = best_vector_target());

}  // namespace deepinfer
