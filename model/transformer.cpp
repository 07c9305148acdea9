#include "model/transformer.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "model/attention.h"
#include "model/checkpoint.h"
#include "model/engram.h"
#include "model/engram_meta.h"
#include "model/forward_context.h"
#include "model/moe.h"
#include "model/parallel_rank.h"
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

// What all ranks of a process share.
struct SharedModel {
  ModelConfig config;
  ModelPlan plan;
  EngramMeta meta;
  TextWeights weights;  // of one rank: all
  Numerics numerics;
  at::Device device;
  RopeFrequencies window_frequencies;
  RopeFrequencies compressed_frequencies;
};

class TextModelImpl final : public TextModel {
 public:
  TextModelImpl(std::shared_ptr<const SharedModel> shared, ParallelRank rank)
      : shared_(std::move(shared)),
        rank_(std::move(rank)),
        weights_(shard_text_weights(shared_->weights, shared_->config, rank_)) {}

  const ModelConfig& config() const override { return shared_->config; }
  const ModelPlan& plan() const override { return shared_->plan; }
  const Numerics& numerics() const override { return shared_->numerics; }

  std::shared_ptr<const TextModel> on_rank(std::shared_ptr<const Mesh> mesh,
                                           Communicator& communicator,
                                           Replicas& replicas) const override {
    DEEPINFER_ASSERT(rank_.mesh().ranks() == 1, "of a mesh of " << rank_.mesh().ranks());
    const c10::InferenceMode inference;
    return std::make_shared<TextModelImpl>(
        shared_, ParallelRank(std::move(mesh), shared_->device, communicator, replicas));
  }

  SequencePtr new_sequence(int64_t max_tokens) const override {
    const int64_t longest = config().max_position_embeddings;
    if (max_tokens < 1 || max_tokens > longest) {
      throw ConfigError({.what = "a sequence cannot hold " + std::to_string(max_tokens) + " tokens",
                         .where = "new_sequence",
                         .expected = "1 to max_position_embeddings = " + std::to_string(longest),
                         .remedy = "shorten the prompt or generate fewer tokens"});
    }
    return SequencePtr(new Sequence(max_tokens));
  }

  void check(const std::vector<Chunk>& batch) const override;
  at::Tensor forward(const std::vector<Chunk>& batch, const ForwardOptions& options) const override;

 private:
  // Streams between layers, with the collapse weights that the next sub-layer uses.
  struct Streams {
    at::Tensor streams;  // [rows, hc_mult, hidden]
    at::Tensor pre;      // fp32 [rows, hc_mult]
  };
  // A sub-layer's input, and how its output joins the streams.
  struct SublayerInput {
    at::Tensor x;              // [rows, hidden], normed
    at::Tensor pre;            // for the next sub-layer
    at::Tensor post, combine;  // fp32 [rows, hc_mult], [rows, hc_mult, hc_mult]
  };

  ForwardContext make_context(const std::vector<Chunk>& batch, const ForwardOptions& options) const;
  Streams embed(const std::vector<int64_t>& ids) const;
  SublayerInput enter(const ForwardContext& context, const LayerPlan& plan, const char* name,
                      const Streams& in, const HyperConnectionWeights& mix,
                      const at::Tensor& norm) const;
  Streams run_layer(ForwardContext& context, const LayerPlan& plan, Streams in) const;
  at::Tensor head(const ForwardContext& context, const Streams& in,
                  const std::vector<int64_t>& rows, bool all_rows) const;
  void cover_positions(const ForwardContext& context) const;

  std::shared_ptr<const SharedModel> shared_;
  ParallelRank rank_;
  TextWeights weights_;  // the rank's
};

void TextModelImpl::check(const std::vector<Chunk>& batch) const {
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
      if (token < 0 || token >= config().vocab_size) {
        throw ConfigError({.what = "a token is outside the vocabulary",
                           .where = where,
                           .expected = "0 to " + std::to_string(config().vocab_size - 1),
                           .found = std::to_string(token)});
      }
    }
  }
}

