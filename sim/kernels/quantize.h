// The block quantisers of activations on rows of fp32 or bf16 (CANONICAL.md C5).
#pragma once

#include <cstdint>

#include "sim/kernels/row_view.h"
#include "sim/kernels/target.h"

namespace deepinfer {

// Functions that return int64_t give the first row with a NaN or an infinity, or -1. Results of
// that row are then undefined. Columns are a multiple of the block (asserted); fp8_max is an e4m3
// value of 16 to 448 (asserted).

// C5.1. codes [rows, columns] e4m3fn, scales [rows, columns / 32] ue8m0; the strides are in bytes.
[[nodiscard]] int64_t quantize_aq32(const RowView& x, double fp8_max, uint8_t* codes,
                                    int64_t code_stride, uint8_t* scales, int64_t scale_stride,
                                    Target target = best_vector_target());
// The values that those codes stand for, exactly (C4), whatever the codes and scales; y is fp32, or
// bf16 where values below bf16's subnormal step are rounded (C1.4).
void dequantize_aq32(const uint8_t* codes, int64_t code_stride, const uint8_t* scales,
                     int64_t scale_stride, const MutableRowView& y,
                     Target target = best_vector_target());

// Quantise and dequantise. y has x's shape and type (asserted) and may be x.
[[nodiscard]] int64_t fake_quantize_aq32(const RowView& x, double fp8_max, const MutableRowView& y,
                                         Target target = best_vector_target());
[[nodiscard]] int64_t fake_quantize_fq4_32(const RowView& x, const MutableRowView& y,
                                           Target target = best_vector_target());
[[nodiscard]] int64_t fake_quantize_fq4_16(const RowView& x, double fp8_max,
                                           const MutableRowView& y,
                                           Target target = best_vector_target());

}  // namespace deepinfer
