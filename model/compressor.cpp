#include "model/compressor.h"

#include "platform/errors.h"
#include "platform/fault.h"
#include "platform/ops.h"

namespace deepinfer {

namespace {

// Pools the groups that close in this span, [groups, head_dim] in the activation dtype, and leaves
// the rest open in `closed`. Ratios above 1.
at::Tensor pool_groups(const BatchSpan& span, int64_t ratio, at::Tensor values, at::Tensor gates,
                       at::ScalarType activation, const CompressedCache& cache,
                       ClosedGroups& closed) {
  if (cache.open_value.defined()) {
    const bool lost = fault("open_group_dropped");
    values = at::cat({lost ? at::zeros_like(cache.open_value) : cache.open_value, values}, 0);
    gates = at::cat({lost ? at::zeros_like(cache.open_gate) : cache.open_gate, gates}, 0);
  }
  DEEPINFER_ASSERT((span.end_position() - values.size(0)) % ratio == 0,
                   values.size(0) << " pending tokens at position " << span.end_position());
  // Groups are anchored at position 0 of the request, wherever a chunk ends.
  const int64_t groups = values.size(0) / ratio;
  const int64_t pooled = groups * ratio;
  if (pooled < values.size(0)) {
    closed.open_value = values.slice(0, pooled).clone();
    closed.open_gate = gates.slice(0, pooled).clone();
  }
  const int64_t channels = values.size(1);
  return ops::compress_pool(values.slice(0, 0, pooled).reshape({groups, ratio, channels}),
                            gates.slice(0, 0, pooled).reshape({groups, ratio, channels}))
      .to(activation);  // rounded before its norm (model-verified.md 4)
}

}  // namespace

at::Tensor visible_entries(const at::Tensor& positions, int64_t ratio) {
  const int64_t ahead = fault("entry_visible_one_early") ? ratio : 1;
  return at::floor_divide(positions + ahead, ratio);
}

std::vector<ClosedGroups> close_groups(const ForwardContext& context, const LayerPlan& plan,
                                       const CompressorWeights& weights, const at::Tensor& x) {
  const ModelConfig& config = context.config;
  const Numerics& numerics = context.numerics;
  const int64_t ratio = plan.ratio;
  const bool pooled = ratio > 1;
  // Ratio 1 is a projection like any other; pooled values and gates stay fp32.
  const at::ScalarType type = pooled ? at::kFloat : x.scalar_type();
  const at::Tensor values = ops::linear(x, weights.wkv, type);
  const at::Tensor gates = pooled ? ops::linear(x, weights.wgate, at::kFloat) : at::Tensor();

  std::vector<ClosedGroups> all;
  for (const BatchSpan& span : context.spans) {
    const CompressedCache& cache = span.sequence->caches.at(plan.layer);
    ClosedGroups& closed = all.emplace_back();
    at::Tensor latent = span.rows_of(values);
    if (pooled) {
      latent =
          pool_groups(span, ratio, latent, span.rows_of(gates), x.scalar_type(), cache, closed);
      context.cover(Path::kGroupClosed, latent.size(0));
      context.cover(Path::kGroupLeftOpen, closed.open_value.defined() ? 1 : 0);
    }
    closed.entries = latent.size(0);
    if (closed.entries == 0) continue;
    latent = ops::rms_norm(latent, weights.norm, config.rms_norm_eps);

    const at::Tensor entry = at::arange(cache.entries, cache.entries + closed.entries,
                                        at::TensorOptions().dtype(at::kLong).device(x.device()));
    // An entry rotates at the position of its group's first token.
    const at::Tensor position =
        entry * ratio + (fault("entry_rotated_at_group_end") ? ratio - 1 : 0);
    const auto [cos, sin] = ops::rope_table(position, context.compressed_frequencies.values);
    closed.rows = ops::rope(latent, cos, sin, /*inverse=*/false);
    if (numerics.quantize_compressed) {
      closed.rows = ops::fake_quantize_fq4_16(closed.rows, numerics.fp8_max);
    }

    // The index key comes from the latent before RoPE.
    const at::Tensor key_input = fault("index_key_from_rotated_latent") ? closed.rows : latent;
    at::Tensor key = ops::rms_norm(ops::linear(key_input, weights.index_wk, x.scalar_type()),
                                   weights.index_k_norm, config.rms_norm_eps);
    key = ops::rope(key, cos, sin, /*inverse=*/false);
    closed.index_keys = numerics.quantize_index ? ops::fake_quantize_fq4_32(key) : key;
  }
  return all;
}

void append_entries(ForwardContext& context, const LayerPlan& plan,
                    const std::vector<ClosedGroups>& closed) {
  const TileShard& tiles = context.rank.tiles();
  std::vector<at::Tensor>& own_entries = context.own_entries[plan.layer];
  own_entries = context.rank.update(Axis::kContext, [&] {
    std::vector<at::Tensor> own_of_spans;
    for (size_t i = 0; i < closed.size(); ++i) {
      const CompressedCache& cache = context.spans[i].sequence->caches.at(plan.layer);
      const int64_t end = cache.entries + closed[i].entries;
      const at::Tensor own = tiles.entries({0, end});
      const int64_t kept = tiles.rows_before(cache.entries);
      if (own.size(0) > kept) {
        const at::Tensor slots = at::arange(kept, own.size(0), own.options());
        const at::Tensor from = own.slice(0, kept) - cache.entries;
        ops::kv_store(cache.rows, closed[i].rows.index_select(0, from), slots);
        ops::kv_store(cache.index_keys, closed[i].index_keys.index_select(0, from), slots);
      }
      own_of_spans.push_back(own);
    }
    return own_of_spans;
  });
  for (size_t i = 0; i < closed.size(); ++i) {
    CompressedCache& cache = context.spans[i].sequence->caches.at(plan.layer);
    cache.entries += closed[i].entries;
    cache.open_value = closed[i].open_value;
    cache.open_gate = closed[i].open_gate;
  }
}

}  // namespace deepinfer
