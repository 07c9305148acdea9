// Norm, rotation and activation on rows (CANONICAL.md C6.1 to C6.3), and stores of rows.
#pragma once

#include <cstdint>

#include "sim/kernels/row_view.h"
#include "sim/kernels/target.h"

namespace deepinfer {

// Results have x's type. y may be x. Shapes are asserted.

// C6.1. weight is one row, fp32 or bf16.
void rms_norm(const RowView& x, const RowView& weight, float eps, const MutableRowView& y,
              Target target = best_vector_target());

// C6.2. cosines and sines [count, pairs], contiguous, of the fp32 product position * frequency.
void rope_table(const int64_t* positions, int64_t count, const float* frequencies, int64_t pairs,
                float* cosines, float* sines, Target target = best_vector_target());

// C6.2. Rotates the last 2 * pairs columns as adjacent pairs. Rows i * rows_per_angle and the
// following (the heads of a token) turn by row i of cosines and sines; the other columns are
// copied.
void rope(const RowView& x, int64_t rows_per_angle, const float* cosines, const float* sines,
          int64_t pairs, bool inverse, const MutableRowView& y,
          Target target = best_vector_target());

// C6.3. row_weights [rows], or null.
void swiglu(const RowView& gate, const RowView& up, const float* row_weights, float limit,
            const MutableRowView& y, Target target = best_vector_target());

// pool[slots[i]] = rows[i], bytes as they are. Returns the first i whose slot is outside the pool,
// before anything is stored, or -1.
[[nodiscard]] int64_t store_rows(const MutableRowView& pool, const RowView& rows,
                                 const int64_t* slots);

}  // namespace deepinfer
