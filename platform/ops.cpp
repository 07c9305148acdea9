// Registers the op surface: the schemas, and `reference` as the implementation for every device.
#include "platform/ops.h"

#include <torch/library.h>

#include "platform/reference/reference.h"

namespace deepinfer {
namespace internal {
void keep_op_registrations() {}
}  // namespace internal
namespace meta {
void register_ops(torch::Library& m);  // ops_meta.cpp
}  // namespace meta
}  // namespace deepinfer

TORCH_LIBRARY(deepinfer, m) {
  m.def("linear(Tensor x, Tensor weight, ScalarType out_dtype) -> Tensor");
  m.def("fp8_linear(Tensor x, Tensor codes, Tensor scales, ScalarType out_dtype) -> Tensor");
  m.def("fp4_linear(Tensor x, Tensor codes, Tensor scales, ScalarType out_dtype) -> Tensor");
  m.def(
      "grouped_linear(Tensor x, Tensor offsets, Tensor[] weights, Tensor[] scales, ScalarType "
      "out_dtype)"
      " -> Tensor");
  m.def(
      "linear_partials(Tensor x, Tensor weight, Tensor? scales, int first_column, int "
      "first_position,"
      " int[] bounds) -> Tensor");
  m.def("quantize_aq32(Tensor x, float fp8_max) -> (Tensor, Tensor)");
  m.def("dequantize_aq32(Tensor codes, Tensor scales) -> Tensor");
  m.def("fake_quantize_aq32(Tensor x, float fp8_max) -> Tensor");
  m.def("fake_quantize_fq4_32(Tensor x) -> Tensor");
  m.def("fake_quantize_fq4_16(Tensor x, float fp8_max) -> Tensor");
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  m.def("rope_table(Tensor positions, Tensor frequencies) -> (Tensor, Tensor)");
  m.def("rope(Tensor x, Tensor cos, Tensor sin, bool inverse) -> Tensor");
  m.def(
      "hc_mix(Tensor streams, Tensor fn, Tensor scale, Tensor base, int sinkhorn_iters, float "
      "hc_eps,"
      " float norm_eps) -> (Tensor, Tensor, Tensor)");
  m.def("hc_collapse(Tensor streams, Tensor pre) -> Tensor");
  m.def("hc_expand(Tensor y, Tensor streams, Tensor post, Tensor comb) -> Tensor");
  m.def("kv_store(Tensor(a!) pool, Tensor rows, Tensor slots) -> ()");
  m.def("compress_pool(Tensor values, Tensor gates) -> Tensor");
  m.def(
      "index_score(Tensor q, Tensor weights, Tensor keys, Tensor visible, bool narrow) -> Tensor");
  m.def("topk_select(Tensor scores, int k) -> Tensor");
  m.def("topk_merge(Tensor scores, Tensor indices, int k) -> Tensor");
  m.def(
      "candidate_blocks(Tensor scores, Tensor visible, int block_size, int max_blocks) -> Tensor");
  m.def("candidate_mask(Tensor scores, Tensor blocks, Tensor column_blocks) -> Tensor");
  m.def("block_maxima(Tensor scores, Tensor blocks, int count) -> Tensor");
  m.def(
      "sparse_attention(Tensor q, Tensor window, int window_position, Tensor window_index, Tensor "
      "compressed,"
      " Tensor compressed_index, Tensor? sink, float scale, bool narrow) -> (Tensor, Tensor)");
  m.def(
      "attention_maximum(Tensor q, Tensor window, Tensor window_index, Tensor compressed, Tensor "
      "compressed_index, float scale) -> Tensor");
  m.def(
      "attention_partials(Tensor q, Tensor window, Tensor window_positions, Tensor window_index, "
      "Tensor compressed, Tensor compressed_entries, Tensor compressed_index, Tensor? maximum, "
      "float scale, int first_position, int positions) -> (Tensor, Tensor, Tensor)");
  m.def(
      "attention_merge(Tensor maximum, Tensor sum, Tensor out, Tensor rows, int tokens, int[] "
      "begins, int[] counts, int[] row_counts, Tensor? sink, ScalarType out_dtype) -> (Tensor, "
      "Tensor)");
  m.def(
      "moe_gate(Tensor x, Tensor weight, Tensor bias, int k, float gate_temp, float scaling)"
      " -> (Tensor, Tensor)");
  m.def(
      "moe_combine(Tensor outputs, Tensor rows, Tensor offsets, Tensor? shared, int tokens) -> "
      "Tensor");
  m.def(
      "moe_partials(Tensor outputs, Tensor rows, Tensor offsets, int tokens, int first_expert, int "
      "experts,"
      " int first_position, int positions) -> Tensor");
  m.def("swiglu(Tensor gate, Tensor up, Tensor? row_weight, float limit) -> Tensor");
  m.def(
      "engram_hash(Tensor compressed_ids, int rows, Tensor multipliers, Tensor primes, Tensor "
      "offsets,"
      " int pad) -> Tensor");
  m.def("engram_fetch(Tensor codes, Tensor scales, Tensor rows, ScalarType out_dtype) -> Tensor");
  m.def(
      "engram_gate(Tensor streams, Tensor key_value, Tensor q_weight, Tensor k_weight, Tensor text,"
      " float norm_eps) -> (Tensor, Tensor)");
  m.def("greedy_sample(Tensor logits) -> Tensor");
}

