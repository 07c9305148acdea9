// The reference implementation of every op in plain ATen: written to be read, runs on any device,
// the oracle.
#pragma once

#include "platform/ops.h"

namespace deepinfer::reference {

template <class OpType>
using SignatureOf = typename std::remove_cv_t<OpType>::Signature;

// One function for each op of platform/ops.h, same signature; documented there.
SignatureOf<decltype(ops::linear)> linear;
SignatureOf<decltype(ops::fp8_linear)> fp8_linear;
SignatureOf<decltype(ops::fp4_linear)> fp4_linear;
SignatureOf<decltype(ops::grouped_linear)> grouped_linear;
SignatureOf<decltype(ops::linear_partials)> linear_partials;
SignatureOf<decltype(ops::quantize_aq32)> quantize_aq32;
SignatureOf<decltype(ops::dequantize_aq32)> dequantize_aq32;
SignatureOf<decltype(ops::fake_quantize_aq32)> fake_quantize_aq32;
SignatureOf<decltype(ops::fake_quantize_fq4_32)> fake_quantize_fq4_32;
SignatureOf<decltype(ops::fake_quantize_fq4_16)> fake_quantize_fq4_16;
SignatureOf<decltype(ops::rms_norm)> rms_norm;
SignatureOf<decltype(ops::rope_table)> rope_table;
SignatureOf<decltype(ops::rope)> rope;
SignatureOf<decltype(ops::hc_mix)> hc_mix;
SignatureOf<decltype(ops::hc_collapse)> hc_collapse;
SignatureOf<decltype(ops::hc_expand)> hc_expand;
SignatureOf<decltype(ops::kv_store)> kv_store;
SignatureOf<decltype(ops::compress_pool)> compress_pool;
SignatureOf<decltype(ops::index_score)> index_score;
SignatureOf<decltype(ops::topk_select)> topk_select;
SignatureOf<decltype(ops::topk_merge)> topk_merge;
SignatureOf<decltype(ops::candidate_blocks)> candidate_blocks;
SignatureOf<decltype(ops::candidate_mask)> candidate_mask;
SignatureOf<decltype(ops::block_maxima)> block_maxima;
SignatureOf<decltype(ops::sparse_attention)> sparse_attention;
SignatureOf<decltype(ops::attention_maximum)> attention_maximum;
SignatureOf<decltype(ops::attention_partials)> attention_partials;
SignatureOf<decltype(ops::attention_merge)> attention_merge;
SignatureOf<decltype(ops::moe_gate)> moe_gate;
SignatureOf<decltype(ops::moe_combine)> moe_combine;
SignatureOf<decltype(ops::moe_partials)> moe_partials;
SignatureOf<decltype(ops::swiglu)> swiglu;
SignatureOf<decltype(ops::engram_hash)> engram_hash;
SignatureOf<decltype(ops::engram_fetch)> engram_fetch;
SignatureOf<decltype(ops::engram_gate)> engram_gate;
SignatureOf<decltype(ops::greedy_sample)> greedy_sample;

// Shared by the implementations. Arithmetic inside an op is fp64, so that the only error left is
// the one rounding of its result: that makes it an oracle for every order of summation.
at::Tensor widen(const at::Tensor& x);  // to fp64
// The fp32 values of all 256 codes of e4m3fn, of e8m0, and of the 16 codes of e2m1, on `device`.
at::Tensor e4m3_table(at::Device device);
at::Tensor e8m0_table(at::Device device);
at::Tensor e2m1_table(at::Device device);
// Values of uint8 codes by table, in codes' shape, fp32.
at::Tensor look_up(const at::Tensor& table, const at::Tensor& codes);

}  // namespace deepinfer::reference
