#include "model/transformer.h"

#include <set>
#include <string>
#include <utility>

#include "model/attention.h"
#include "model/checkpoint.h"
#include "model/engram.h"
#include "model/engram_meta.h"
#include "model/forward_context.h"
#include "model/moe.h"
#include "model/rope.h"
#include "model/sequence.h"
#include "model/weights.h"
#include "platform/errors.h"
#include "platform/fault.h"
#include "platform/ops.h"

namespace deepinfer {

namespace {

at::ScalarType scalar_type(ActivationDtype type) {
  return type == ActivationDtype::kBFloat16 ? at::kBFloat16 : at::kFloat;
}

class TextModelImpl final : public TextModel {
 public:
  TextModelImpl(ModelConfig config, ModelPlan plan, EngramMeta meta, TextWeights weights,
                const Numerics& numerics, at::Device device)
      : config_(std::move(config)),
        plan_(std::move(plan)),
        meta_(std::move(meta)),
        weights_(std::move(weights)),
        numerics_(numerics),
        device_(device),
        window_frequencies_(plain_frequencies(config_.rope_theta, config_.qk_rope_head_dim)),
        compressed_frequencies_(yarn_frequencies(config_.compress_rope_theta,
                                                 config_.qk_rope_head_dim, config_.rope_scaling)) {
    window_frequencies_.values = window_frequencies_.values.to(device);
    compressed_frequencies_.values = compressed_frequencies_.values.to(device);
  }

  const ModelConfig& config() const override { return config_; }
  const ModelPlan& plan() const override { return plan_; }
  const Numerics& numerics() const override { return numerics_; }

  SequencePtr new_sequence(int64_t max_tokens) const override {
    if (max_tokens < 1 || max_tokens > config_.max_position_embeddings) {
      throw ConfigError({.what = "a sequence cannot hold " + std::to_string(max_tokens) + " tokens",
                         .where = "new_sequence",
                         .expected = "1 to max_position_embeddings = " +
                                     std::to_string(config_.max_position_embeddings),
                         .remedy = "shorten the prompt or generate fewer tokens"});
    }
    return SequencePtr(
        new Sequence(config_, plan_, max_tokens, scalar_type(numerics_.activation), device_));
  }

  at::Tensor forward(const std::vector<Chunk>& batch, const ForwardOptions& options) const override;

 private:
  void check_batch(const std::vector<Chunk>& batch) const;
  ForwardContext make_context(const std::vector<Chunk>& batch, const ForwardOptions& options) const;
  at::Tensor run_layer(ForwardContext& context, const LayerPlan& plan, at::Tensor streams,
                       at::Tensor& pre) const;
  void cover_positions(const ForwardContext& context) const;

