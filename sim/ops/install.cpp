#include <mutex>

#include <torch/library.h>

#include "platform/arithmetic.h"
#include "sim/ops/host_kernels.h"
#include "sim/ops/host_ops.h"

namespace deepinfer {

namespace {

void register_kernels() {
  // Registered for the life of the process, like a static TORCH_LIBRARY_IMPL block.
  static torch::Library m(torch::Library::IMPL, "deepinfer", c10::DispatchKey::CPU, __FILE__,
                          __LINE__);
  m.impl("linear", &host::linear);
  m.impl("fp8_linear", &host::fp8_linear);
  m.impl("fp4_linear", &host::fp4_linear);
  m.impl("grouped_linear", &host::grouped_linear);
  m.impl("linear_partials", &host::linear_partials);
  m.impl("quantize_aq32", &host::quantize_aq32);
  m.impl("dequantize_aq32", &host::dequantize_aq32);
  m.impl("fake_quantize_aq32", &host::fake_quantize_aq32);
  m.impl("fake_quantize_fq4_32", &host::fake_quantize_fq4_32);
  m.impl("fake_quantize_fq4_16", &host::fake_quantize_fq4_16);
  m.impl("rms_norm", &host::rms_norm);
  m.impl("rope_table", &host::rope_table);
  m.impl("rope", &host::rope);
  m.impl("hc_mix", &host::hc_mix);
  m.impl("hc_collapse", &host::hc_collapse);
  m.impl("hc_expand", &host::hc_expand);
  m.impl("kv_store", &host::kv_store);
  m.impl("compress_pool", &host::compress_pool);
  m.impl("index_score", &host::index_score);
  m.impl("topk_select", &host::topk_select);
  m.impl("topk_merge", &host::topk_merge);
  m.impl("candidate_blocks", &host::candidate_blocks);
  m.impl("candidate_mask", &host::candidate_mask);
  m.impl("block_maxima", &host::block_maxima);
  m.impl("sparse_attention", &host::sparse_attention);
  m.impl("attention_maximum", &host::attention_maximum);
  m.impl("attention_partials", &host::attention_partials);
  m.impl("attention_merge", &host::attention_merge);
  m.impl("moe_gate", &host::moe_gate);
  m.impl("moe_combine", &host::moe_combine);
  m.impl("moe_partials", &host::moe_partials);
  m.impl("swiglu", &host::swiglu);
  m.impl("engram_hash", &host::engram_hash);
  m.impl("engram_fetch", &host::engram_fetch);
  m.impl("engram_gate", &host::engram_gate);
  m.impl("greedy_sample", &host::greedy_sample);
  internal::mark_host_kernels_installed();
}

}  // namespace

void install_host_kernels() {
  static std::once_flag once;
  internal::keep_op_registrations();  // the schemas come first
  std::call_once(once, register_kernels);
}

}  // namespace deepinfer
