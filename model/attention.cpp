#include "model/attention.h"

#include <algorithm>
#include <cmath>

#include "model/compressor.h"
#include "model/indexer.h"
#include "platform/errors.h"
#include "platform/fault.h"
#include "platform/formats.h"
#include "platform/ops.h"

namespace deepinfer {

namespace {

// Places in `keys` (window rows from position `first_key` on) of positions p-window+1 .. p, oldest
// first, -1 padded: int32 [count, window].
at::Tensor window_index(const BatchSpan& span, int64_t first_key, int64_t window,
                        at::Device device) {
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  const at::Tensor query = at::arange(span.position, span.end_position(), options).unsqueeze(1);
  const at::Tensor slot = at::arange(window, options).unsqueeze(0);
  const at::Tensor position = (query - window + 1).clamp_min(first_key) + slot;
  return at::where(position.le(query), position - first_key, at::full({}, -1, options))
      .to(at::kInt);
}

// wo_a, [rows, heads * head_dim] -> [rows, o_groups * o_lora_rank]: each o-group is the
// row-parallel product of its own heads, by their leaves. The input is not quantised
// (model-verified.md 3, rule 2).
at::Tensor output_latent(const ModelConfig& config, const Projection& wo_a, const at::Tensor& x) {
  const int64_t rank = config.o_lora_rank, channels = config.head_dim;
  const int64_t heads = config.num_attention_heads / config.o_groups;  // of a group
  DEEPINFER_ASSERT(!wo_a.quantized() || rank % kScaleBlock == 0,
                   "wo_a: the " << rank << " rows of a group are no whole tiles");
  const ShardMap map = ShardMap::contiguous("heads", config.num_attention_heads, 1);
  std::vector<at::Tensor> groups;
  for (int64_t group = 0; group < config.o_groups; ++group) {
    const IndexRange own = {group * heads, (group + 1) * heads};
    const auto rows_of = [&](const at::Tensor& all, int64_t rows) {
      return all.slice(0, group * rows, (group + 1) * rows);
    };
    const ops::OptionalTensor scale =
        wo_a.quantized() ? ops::OptionalTensor(rows_of(wo_a.scale, rank / kScaleBlock))
                         : ops::OptionalTensor();
    groups.push_back(ops::linear_partials(x.slice(1, own.begin * channels, own.end * channels),
                                          rows_of(wo_a.weight, rank), scale, 0, 0,
                                          column_bounds(map, own, channels, own.count() * channels))
                         .select(0, 0));
  }
  return at::cat(groups, 1).to(x.scalar_type());
}

}  // namespace

const RopeTable& ForwardContext::rope_of(const LayerPlan& plan) const {
  const bool compressed = fault("yarn_on_ratio0_layers")             ? true
                          : fault("plain_rope_on_compressed_layers") ? false
                                                                     : plan.compressed();
  return compressed ? compressed_rope : window_rope;
}

at::Tensor attention(ForwardContext& context, const LayerPlan& plan,
                     const AttentionWeights& weights, const at::Tensor& x) {
  const ModelConfig& config = context.config;
  const Numerics& numerics = context.numerics;
  const int64_t rows = x.size(0), heads = config.num_attention_heads, channels = config.head_dim;
  const RopeTable& rope = context.rope_of(plan);

  const at::Tensor q_latent =
      ops::rms_norm(project(x, weights.wq_a, numerics), weights.q_norm, config.rms_norm_eps);
  at::Tensor q = project(q_latent, weights.wq_b, numerics).view({rows, heads, channels});
  if (fault("q_head_norm")) {
    q = ops::rms_norm(q, at::ones({channels}, q.options()), config.rms_norm_eps);
  }
  q = ops::rope(q, rope.cos, rope.sin, /*inverse=*/false);

  at::Tensor kv =
      ops::rms_norm(project(x, weights.wkv, numerics), weights.kv_norm, config.rms_norm_eps);
  kv = ops::rope(kv, rope.cos, rope.sin, /*inverse=*/false);
  if (numerics.quantize_window) {
    // The rotary tail is quantised with the rest (V4 left it out).
    const at::Tensor quantized = ops::fake_quantize_aq32(kv, numerics.fp8_max);
    const int64_t plain = channels - config.qk_rope_head_dim;
    kv = fault("window_row_rotary_tail_unquantised")
             ? at::cat({quantized.slice(1, 0, plain), kv.slice(1, plain)}, 1)
             : quantized;
  }

  if (plan.owns_kv) compress(context, plan, *weights.compressor, x);
  if (plan.owns_index) select_entries(context, plan, *weights.indexer, x, q_latent);

  int64_t window = config.sliding_window;
  if (fault("window_one_longer")) ++window;
  if (fault("window_one_shorter")) --window;
  const double scale = 1.0 / std::sqrt(static_cast<double>(channels));
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < context.spans.size(); ++i) {
    const BatchSpan& span = context.spans[i];
    Sequence& sequence = *span.sequence;
    at::Tensor& kept = sequence.window[plan.layer];
    if (fault("window_lost_between_chunks")) kept = kept.slice(0, 0, 0);
    const at::Tensor keys = at::cat({kept, span.rows_of(kv)}, 0);
    const int64_t first_key = span.position - kept.size(0);

    at::Tensor compressed = keys.slice(0, 0, 0);
    at::Tensor selected =
        at::empty({span.count, 0}, at::TensorOptions().dtype(at::kInt).device(x.device()));
    if (plan.compressed() && !(fault("topk_of_own_layer_missing") && !plan.owns_index)) {
      const CompressedCache& cache = sequence.caches.at(plan.kv_source);
      compressed = cache.rows.slice(0, 0, cache.entries);
      selected = context.topk.at(plan.index_source)[i];
    }
    const auto [out, lse] = ops::sparse_attention(
        span.rows_of(q), keys, first_key, window_index(span, first_key, window, x.device()),
        compressed, selected, weights.sink, scale, numerics.narrow_probabilities);
    outputs.push_back(out);
    // One row less than the window: the next query brings its own. Cloned, so that the chunk is
    // released.
    kept = keys.slice(0, std::max<int64_t>(keys.size(0) - (window - 1), 0)).clone();
  }
  at::Tensor out = outputs.size() == 1 ? outputs[0] : at::cat(outputs, 0);
  if (!fault("inverse_rope_missing")) out = ops::rope(out, rope.cos, rope.sin, /*inverse=*/true);

  at::Tensor by_head = out.reshape({rows, heads * channels});
  if (fault("wo_a_input_quantised") && numerics.quantize_linear) {
    by_head = ops::fake_quantize_aq32(by_head, numerics.fp8_max);
  }
  const at::Tensor latent = output_latent(config, weights.wo_a, by_head);
  const int64_t units = (latent.size(1) + kScaleBlock - 1) / kScaleBlock;
  return project_row_parallel(latent, weights.wo_b, numerics,
                              ShardMap::contiguous("output latent", units, 1), kScaleBlock);
}

}  // namespace deepinfer
