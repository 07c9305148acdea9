#include "model/attention.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "model/compressor.h"
#include "model/context_parallel.h"
#include "model/indexer.h"
#include "platform/fault.h"
#include "platform/ops.h"

namespace deepinfer {

namespace {

int64_t window_length(const ModelConfig& config) {
  return config.sliding_window + (fault("window_one_longer") ? 1 : 0) -
         (fault("window_one_shorter") ? 1 : 0);
}

// The oldest position that the queries of a span attend.
int64_t first_window_key(const BatchSpan& span, const ModelConfig& config) {
  return fault("window_lost_between_chunks")
             ? span.position
             : std::max<int64_t>(span.position - (window_length(config) - 1), 0);
}

// Everything before the heads: the same on every rank.
struct Latents {
  at::Tensor q;                      // [rows, q_lora_rank], as wq_b takes it
  at::Tensor kv;                     // [rows, head_dim], window rows of this layer
  std::vector<ClosedGroups> closed;  // KV sources
  IndexQuery index;                  // index sources
};

Latents make_latents(const ForwardContext& context, const LayerPlan& plan,
                     const AttentionWeights& weights, const at::Tensor& x) {
  const ModelConfig& config = context.config;
  const Numerics& numerics = context.numerics;
  const RopeTable& rope = context.rope_of(plan);
  Latents latents;
  const at::Tensor q =
      ops::rms_norm(project(x, weights.wq_a, numerics), weights.q_norm, config.rms_norm_eps);
  latents.q = quantized_input(q, weights.wq_b, numerics);
  at::Tensor kv =
      ops::rms_norm(project(x, weights.wkv, numerics), weights.kv_norm, config.rms_norm_eps);
  kv = ops::rope(kv, rope.cos, rope.sin, /*inverse=*/false);
  if (numerics.quantize_window) {
    // The rotary tail is quantised with the rest (V4 left it out).
    const at::Tensor quantized = ops::fake_quantize_aq32(kv, numerics.fp8_max);
    const int64_t plain = config.head_dim - config.qk_rope_head_dim;
    kv = fault("window_row_rotary_tail_unquantised")
             ? at::cat({quantized.slice(1, 0, plain), kv.slice(1, plain)}, 1)
             : quantized;
  }
  latents.kv = kv;
  if (plan.owns_kv) latents.closed = close_groups(context, plan, *weights.compressor, x);
  if (plan.owns_index) {
    latents.index = index_query(context, plan, *weights.indexer, x, q);
  }
  return latents;
}

std::vector<SpanKeys> gather_keys(const ForwardContext& context, const LayerPlan& plan,
                                  const at::Tensor& kv) {
  const TileShard& tiles = context.rank.tiles();
  std::vector<SpanKeys> all;
  for (size_t i = 0; i < context.spans.size(); ++i) {
    const BatchSpan& span = context.spans[i];
    const WindowPlaces& places = context.window[i];
    SpanKeys& keys = all.emplace_back();
    at::Tensor kept = span.sequence->window[plan.layer];
    if (fault("window_lost_between_chunks")) kept = kept.slice(0, 0, 0);
    if (places.positions.size(0) == 0) {
      keys.window = keys.kept = kept;
    } else {
      at::Tensor added = span.rows_of(kv);
      if (!tiles.keeps_all()) {
        added = added.index_select(0, places.positions.slice(0, kept.size(0)) - span.position);
      }
      keys.window = at::cat({kept, added}, 0);
      // One row less than the window: the next query brings its own. Cloned, so that the chunk is
      // released.
      const int64_t oldest =
          std::max(span.end_position() - (window_length(context.config) - 1), places.first_key);
      keys.kept =
          keys.window.slice(0, tiles.rows_before(oldest) - tiles.rows_before(places.first_key))
              .clone();
    }
    if (plan.compressed() && !(fault("topk_of_own_layer_missing") && !plan.owns_index)) {
      keys.compressed_entry = context.own_entries.at(plan.kv_source)[i];
      keys.compressed =
          span.sequence->caches.at(plan.kv_source).rows.slice(0, 0, keys.compressed_entry.size(0));
      keys.selected = context.selected.at(plan.index_source)[i];
    } else {
      keys.compressed = keys.window.slice(0, 0, 0);
      keys.compressed_entry = places.positions.slice(0, 0, 0);
      keys.selected = at::empty({span.count, 0}, places.index.options());
    }
  }
  return all;
}

// One context-parallel rank: every head of q over all keys. q [rows, heads, head_dim] -> the same.
at::Tensor attend_all(const ForwardContext& context, const std::vector<SpanKeys>& keys,
                      const at::Tensor& q, const at::Tensor& sink, double scale) {
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < keys.size(); ++i) {
    outputs.push_back(std::get<0>(ops::sparse_attention(
        context.spans[i].rows_of(q), keys[i].window, context.window[i].first_key,
        context.window[i].index, keys[i].compressed, keys[i].selected, sink, scale,
        context.numerics.narrow_probabilities)));
  }
  return outputs.size() == 1 ? outputs[0] : at::cat(outputs, 0);
}

// The o-groups that the rank's heads are in.
IndexRange own_groups(const ForwardContext& context) {
  const ColumnShards& heads = context.rank.mesh().heads();
  const IndexRange own = heads.columns_of_rank(context.rank.index(Axis::kTensor));
  if (own.count() == 0) return {0, 0};
  const int64_t columns = heads.columns() / context.config.o_groups;
  return {own.begin / columns, (own.end - 1) / columns + 1};
}

// Row-parallel wo_a: partials fp32 [S, groups, rows, o_lora_rank] of the rank's heads, for the
// o-groups that they are in; undefined without heads. A group without columns of a subtree adds -0,
// which is nothing.
at::Tensor output_latent_partials(const ForwardContext& context, const AttentionWeights& weights,
                                  IndexRange groups, const at::Tensor& out) {
  const ColumnShards& heads = context.rank.mesh().heads();
  const int64_t place = context.rank.index(Axis::kTensor);
  const IndexRange own = heads.columns_of_rank(place);
  const int64_t columns = heads.columns() / context.config.o_groups;
  const int64_t width = context.config.o_lora_rank;
  std::vector<at::Tensor> by_group;
  for (int64_t group = groups.begin; group < groups.end; ++group) {
    const IndexRange within = {group * columns, (group + 1) * columns};
    const IndexRange mine = heads.columns_of_rank(place, within);
    by_group.push_back(project_partials(
        out.slice(1, mine.begin - own.begin, mine.end - own.begin),
        weights.wo_a.rows(group * width, (group + 1) * width), mine.begin - within.begin,
        heads.map().positions_of_rank(place).begin, heads.bounds(place, within)));
  }
  if (by_group.empty()) return {};
  return by_group.size() == 1 ? by_group[0].unsqueeze(1) : at::stack(by_group, 1);
}

// Columns `own` of the latents [groups, rows, o_lora_rank]: [rows, own columns].
at::Tensor latent_columns(const at::Tensor& latents, IndexRange own) {
  const int64_t width = latents.size(2);
  const int64_t first = own.begin / width, end = (own.end - 1) / width + 1;
  const at::Tensor groups = latents.slice(0, first, end);
  const at::Tensor columns = end - first == 1 ? groups[0] : groups.permute({1, 0, 2}).flatten(1);
  return columns.slice(1, own.begin - first * width, own.end - first * width);
}

// The grouped output projection of the rank's heads, out [rows, heads, head_dim] -> [rows, hidden].
at::Tensor project_output(const ForwardContext& context, const AttentionWeights& weights,
                          const at::Tensor& out, at::ScalarType type) {
  const ModelConfig& config = context.config;
  const Numerics& numerics = context.numerics;
  const ParallelRank& rank = context.rank;
  const Mesh& mesh = rank.mesh();
  const IndexRange groups = own_groups(context);
  const at::Tensor latent_partials = rank.region(Axis::kTensor, [&] {
    at::Tensor flat = out.reshape({out.size(0), out.size(1) * out.size(2)});
    if (fault("wo_a_input_quantised") && numerics.quantize_linear) {
      flat = ops::fake_quantize_aq32(flat, numerics.fp8_max);
    }
    // wo_a's input is not quantised (model-verified.md 3, rule 2).
    const at::Tensor partials = output_latent_partials(context, weights, groups, flat);
    if (fault("latent_rounded_before_its_sum") && partials.defined()) {
      return partials.to(type).to(at::kFloat);
    }
    return partials;
  });
  // Summed before wo_b's input is quantised, which is not linear (model.md 5.1). The ranks with
  // heads of a group add to its latent only.
  const at::Tensor latents =
      rank.all_reduce_blocks(Axis::kTensor, mesh.heads().map(), latent_partials, config.o_groups,
                             groups, {config.o_groups, out.size(0), config.o_lora_rank});
  const at::Tensor partials = rank.region(Axis::kTensor, [&]() -> at::Tensor {
    const int64_t place = rank.index(Axis::kTensor);
    const IndexRange own = mesh.output().columns_of_rank(place);
    if (own.count() == 0) return {};
    const at::Tensor z = latent_columns(latents, own).to(type).contiguous();
    return project_partials(quantized_input(z, weights.wo_b, numerics), weights.wo_b, own.begin,
                            mesh.output().map().positions_of_rank(place).begin,
                            mesh.output().bounds(place, {0, mesh.output().columns()}));
  });
  const at::Tensor sum = rank.all_reduce_tree(Axis::kTensor, mesh.output().map(), partials,
                                              {out.size(0), config.hidden_size});
  return rank.region({}, [&] { return sum.to(type); });
}

}  // namespace

