// Shapes and dtypes of every op, for tensors without data: what `plan` runs the full-size model on.
#include <torch/library.h>

#include "platform/ops.h"
#include "platform/partials.h"
#include "platform/shard_map.h"

namespace deepinfer::meta {

using at::Tensor;

namespace {

Tensor empty(const Tensor& like, std::vector<int64_t> shape, at::ScalarType type) {
  return at::empty(shape, like.options().dtype(type));
}

// x's shape with another last axis.
Tensor with_last(const Tensor& x, int64_t last, at::ScalarType type) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = last;
  return empty(x, shape, type);
}

Tensor linear(const Tensor& x, const Tensor& weight, at::ScalarType out_dtype) {
  return with_last(x, weight.size(0), out_dtype);
}
Tensor scaled_linear(const Tensor& x, const Tensor& codes, const Tensor&,
                     at::ScalarType out_dtype) {
  return with_last(x, codes.size(0), out_dtype);
}
Tensor grouped_linear(const Tensor& x, const Tensor&, at::TensorList weights, at::TensorList,
                      at::ScalarType out_dtype) {
  return with_last(x, weights[0].size(0), out_dtype);
}
Tensor linear_partials(const Tensor& x, const Tensor& weight, const ops::OptionalTensor& scales,
                       int64_t first_column, int64_t first_position, at::IntArrayRef bounds) {
  const LinearPartials parts =
      check_linear_partials(x, weight, scales, first_column, first_position, bounds);
  return empty(x, {parts.count(), x.size(0), weight.size(0)}, at::kFloat);
}
ops::TensorPair quantize_aq32(const Tensor& x, double) {
  return {with_last(x, x.size(-1), at::kByte), with_last(x, x.size(-1) / 32, at::kByte)};
}
Tensor dequantize_aq32(const Tensor& codes, const Tensor&) {
  return with_last(codes, codes.size(-1), at::kFloat);
}
Tensor fake_quantize(const Tensor& x, double) { return at::empty_like(x); }
Tensor fake_quantize_fq4_32(const Tensor& x) { return at::empty_like(x); }
Tensor rms_norm(const Tensor& x, const Tensor&, double) { return at::empty_like(x); }
ops::TensorPair rope_table(const Tensor& positions, const Tensor& frequencies) {
  const std::vector<int64_t> shape = {positions.size(0), frequencies.size(0)};
  return {empty(positions, shape, at::kFloat), empty(positions, shape, at::kFloat)};
}
Tensor rope(const Tensor& x, const Tensor&, const Tensor&, bool) { return at::empty_like(x); }
ops::TensorTriple hc_mix(const Tensor& streams, const Tensor&, const Tensor&, const Tensor&,
                         int64_t, double, double) {
  const int64_t rows = streams.size(0), count = streams.size(1);
  return {empty(streams, {rows, count}, at::kFloat), empty(streams, {rows, count}, at::kFloat),
          empty(streams, {rows, count, count}, at::kFloat)};
}
Tensor hc_collapse(const Tensor& streams, const Tensor&) {
  return empty(streams, {streams.size(0), streams.size(2)}, streams.scalar_type());
}
Tensor hc_expand(const Tensor&, const Tensor& streams, const Tensor&, const Tensor&) {
  return at::empty_like(streams);
}
void kv_store(const Tensor&, const Tensor&, const Tensor&) {}
Tensor compress_pool(const Tensor& values, const Tensor&) {
  return empty(values, {values.size(0), values.size(2)}, at::kFloat);
}
Tensor index_score(const Tensor& q, const Tensor&, const Tensor& keys, const Tensor&, bool) {
  return empty(q, {q.size(0), keys.size(0)}, at::kFloat);
}
Tensor topk_select(const Tensor& scores, int64_t k) { return with_last(scores, k, at::kInt); }
Tensor topk_merge(const Tensor& scores, const Tensor&, int64_t k) {
  return with_last(scores, k, at::kInt);
}
Tensor candidate_blocks(const Tensor& scores, const Tensor&, int64_t, int64_t max_blocks) {
  return with_last(scores, max_blocks, at::kInt);
}
Tensor candidate_mask(const Tensor& scores, const Tensor&, const Tensor&) {
  return at::empty_like(scores);
}
Tensor block_maxima(const Tensor& scores, const Tensor&, int64_t count) {
  return with_last(scores, count, at::kFloat);
}
ops::TensorPair sparse_attention(const Tensor& q, const Tensor&, int64_t, const Tensor&,
                                 const Tensor&, const Tensor&, const ops::OptionalTensor&, double,
                                 bool) {
  return {at::empty_like(q), empty(q, {q.size(0), q.size(1)}, at::kFloat)};
}
Tensor attention_maximum(const Tensor& q, const Tensor&, const Tensor&, const Tensor&,
                         const Tensor&, double) {
  return empty(q, {q.size(0), q.size(1)}, at::kFloat);
}
ops::TensorTriple attention_partials(const Tensor& q, const Tensor&, const Tensor&, const Tensor&,
                                     const Tensor&, const Tensor&, const Tensor&,
                                     const ops::OptionalTensor&, double, int64_t first_position,
                                     int64_t positions) {
  const auto subtrees =
      static_cast<int64_t>(maximal_subtrees({first_position, first_position + positions}).size());
  return {empty(q, {subtrees, q.size(0), q.size(1)}, at::kFloat),
          empty(q, {subtrees, q.size(0), q.size(1)}, at::kFloat),
          empty(q, {subtrees, q.size(0), q.size(1), q.size(2)}, at::kFloat)};
}
ops::TensorPair attention_merge(const Tensor&, const Tensor&, const Tensor& out, const Tensor&,
                                int64_t tokens, at::IntArrayRef, at::IntArrayRef, at::IntArrayRef,
                                const ops::OptionalTensor&, at::ScalarType out_dtype) {
  return {empty(out, {tokens, out.size(1), out.size(2)}, out_dtype),
          empty(out, {tokens, out.size(1)}, at::kFloat)};
}
ops::TensorPair moe_gate(const Tensor& x, const Tensor&, const Tensor&, int64_t k, double, double) {
  return {with_last(x, k, at::kInt), with_last(x, k, at::kFloat)};
}
Tensor moe_combine(const Tensor& outputs, const Tensor&, const Tensor&, const ops::OptionalTensor&,
                   int64_t tokens) {
  return empty(outputs, {tokens, outputs.size(1)}, outputs.scalar_type());
}
Tensor moe_partials(const Tensor& outputs, const Tensor& rows, const Tensor& offsets,
                    int64_t tokens, int64_t first_expert, int64_t experts, int64_t first_position,
                    int64_t positions) {
  const std::vector<Subtree> subtrees = check_moe_partials(
      outputs, rows, offsets, tokens, first_expert, experts, first_position, positions);
  return empty(outputs, {static_cast<int64_t>(subtrees.size()), tokens, outputs.size(1)},
               at::kFloat);
}
Tensor swiglu(const Tensor& gate, const Tensor&, const ops::OptionalTensor&, double) {
  return at::empty_like(gate);
}
Tensor engram_hash(const Tensor& ids, int64_t rows, const Tensor&, const Tensor& primes,
                   const Tensor&, int64_t) {
  return empty(ids, {rows, primes.size(0)}, at::kLong);
}
Tensor engram_fetch(const Tensor& codes, const Tensor&, const Tensor& rows,
                    at::ScalarType out_dtype) {
  return with_last(rows, rows.size(1) * codes.size(1), out_dtype);
}
ops::TensorPair engram_gate(const Tensor& streams, const Tensor&, const Tensor&, const Tensor&,
                            const Tensor&, double) {
  return {at::empty_like(streams), empty(streams, {streams.size(0), streams.size(1)}, at::kFloat)};
}
Tensor greedy_sample(const Tensor& logits) { return empty(logits, {logits.size(0)}, at::kLong); }

}  // namespace