TORCH_LIBRARY_IMPL(deepinfer, CompositeExplicitAutograd, m) {
  namespace reference = deepinfer::reference;
  m.impl("linear", &reference::linear);
  m.impl("fp8_linear", &reference::fp8_linear);
  m.impl("fp4_linear", &reference::fp4_linear);
  m.impl("grouped_linear", &reference::grouped_linear);
  m.impl("linear_partials", &reference::linear_partials);
  m.impl("quantize_aq32", &reference::quantize_aq32);
  m.impl("dequantize_aq32", &reference::dequantize_aq32);
  m.impl("fake_quantize_aq32", &reference::fake_quantize_aq32);
  m.impl("fake_quantize_fq4_32", &reference::fake_quantize_fq4_32);
  m.impl("fake_quantize_fq4_16", &reference::fake_quantize_fq4_16);
  m.impl("rms_norm", &reference::rms_norm);
  m.impl("rope_table", &reference::rope_table);
  m.impl("rope", &reference::rope);
  m.impl("hc_mix", &reference::hc_mix);
  m.impl("hc_collapse", &reference::hc_collapse);
  m.impl("hc_expand", &reference::hc_expand);
  m.impl("kv_store", &reference::kv_store);
  m.impl("compress_pool", &reference::compress_pool);
  m.impl("index_score", &reference::index_score);
  m.impl("topk_select", &reference::topk_select);
  m.impl("topk_merge", &reference::topk_merge);
  m.impl("candidate_blocks", &reference::candidate_blocks);
  m.impl("candidate_mask", &reference::candidate_mask);
  m.impl("block_maxima", &reference::block_maxima);
  m.impl("sparse_attention", &reference::sparse_attention);
  m.impl("attention_maximum", &reference::attention_maximum);
  m.impl("attention_partials", &reference::attention_partials);
  m.impl("attention_merge", &reference::attention_merge);
  m.impl("moe_gate", &reference::moe_gate);
  m.impl("moe_combine", &reference::moe_combine);
  m.impl("moe_partials", &reference::moe_partials);
  m.impl("swiglu", &reference::swiglu);
  m.impl("engram_hash", &reference::engram_hash);
  m.impl("engram_fetch", &reference::engram_fetch);
  m.impl("engram_gate", &reference::engram_gate);
  m.impl("greedy_sample", &reference::greedy_sample);
}

TORCH_LIBRARY_IMPL(deepinfer, Meta, m) { deepinfer::meta::register_ops(m); }