ForwardContext TextModelImpl::make_context(const std::vector<Chunk>& batch,
                                           const ForwardOptions& options) const {
  ForwardContext context{.config = config(),
                         .numerics = numerics(),
                         .rank = rank_,
                         .window_frequencies = shared_->window_frequencies,
                         .compressed_frequencies = shared_->compressed_frequencies,
                         .spans = {},
                         .positions = {},
                         .text = {},
                         .window_rope = {},
                         .compressed_rope = {},
                         .observer = options.observer,
                         .coverage = options.coverage,
                         .window = {},
                         .own_entries = {},
                         .selected = {},
                         .window_holders = {},
                         .selected_holders = {},
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
      text.push_back(token != config().image_token_id);
      context.has_images = context.has_images || text.back() == 0;
    }
    context.spans.push_back(span);
  }
  const at::Device device = shared_->device;
  std::tie(context.positions, context.text, context.window_rope,
           context.compressed_rope) = rank_.region({}, [&] {
    const at::Tensor all = at::tensor(positions, at::kLong).to(device);
    const auto table = [&](const RopeFrequencies& frequencies) {
      const auto [cos, sin] = ops::rope_table(all, frequencies.values);
      return RopeTable{cos, sin};
    };
    return std::tuple(all, at::Tensor(at::tensor(text, at::kByte).to(at::kBool).to(device)),
                      table(shared_->window_frequencies), table(shared_->compressed_frequencies));
  });
  context.window = rank_.region(Axis::kContext, [&] {
    std::vector<WindowPlaces> places;
    for (const BatchSpan& span : context.spans) {
      places.push_back(window_places(span, config(), rank_.tiles(), device));
    }
    return places;
  });
  if (rank_.size(Axis::kContext) > 1) {
    context.window_holders = rank_.region({}, [&] {
      std::vector<PlaceSet> holders;
      for (const BatchSpan& span : context.spans) {
        const std::vector<PlaceSet> of_span = window_holders(span, config(), rank_.mesh());
        holders.insert(holders.end(), of_span.begin(), of_span.end());
      }
      return holders;
    });
  }
  return context;
}

void TextModelImpl::cover_positions(const ForwardContext& context) const {
  if (context.coverage == nullptr) return;
  const RopeFrequencies& yarn = shared_->compressed_frequencies;
  const bool yarn_has_all_kinds = yarn.kept > 0 && yarn.blended > 0 && yarn.scaled > 0;
  for (const BatchSpan& span : context.spans) {
    const int64_t last = span.end_position() - 1;
    const int64_t crossed = last - std::max(span.position, config().sliding_window) + 1;
    context.cover(Path::kWindowCrossed, crossed);
    if (yarn_has_all_kinds) context.cover(Path::kYarnRange, span.count - (span.position == 0));
    if (span.position > 0)
      context.cover(span.count > 1 ? Path::kPromptChunked : Path::kDecoded, span.count);
  }
}

TextModelImpl::Streams TextModelImpl::embed(const std::vector<int64_t>& ids) const {
  const int64_t rows = static_cast<int64_t>(ids.size()), count = config().hc_mult;
  at::Tensor embedded =
      weights_.embed.index_select(0, at::tensor(ids, at::kLong).to(shared_->device))
          .to(scalar_type(numerics().activation));
  const int64_t last = rank_.mesh().ranks() - 1;
  if (fault("one_rank_embeds_differently") && last > 0 && rank_.rank() == last) {
    embedded = embedded + 0x1p-10;
  }
  const at::Tensor pre = at::zeros({rows, count}, embedded.options().dtype(at::kFloat));
  pre.select(1, 0).fill_(1);
  return {embedded.unsqueeze(1).repeat({1, count, 1}), pre};
}

// The collapse weights that a sub-layer computes are used by the next one (model-verified.md 6).
TextModelImpl::SublayerInput TextModelImpl::enter(const ForwardContext& context,
                                                  const LayerPlan& plan, const char* name,
                                                  const Streams& in,
                                                  const HyperConnectionWeights& mix,
                                                  const at::Tensor& norm) const {
  const ModelConfig& config = context.config;
  const auto [pre, post, combine] =
      ops::hc_mix(in.streams, mix.fn, mix.scale, mix.base, config.hc_sinkhorn_iters, config.hc_eps,
                  config.rms_norm_eps);
  context.observe(name, plan.layer, pre);
  const bool no_lag = fault("lagged_mix_from_own_sublayer");
  return {
      ops::rms_norm(ops::hc_collapse(in.streams, no_lag ? pre : in.pre), norm, config.rms_norm_eps),
      pre, post, combine};
}

TextModelImpl::Streams TextModelImpl::run_layer(ForwardContext& context, const LayerPlan& plan,
                                                Streams in) const {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(plan.layer)];
  const auto join = [&](const Streams& into, const SublayerInput& entered, const at::Tensor& y,
                        const char* name) {
    const Streams out = {ops::hc_expand(y, into.streams, entered.post, entered.combine),
                         entered.pre};
    context.observe(name, plan.layer, out.streams);
    return out;
  };
  const auto [streams, attn] = rank_.region({}, [&] {
    Streams entering = in;
    if (weights.engram) {
      entering.streams = engram(context, plan, *weights.engram, shared_->meta, in.streams);
    }
    return std::pair(
        entering, enter(context, plan, "attn_pre", entering, weights.hc_attn, weights.attn_norm));
  });
  const at::Tensor attended = attention(context, plan, weights.attn, attn.x);
  // Captured by name: structured bindings are no variables.
  const auto [middle, ffn] = rank_.region({}, [&, &before = streams, &entered = attn] {
    const Streams joined = join(before, entered, attended, "post_attn");
    return std::pair(joined,
                     enter(context, plan, "ffn_pre", joined, weights.hc_ffn, weights.ffn_norm));
  });
  const at::Tensor mixed = mixture_of_experts(context, plan, weights.ffn, ffn.x);
  return rank_.region({}, [&, &before = middle, &entered = ffn] {
    return join(before, entered, mixed, "post_moe");
  });
}