const RopeTable& ForwardContext::rope_of(const LayerPlan& plan) const {
  const bool compressed = fault("yarn_on_ratio0_layers")             ? true
                          : fault("plain_rope_on_compressed_layers") ? false
                                                                     : plan.compressed();
  return compressed ? compressed_rope : window_rope;
}

WindowPlaces window_places(const BatchSpan& span, const ModelConfig& config, const TileShard& tiles,
                           at::Device device) {
  const int64_t window = window_length(config);
  WindowPlaces places;
  places.first_key = first_window_key(span, config);
  places.positions = tiles.entries({places.first_key, span.end_position()});
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  if (places.positions.size(0) == 0) {
    places.index = at::full({span.count, window}, -1, options.dtype(at::kInt));
    return places;
  }
  const at::Tensor query = at::arange(span.position, span.end_position(), options).unsqueeze(1);
  const at::Tensor position =
      (query - window + 1).clamp_min(places.first_key) + at::arange(window, options).unsqueeze(0);
  const at::Tensor unused = at::full({}, -1, options);
  const at::Tensor row = tiles.rows(at::where(position.le(query), position, unused));
  const at::Tensor first = at::full({}, tiles.rows_before(places.first_key), row.options());
  places.index = at::where(row.ge(0), row - first, row);
  return places;
}

