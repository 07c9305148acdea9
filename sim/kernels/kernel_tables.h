// The kernels that each target has, as tables of functions: filled by the *-inl.h files, chosen by
// the .cpp of their name. Kernels run inside a FloatScope (canonical_run.h) on arguments that their
// callers have checked.
#pragma once

#include <cstdint>

#include "platform/shard_map.h"
#include "sim/kernels/row_view.h"

namespace deepinfer {

struct MathKernels {
  void (*functions[8])(const float* x, int64_t count,
                       float* results);  // in the order of MathFunction
};

// A format of at most 8 bits other than e8m0, in the terms of its coders (codec-inl.h).
struct CodecFormat {
  int mantissa_bits;
  int bias;
  int value_bits;     // without the sign
  int32_t max_code;   // largest finite, sign clear
  int32_t nan_code;   // canonical; -1: the format has none
  bool has_infinity;  // code max_code + 1
};

struct CodecKernels {
  void (*decode_fp32)(const CodecFormat& format, const uint8_t* codes, int64_t count,
                      float* values);
  void (*decode_bf16)(const CodecFormat& format, const uint8_t* codes, int64_t count,
                      uint16_t* values);
  void (*decode_e4m3fn_bf16)(const CodecFormat& format, const uint8_t* codes, int64_t count,
                             uint16_t* values);
  void (*decode_e8m0)(const uint8_t* codes, int64_t count, float* values);
  void (*decode_e8m0_bf16)(const uint8_t* codes, int64_t count, uint16_t* values);
  // Magnitudes above largest_code's become overflow_code (a NaN code without the sign, if it is
  // nan_code). Returns the index of the first value without a code, or -1.
  int64_t (*encode)(const CodecFormat& format, const float* values, int64_t count,
                    int32_t largest_code, int32_t overflow_code, uint8_t* codes);
  void (*encode_e8m0)(const float* values, int64_t count, int32_t largest_code,
                      int32_t overflow_code, uint8_t* codes);
  void (*to_bf16)(const float* values, int64_t count, uint16_t* narrow);
  void (*to_fp32)(const uint16_t* values, int64_t count, float* wide);
};

// Each returns the first row with a NaN or an infinity, or -1.
struct QuantizeKernels {
  int64_t (*aq32)(const RowView& x, float fp8_max, uint8_t* codes, int64_t code_stride,
                  uint8_t* scales, int64_t scale_stride);
  void (*dequantize_aq32)(const uint8_t* codes, int64_t code_stride, const uint8_t* scales,
                          int64_t scale_stride, const MutableRowView& y);
  int64_t (*fake_aq32)(const RowView& x, float fp8_max, const MutableRowView& y);
  int64_t (*fake_fq4_32)(const RowView& x, const MutableRowView& y);
  int64_t (*fake_fq4_16)(const RowView& x, float fp8_max, const MutableRowView& y);
};

struct RowKernels {
  void (*rms_norm)(const RowView& x, const RowView& weight, float eps, const MutableRowView& y);
  void (*rope_table)(const int64_t* positions, int64_t count, const float* frequencies,
                     int64_t pairs, float* cosines, float* sines);
  void (*rope)(const RowView& x, int64_t rows_per_angle, const float* cosines, const float* sines,
               int64_t pairs, bool inverse, const MutableRowView& y);
  void (*swiglu)(const RowView& gate, const RowView& up, const float* row_weights, float limit,
                 const MutableRowView& y);
};

struct HyperConnectionArgs {
  RowView streams;  // [T, S * D]
  int64_t count;    // S
  const float* scale;
  const float* base;
  int64_t sinkhorn_iterations;
  float hc_eps, norm_eps;
  float *pre, *post, *comb;
};

struct HyperConnectionKernels {
  // dots [T, 2S + S*S] are the products with fn, before the norm.
  void (*coefficients)(const HyperConnectionArgs& args, const float* dots);
  void (*collapse)(const RowView& streams, int64_t count, const float* pre,
                   const MutableRowView& y);
  void (*expand)(const RowView& y, const RowView& streams, int64_t count, const float* post,
                 const float* comb, const MutableRowView& out);
};

struct SelectKernels {
  // scores[j] of one row from dots [heads, dot_stride] of `count` keys.
  void (*index_score)(const float* dots, int64_t dot_stride, const float* weights, int64_t heads,
                      int64_t count, bool narrow, float* scores);
  // From dots of one row: scores and biased scores.
  void (*gate_scores)(const float* dots, const float* bias, int64_t experts, float gate_temp,
                      float* scores, float* biased);
  // Weights of the chosen scores, in their order.
  void (*gate_weights)(const float* chosen, int64_t count, float scaling, float* weights);
};

inline constexpr int64_t kAttentionHeads = 16;  // that are worked on at once
inline constexpr int64_t kKeyChannels = 32;     // what a key's channels are padded to a multiple of
// Heads that kernels make dots of, by C2.1 and by C2.2: those of more are a matrix product.
inline constexpr int64_t kMostDotHeads = 8, kMostFp32DotHeads = 4;

// The keys [begin, end) of a leaf, among those of its row.
struct LeafKeys {
  int32_t begin, end;
};

// One query row, and its keys in the order of tree positions (C7.3).
struct AttentionRow {
  ElementType key_type;
  const void* const* keys;  // [key_count]: where each starts, padded with +0 to kKeyChannels
  int64_t key_count;
  uint64_t present;        // a bit for each tree position that has keys
  const LeafKeys* leaves;  // those of position i: leaves[i], where it has some
  RowView q;               // [heads, channels]
  // [keys, dot_stride], dot_stride a multiple of 16: q . k, not scaled. Null: the kernel makes
  // them, of kMostDotHeads at most.
  const float* dots;
  int64_t dot_stride;
  float scale;
  float* scratch;  // attention_scratch_floats()