// Logits fp32 [rows, vocab_size], of all rows or of the chunks' last.
at::Tensor TextModelImpl::head(const ForwardContext& context, const Streams& in,
                               const std::vector<int64_t>& rows, bool all_rows) const {
  const UnitShards& words = rank_.mesh().vocabulary();
  const int64_t ranks = rank_.size(Axis::kTensor);
  const at::Tensor hidden = rank_.region({}, [&] {
    const at::Tensor last =
        ops::rms_norm(ops::hc_collapse(in.streams, in.pre), weights_.norm, config().rms_norm_eps);
    context.observe("hidden", -1, last);
    return all_rows ? last : last.index_select(0, at::tensor(rows, at::kLong).to(last.device()));
  });
  const at::Tensor own = rank_.region(Axis::kTensor, [&] {
    const at::Tensor logits = ops::linear(hidden, weights_.head, at::kFloat);
    return at::constant_pad_nd(logits, {0, words.most - logits.size(1)}, 0);
  });
  if (ranks == 1) return own;
  const at::Tensor gathered = rank_.all_gather(Axis::kTensor, own);  // [ranks, rows, most words]
  return rank_.region({}, [&] {
    std::vector<at::Tensor> parts;
    for (int64_t place = 0; place < ranks; ++place) {
      parts.push_back(
          gathered.select(0, place).slice(1, 0, words.of_rank[static_cast<size_t>(place)].count()));
    }
    return at::cat(parts, 1);
  });
}

at::Tensor TextModelImpl::forward(const std::vector<Chunk>& batch,
                                  const ForwardOptions& options) const {
  const c10::InferenceMode inference;
  const ArithmeticScope arithmetic(numerics().arithmetic);
  check(batch);
  const bool observed = options.observed || options.observer != nullptr;
  const ParallelRank::ForwardScope scope(rank_, observed);
  const auto activation =
      at::TensorOptions().dtype(scalar_type(numerics().activation)).device(shared_->device);
  for (const Chunk& chunk : batch) {
    if (!chunk.sequence->allocated()) {
      chunk.sequence->allocate(config(), plan(), rank_, activation);
    }
  }
  ForwardContext context = make_context(batch, options);
  std::vector<int64_t> ids, last_rows;
  for (const Chunk& chunk : batch) {
    ids.insert(ids.end(), chunk.tokens.begin(), chunk.tokens.end());
    last_rows.push_back(static_cast<int64_t>(ids.size()) - 1);
    chunk.sequence->consistent = false;
    chunk.sequence->tokens.insert(chunk.sequence->tokens.end(), chunk.tokens.begin(),
                                  chunk.tokens.end());
  }
  Streams streams = rank_.region({}, [&] {
    cover_positions(context);
    return embed(ids);
  });
  for (const LayerPlan& layer : plan().layers) {
    if (observed) {
      if (context.observer != nullptr) {
        context.observer->layer_input(layer.layer, streams.streams, streams.pre);
      }
      streams = {rank_.broadcast_world(streams.streams), rank_.broadcast_world(streams.pre)};
    }
    streams = run_layer(context, layer, streams);
  }
  const at::Tensor logits = head(context, streams, last_rows, options.all_rows);
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
  RopeFrequencies window = plain_frequencies(config.rope_theta, config.qk_rope_head_dim);
  RopeFrequencies compressed =
      yarn_frequencies(config.compress_rope_theta, config.qk_rope_head_dim, config.rope_scaling);
  window.values = window.values.to(device);
  compressed.values = compressed.values.to(device);
  auto mesh = std::make_shared<const Mesh>(config, ParallelSizes{});
  auto shared = std::make_shared<const SharedModel>(
      SharedModel{std::move(config), std::move(plan), std::move(meta), std::move(weights), numerics,
                  device, std::move(window), std::move(compressed)});
  return std::make_shared<TextModelImpl>(std::move(shared), ParallelRank(std::move(mesh), device));
}

at::Tensor greedy_tokens(const at::Tensor& logits) { return ops::greedy_sample(logits); }

}  // namespace deepinfer
