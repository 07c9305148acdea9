// The host implementation of every op: one function for each op of platform/ops.h, same signature.
#pragma once

#include "platform/ops.h"

namespace deepinfer::host {

template <class OpType>
using SignatureOf = typename std::remove_cv_t<OpType>::Signature;

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

}  // namespace deepinfer::host