  ModelConfig config_;
  ModelPlan plan_;
  EngramMeta meta_;
  TextWeights weights_;
  Numerics numerics_;
  at::Device device_;
  RopeFrequencies window_frequencies_;
  RopeFrequencies compressed_frequencies_;
};

// Rejects the whole batch before any sequence is touched.
void TextModelImpl::check_batch(const std::vector<Chunk>& batch) const {
  if (batch.empty()) {
    throw ConfigError({.what = "a forward needs at least one chunk", .where = "forward"});
  }
  std::set<const Sequence*> seen;
  for (size_t i = 0; i < batch.size(); ++i) {
    const std::string where = "forward, chunk " + std::to_string(i);
    const Chunk& chunk = batch[i];
    if (chunk.sequence == nullptr || chunk.tokens.empty()) {
      throw ConfigError(
          {.what = "a chunk needs a sequence and at least one token", .where = where});
    }
    const Sequence& sequence = *chunk.sequence;
    if (!seen.insert(&sequence).second) {
      throw ConfigError({.what = "a sequence is in the batch twice",
                         .where = where,
                         .remedy = "put its tokens into one chunk"});
    }
    if (!sequence.consistent) {
      throw ConfigError({.what = "an earlier forward on this sequence failed half-way",
                         .where = where,
                         .remedy = "start a new sequence and prefill again"});
    }
    const int64_t count = static_cast<int64_t>(chunk.tokens.size());
    if (count > sequence.max_tokens() - sequence.length()) {
      throw ConfigError({.what = "the sequence is full",
                         .where = where,
                         .expected = "at most " +
                                     std::to_string(sequence.max_tokens() - sequence.length()) +
                                     " more tokens",
                         .found = std::to_string(count),
                         .remedy = "make the sequence with a larger max_tokens"});
    }
    for (const int64_t token : chunk.tokens) {
      if (token < 0 || token >= config_.vocab_size) {
        throw ConfigError({.what = "a token is outside the vocabulary",
                           .where = where,
                           .expected = "0 to " + std::to_string(config_.vocab_size - 1),
                           .found = std::to_string(token)});
      }
    }
  }
}

ForwardContext TextModelImpl::make_context(const std::vector<Chunk>& batch,
                                           const ForwardOptions& options) const {
  ForwardContext context{.config = config_,
                         .numerics = numerics_,
                         .window_frequencies = window_frequencies_,
                         .compressed_frequencies = compressed_frequencies_,
                         .spans = {},
                         .positions = {},
                         .text = {},
                         .window_rope = {},
                         .compressed_rope = {},
                         .observer = options.observer,
                         .coverage = options.coverage,
                         .topk = {},
                         .candidates = {}};
  std::vector<int64_t> positions;
  std::vector<uint8_t> text;
  for (const Chunk& chunk : batch) {
    BatchSpan span{.sequence = chunk.sequence,
                   .begin = static_cast<int64_t>(positions.size()),
                   .count = static_cast<int64_t>(chunk.tokens.size()),
                   .position = chunk.sequence->length()};
    for (const int64_t token : chunk.tokens) {
      positions.push_back(span.position + static_cast<int64_t>(positions.size()) - span.begin);
      text.push_back(token != config_.image_token_id);
    }
    context.spans.push_back(span);
  }
  context.positions = at::tensor(positions, at::kLong).to(device_);
  context.text = at::tensor(text, at::kByte).to(at::kBool).to(device_);
  std::tie(context.window_rope.cos, context.window_rope.sin) =
      ops::rope_table(context.positions, window_frequencies_.values);
  std::tie(context.compressed_rope.cos, context.compressed_rope.sin) =
      ops::rope_table(context.positions, compressed_frequencies_.values);
  return context;
}

void TextModelImpl::cover_positions(const ForwardContext& context) const {
  if (context.coverage == nullptr) return;
  const bool yarn_has_all_kinds = compressed_frequencies_.kept > 0 &&
                                  compressed_frequencies_.blended > 0 &&
                                  compressed_frequencies_.scaled > 0;
  for (const BatchSpan& span : context.spans) {
    const int64_t last = span.end_position() - 1;
    const int64_t crossed = last - std::max(span.position, config_.sliding_window) + 1;
    context.cover(Path::kWindowCrossed, crossed);
    if (yarn_has_all_kinds) context.cover(Path::kYarnRange, span.count - (span.position == 0));
    if (span.position > 0)
      context.cover(span.count > 1 ? Path::kPromptChunked : Path::kDecoded, span.count);
  }
}

at::Tensor TextModelImpl::run_layer(ForwardContext& context, const LayerPlan& plan,
                                    at::Tensor streams, at::Tensor& pre) const {
  const LayerWeights& weights = weights_.layers[plan.layer];
  const auto mix = [&](const HyperConnectionWeights& hc) {
    return ops::hc_mix(streams, hc.fn, hc.scale, hc.base, config_.hc_sinkhorn_iters, config_.hc_eps,
                       config_.rms_norm_eps);
  };
  const auto sublayer_input = [&](const at::Tensor& weight_of_streams, const at::Tensor& norm) {
    return ops::rms_norm(ops::hc_collapse(streams, weight_of_streams), norm, config_.rms_norm_eps);
  };
  if (weights.engram) streams = engram(context, plan, *weights.engram, meta_, streams);

  // The collapse weights that a sub-layer computes are used by the next one (model-verified.md 6).
  const bool no_lag = fault("lagged_mix_from_own_sublayer");
  const auto [attn_pre, attn_post, attn_comb] = mix(weights.hc_attn);
  context.observe("attn_pre", plan.layer, attn_pre);
  const at::Tensor attended = attention(context, plan, weights.attn,
                                        sublayer_input(no_lag ? attn_pre : pre, weights.attn_norm));
  streams = ops::hc_expand(attended, streams, attn_post, attn_comb);
  context.observe("post_attn", plan.layer, streams);

  const auto [ffn_pre, ffn_post, ffn_comb] = mix(weights.hc_ffn);
  context.observe("ffn_pre", plan.layer, ffn_pre);
  const at::Tensor mixed = mixture_of_experts(
      context, plan, weights.ffn, sublayer_input(no_lag ? ffn_pre : attn_pre, weights.ffn_norm));
  streams = ops::hc_expand(mixed, streams, ffn_post, ffn_comb);
  context.observe("post_moe", plan.layer, streams);
  pre = ffn_pre;
  return streams;
}

at::Tensor TextModelImpl::forward(const std::vector<Chunk>& batch,
                                  const ForwardOptions& options) const {
  const c10::InferenceMode inference;
  const ArithmeticScope arithmetic(numerics_.arithmetic);
  check_batch(batch);
  ForwardContext context = make_context(batch, options);
  std::vector<int64_t> ids, last_rows;
  for (const Chunk& chunk : batch) {
    ids.insert(ids.end(), chunk.tokens.begin(), chunk.tokens.end());
    last_rows.push_back(static_cast<int64_t>(ids.size()) - 1);
    chunk.sequence->consistent = false;
    chunk.sequence->tokens.insert(chunk.sequence->tokens.end(), chunk.tokens.begin(),
                                  chunk.tokens.end());
  }
  cover_positions(context);

  const int64_t rows = static_cast<int64_t>(ids.size()), streams_count = config_.hc_mult;
  const at::Tensor embedded = weights_.embed.index_select(0, at::tensor(ids, at::kLong).to(device_))
                                  .to(scalar_type(numerics_.activation));
  at::Tensor streams = embedded.unsqueeze(1).repeat({1, streams_count, 1});
  at::Tensor pre = at::zeros({rows, streams_count}, embedded.options().dtype(at::kFloat));
  pre.select(1, 0).fill_(1);
  for (const LayerPlan& layer : plan_.layers) {
    if (context.observer != nullptr) context.observer->layer_input(layer.layer, streams, pre);
    streams = run_layer(context, layer, streams, pre);
  }
  at::Tensor hidden = ops::hc_collapse(streams, pre);
  hidden = ops::rms_norm(hidden, weights_.norm, config_.rms_norm_eps);
  context.observe("hidden", -1, hidden);
  if (!options.all_rows) {
    hidden = hidden.index_select(0, at::tensor(last_rows, at::kLong).to(device_));
  }
  const at::Tensor logits = ops::linear(hidden, weights_.head, at::kFloat);
  for (const Chunk& chunk : batch) chunk.sequence->consistent = true;
  return logits;
}

}  // namespace

std::shared_ptr<const TextModel> TextModel::load(const std::filesystem::path& directory,
                                                 const Numerics& numerics, at::Device device) {
  const c10::InferenceMode inference;
  if (numerics.arithmetic == Arithmetic::kCanonical && device.is_cpu() &&
      !host_kernels_installed()) {
    throw UnsupportedError(
        {.what =
             "canonical arithmetic needs the host kernels, which this program has not installed",
         .where = "TextModel::load",
         .remedy = "link deepinfer_sim::sim and call install_host_kernels(), or ask for reference "
                   "arithmetic"});
  }
  ModelConfig config = load_model_config(directory);
  ModelPlan plan = make_model_plan(config, (directory / "config.json").string());
  EngramMeta meta = load_engram_meta(directory, config);
  std::shared_ptr<const TensorStore> store = open_checkpoint(directory, config);
  TextWeights weights = load_text_weights(store, config, plan, meta, device);
  return std::make_shared<TextModelImpl>(std::move(config), std::move(plan), std::move(meta),
                                         std::move(weights), numerics, device);
}

at::Tensor greedy_tokens(const at::Tensor& logits) { return ops::greedy_sample(logits); }

}  // namespace deepinfer