std::vector<PlaceSet> window_holders(const BatchSpan& span, const ModelConfig& config,
                                     const Mesh& mesh) {
  std::vector<PlaceSet> holders;
  const int64_t first_key = first_window_key(span, config);
  for (int64_t query = span.position; query < span.end_position(); ++query) {
    PlaceSet& holder = holders.emplace_back(0);
    int64_t key = std::max(query - window_length(config) + 1, first_key);
    for (; key <= query; key += kKvTileEntries - key % kKvTileEntries) {
      holder |= mesh.holder_of_entry(key);
    }
  }
  return holders;
}

at::Tensor attention(ForwardContext& context, const LayerPlan& plan,
                     const AttentionWeights& weights, const at::Tensor& x) {
  const ModelConfig& config = context.config;
  const ParallelRank& rank = context.rank;
  const int64_t rows = x.size(0), channels = config.head_dim;
  const RopeTable& rope = context.rope_of(plan);
  const Latents latents = rank.region({}, [&] { return make_latents(context, plan, weights, x); });
  if (plan.owns_kv) append_entries(context, plan, latents.closed);
  if (plan.owns_index) select_entries(context, plan, latents.index);

  const std::vector<SpanKeys> keys =
      rank.region(Axis::kContext, [&] { return gather_keys(context, plan, latents.kv); });
  for (size_t i = 0; i < keys.size(); ++i) {
    context.spans[i].sequence->window[plan.layer] = keys[i].kept;
  }
  KeyedRows keyed;
  if (rank.size(Axis::kContext) > 1) {
    keyed = rank.region({}, [&] { return keyed_rows(context, plan); });
  }
  const double scale = 1.0 / std::sqrt(static_cast<double>(channels));
  const int64_t heads =
      rank.mesh().heads().columns_of_rank(rank.index(Axis::kTensor)).count() / channels;
  const auto query = [&] {
    at::Tensor q = project_quantized(latents.q, weights.wq_b).view({rows, heads, channels});
    if (fault("q_head_norm")) {
      q = ops::rms_norm(q, at::ones({channels}, q.options()), config.rms_norm_eps);
    }
    return ops::rope(q, rope.cos, rope.sin, /*inverse=*/false);
  };
  const auto unrotated = [&](const at::Tensor& out) {
    return fault("inverse_rope_missing") ? out : ops::rope(out, rope.cos, rope.sin, true);
  };
  at::Tensor out;
  if (heads == 0) {  // more ranks than heads: nothing to attend with, but the sums to take part in
    out = at::empty({rows, 0, channels}, x.options());
  } else if (rank.size(Axis::kContext) == 1) {
    out = rank.region(Axis::kTensor, [&] {
      return unrotated(attend_all(context, keys, query(), weights.sink, scale));
    });
  } else {
    const at::Tensor q = rank.region(Axis::kTensor, query);
    const at::Tensor merged = attend_over_ranks(context, keyed, keys, q, weights.sink, scale);
    out = rank.region(Axis::kTensor, [&] { return unrotated(merged); });
  }
  return project_output(context, weights, out, x.scalar_type());
}

}  // namespace deepinfer