  int64_t heads() const { return q.rows; }
  int64_t channels() const { return q.columns; }
};
// Keys to whole groups of lanes, and one group more.
inline int64_t attention_scratch_keys(int64_t keys) {
  return (keys / kAttentionHeads + 2) * kAttentionHeads;
}
// The accumulators of the seven partials that a walk of the tree holds, and three arrays of a
// number for each key and head.
inline int64_t attention_scratch_floats(int64_t padded_channels, int64_t keys) {
  return kAttentionHeads * (7 * padded_channels + 3 * attention_scratch_keys(keys));
}

// What C7.6 makes of one query row.
struct AttentionOutput {
  const float* sink;   // [heads], or null
  MutableRowView out;  // [heads, channels]
  float* lse;          // [heads]
};

// Where the partials of one query row go, among those of all rows and heads.
struct PartialRow {
  const Subtree* subtrees;  // in tree order
  int64_t count;            // of subtrees
  int64_t stride;           // heads of all rows
  int64_t first_head;       // the row's
  float* maximum;           // [count, stride]
  float* sum;               // [count, stride]
  float* out;               // [count, stride, channels]

  // Where head `head` of the row is in them.
  int64_t place(int64_t subtree, int64_t head) const {
    return subtree * stride + first_head + head;
  }
};

// The partials of one query row, to be merged.
struct PartialList {
  const Subtree* subtrees;  // in tree order
  const int64_t* numbers;   // of their partials, among all
  int64_t count;            // of both
  const float* maximum;     // [partials, heads]
  const float* sum;         // [partials, heads]
  const float* out;         // [partials, heads] rows of channels, `out_stride` apart
  int64_t out_stride;
  int64_t heads, channels;

  // Where head `head` of a partial is.
  int64_t place(int64_t subtree, int64_t head) const { return numbers[subtree] * heads + head; }
};

struct AttentionKernels {
  void (*compress_pool)(const float* values, const float* gates, int64_t groups, int64_t tokens,
                        int64_t channels, float* pooled);
  // `maximum` [heads].
  void (*maximum)(const AttentionRow& row, float* maximum);
  void (*attend)(const AttentionRow& row, bool narrow, const AttentionOutput& output);
  // `list_maximum` [heads] for narrow rows, else null.
  void (*partials)(const AttentionRow& row, const float* list_maximum, const PartialRow& partials);
  // scratch: attention_scratch_floats(channels padded to 16, 0).
  void (*merge)(const PartialList& partials, const AttentionOutput& output, float* scratch);
};

struct EngramKernels {
  void (*gate)(const RowView& streams, int64_t count, const RowView& key_value,
               const RowView& q_weight, const RowView& k_weight, const uint8_t* text,
               float norm_eps, const MutableRowView& out, float* gates);
};

// The scalar twins (scalar_kernels.cpp).
const MathKernels& scalar_math_kernels();
const CodecKernels& scalar_codec_kernels();
const QuantizeKernels& scalar_quantize_kernels();
const RowKernels& scalar_row_kernels();
const HyperConnectionKernels& scalar_hyper_connection_kernels();
const SelectKernels& scalar_select_kernels();
const AttentionKernels& scalar_attention_kernels();
const EngramKernels& scalar_engram_kernels();

}  // namespace deepinfer
