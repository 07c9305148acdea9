#include "model/compressor.h"

#include "platform/errors.h"
#include "platform/fault.h"
#include "platform/ops.h"

namespace deepinfer {

namespace {

// Groups that close in this span, pooled: [groups, head_dim] in the activation dtype. Ratios
// above 1.
at::Tensor pool_groups(const BatchSpan& span, int64_t ratio, at::Tensor values, at::Tensor gates,
                       at::ScalarType activation, CompressedCache& cache) {
  if (fault("open_group_dropped") && cache.open_value.defined()) {
    cache.open_value.zero_();
    cache.open_gate.zero_();
  }
  if (cache.open_value.defined()) {
    values = at::cat({cache.open_value, values}, 0);
    gates = at::cat({cache.open_gate, gates}, 0);
  }
  DEEPINFER_ASSERT((span.end_position() - values.size(0)) % ratio == 0,
                   values.size(0) << " pending tokens at position " << span.end_position());
  // Groups are anchored at position 0 of the request, wherever a chunk ends.
  const int64_t groups = values.size(0) / ratio;
  const int64_t closed = groups * ratio;
  const bool open = closed < values.size(0);
  cache.open_value = open ? values.slice(0, closed).clone() : at::Tensor();
  cache.open_gate = open ? gates.slice(0, closed).clone() : at::Tensor();
  const int64_t channels = values.size(1);
  return ops::compress_pool(values.slice(0, 0, closed).reshape({groups, ratio, channels}),
                            gates.slice(0, 0, closed).reshape({groups, ratio, channels}))
      .to(activation);  // rounded before its norm (model-verified.md 4)
}

}  // namespace

at::Tensor visible_entries(const BatchSpan& span, int64_t ratio, at::Device device) {
  const at::Tensor position = at::arange(span.position, span.end_position(),
                                         at::TensorOptions().dtype(at::kLong).device(device));
  const int64_t ahead = fault("entry_visible_one_early") ? ratio : 1;
  return at::floor_divide(position + ahead, ratio);
}

void compress(ForwardContext& context, const LayerPlan& plan, const CompressorWeights& weights,
              const at::Tensor& x) {
  const ModelConfig& config = context.config;
  const Numerics& numerics = context.numerics;
  const int64_t ratio = plan.ratio;
  const bool pooled = ratio > 1;
  // Ratio 1 is a projection like any other; pooled values and gates stay fp32.
  const at::ScalarType type = pooled ? at::kFloat : x.scalar_type();
  const at::Tensor values = ops::linear(x, weights.wkv, type);
  const at::Tensor gates = pooled ? ops::linear(x, weights.wgate, at::kFloat) : at::Tensor();

  for (const BatchSpan& span : context.spans) {
    CompressedCache& cache = span.sequence->caches.at(plan.layer);
    at::Tensor latent = span.rows_of(values);
    if (pooled) {
      latent = pool_groups(span, ratio, latent, span.rows_of(gates), x.scalar_type(), cache);
      context.cover(Path::kGroupClosed, latent.size(0));
      context.cover(Path::kGroupLeftOpen, cache.open_value.defined() ? 1 : 0);
    }
    const int64_t entries = latent.size(0);
    if (entries == 0) continue;
    latent = ops::rms_norm(latent, weights.norm, config.rms_norm_eps);

    const at::Tensor entry = at::arange(cache.entries, cache.entries + entries,
                                        at::TensorOptions().dtype(at::kLong).device(x.device()));
    // An entry rotates at the position of its group's first token.
    const at::Tensor position =
        entry * ratio + (fault("entry_rotated_at_group_end") ? ratio - 1 : 0);
    const auto [cos, sin] = ops::rope_table(position, context.compressed_frequencies.values);
    at::Tensor row = ops::rope(latent, cos, sin, /*inverse=*/false);
    if (numerics.quantize_compressed) row = ops::fake_quantize_fq4_16(row, numerics.fp8_max);

    // The index key comes from the latent before RoPE.
    const at::Tensor key_input = fault("index_key_from_rotated_latent") ? row : latent;
    at::Tensor key = ops::rms_norm(ops::linear(key_input, weights.index_wk, x.scalar_type()),
                                   weights.index_k_norm, config.rms_norm_eps);
    key = ops::rope(key, cos, sin, /*inverse=*/false);
    if (numerics.quantize_index) key = ops::fake_quantize_fq4_32(key);

    ops::kv_store(cache.rows, row, entry);
    ops::kv_store(cache.index_keys, key, entry);
    cache.entries += entries;
  }
}

}  // namespace deepinfer