// Registers the functions above. Called by the registration of the ops (ops.cpp).
void register_ops(torch::Library& m) {
  m.impl("linear", &linear);
  m.impl("fp8_linear", &scaled_linear);
  m.impl("fp4_linear", &scaled_linear);
  m.impl("grouped_linear", &grouped_linear);
  m.impl("linear_partials", &linear_partials);
  m.impl("quantize_aq32", &quantize_aq32);
  m.impl("dequantize_aq32", &dequantize_aq32);
  m.impl("fake_quantize_aq32", &fake_quantize);
  m.impl("fake_quantize_fq4_32", &fake_quantize_fq4_32);
  m.impl("fake_quantize_fq4_16", &fake_quantize);
  m.impl("rms_norm", &rms_norm);
  m.impl("rope_table", &rope_table);
  m.impl("rope", &rope);
  m.impl("hc_mix", &hc_mix);
  m.impl("hc_collapse", &hc_collapse);
  m.impl("hc_expand", &hc_expand);
  m.impl("kv_store", &kv_store);
  m.impl("compress_pool", &compress_pool);
  m.impl("index_score", &index_score);
  m.impl("topk_select", &topk_select);
  m.impl("topk_merge", &topk_merge);
  m.impl("candidate_blocks", &candidate_blocks);
  m.impl("candidate_mask", &candidate_mask);
  m.impl("block_maxima", &block_maxima);
  m.impl("sparse_attention", &sparse_attention);
  m.impl("attention_maximum", &attention_maximum);
  m.impl("attention_partials", &attention_partials);
  m.impl("attention_merge", &attention_merge);
  m.impl("moe_gate", &moe_gate);
  m.impl("moe_combine", &moe_combine);
  m.impl("moe_partials", &moe_partials);
  m.impl("swiglu", &swiglu);
  m.impl("engram_hash", &engram_hash);
  m.impl("engram_fetch", &engram_fetch);
  m.impl("engram_gate", &engram_gate);
  m.impl("greedy_sample", &greedy_sample);
}

}  // namespace deepinfer::meta
