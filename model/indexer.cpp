#include "model/indexer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/compressor.h"
#include "platform/fault.h"
#include "platform/ops.h"

namespace deepinfer {

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Blocks that each query sees, the newest maybe in part: int64 [count].
at::Tensor visible_blocks(const at::Tensor& visible, const ModelConfig& config) {
  return at::floor_divide(visible + config.candidate_block_size - 1, config.candidate_block_size);
}

// One span at an index source: scores of the rank's own entries.
struct SpanScores {
  at::Tensor entries;  // int64 [own], ascending
  at::Tensor scores;   // fp32 [count, own], -inf for those not visible

  bool empty() const { return entries.size(0) == 0; }
};

std::vector<SpanScores> score_entries(const ForwardContext& context, const LayerPlan& plan,
                                      const IndexQuery& query, const at::Tensor& visible) {
  at::Tensor own_visible;
  std::vector<SpanScores> all;
  int64_t owner = plan.kv_source;
  for (size_t i = 0; i < context.spans.size(); ++i) {
    const BatchSpan& span = context.spans[i];
    // Official decode reads the keys of whichever owner published last (model-verified.md 14.1): a
    // defect.
    const bool misled = fault("index_keys_of_last_owner") && span.position > 0 &&
                        span.end_position() % plan.ratio != 0;
    if (misled) owner = span.sequence->caches.rbegin()->first;
    const CompressedCache& cache = span.sequence->caches.at(owner);
    const TileShard& tiles = context.rank.tiles();
    SpanScores& own = all.emplace_back();
    own.entries = misled ? tiles.entries({0, cache.entries}) : context.own_entries.at(owner)[i];
    if (own.empty()) continue;
    if (!own_visible.defined()) own_visible = tiles.rows_before(visible);
    own.scores = ops::index_score(span.rows_of(query.q), span.rows_of(query.head_weights),
                                  cache.index_keys.slice(0, 0, tiles.rows_before(cache.entries)),
                                  span.rows_of(own_visible), context.numerics.narrow_index);
  }
  return all;
}

at::Tensor candidate_block_of(const at::Tensor& entries, const ModelConfig& config) {
  return at::floor_divide(entries, config.candidate_block_size);
}

bool any_entry(const std::vector<SpanScores>& spans) {
  return std::any_of(spans.begin(), spans.end(),
                     [](const SpanScores& span) { return !span.empty(); });
}

constexpr float kUnscored = -std::numeric_limits<float>::infinity();

// The candidate blocks of each row, from the blocks' maxima over all ranks.
at::Tensor choose_candidates(const ForwardContext& context, const LayerPlan& plan,
                             const std::vector<SpanScores>& spans, const at::Tensor& visible) {
  const ModelConfig& config = context.config;
  const ParallelRank& rank = context.rank;
  // Spans are padded to the most blocks, so that one collective serves all.
  int64_t blocks = 1;
  for (const BatchSpan& span : context.spans) {
    const int64_t entries = span.end_position() / plan.ratio;
    blocks = std::max(blocks, ceil_div(entries, config.candidate_block_size));
  }
  const at::Tensor nothing = rank.region({}, [&] {
    return at::full({visible.size(0), blocks}, kUnscored, visible.options().dtype(at::kFloat));
  });
  const at::Tensor maxima = rank.region(Axis::kContext, [&] {
    if (!any_entry(spans)) return nothing;
    const at::Tensor maxima = nothing.clone();
    for (size_t i = 0; i < spans.size(); ++i) {
      if (spans[i].empty()) continue;
      context.spans[i].rows_of(maxima).copy_(
          ops::block_maxima(spans[i].scores, candidate_block_of(spans[i].entries, config), blocks));
    }
    return maxima;
  });
  const at::Tensor all_maxima = rank.all_reduce_max(Axis::kContext, maxima);
  return rank.region({}, [&] {
    // The newest block is pinned by the length of all ranks' entries.
    const at::Tensor length =
        fault("newest_block_pinned_by_own_length") ? rank.tiles().rows_before(visible) : visible;
    return ops::candidate_blocks(all_maxima, visible_blocks(length, config), 1,
                                 config.candidate_topk_blocks);
  });
}

// The cp places that hold the entries of each row of `topk`, int32 [rows, k].
std::vector<PlaceSet> holders_of(const at::Tensor& topk, const Mesh& mesh) {
  const at::Tensor host = topk.cpu().contiguous();
  const int32_t* entry = host.data_ptr<int32_t>();
  std::vector<PlaceSet> holders(static_cast<size_t>(topk.size(0)), 0);
  for (PlaceSet& holder : holders) {
    for (int64_t i = 0; i < topk.size(1); ++i, ++entry) {
      if (*entry >= 0) holder |= mesh.holder_of_entry(*entry);
    }
  }
  return holders;
}

void cover_selection(const ForwardContext& context, const LayerPlan& plan) {
  if (context.coverage == nullptr) return;
  const ModelConfig& config = context.config;
  for (const BatchSpan& span : context.spans) {
    const at::Tensor visible = visible_entries(span.rows_of(context.positions), plan.ratio);
    context.cover(Path::kTopkDropped, visible.gt(config.index_topk).sum().item<int64_t>());
    if (!plan.filters_by_candidates) continue;
    context.cover(
        Path::kCandidatesCut,
        visible_blocks(visible, config).gt(config.candidate_topk_blocks).sum().item<int64_t>());
  }
}

}  // namespace

IndexQuery index_query(const ForwardContext& context, const LayerPlan& plan,
                       const IndexerWeights& weights, const at::Tensor& x,
                       const at::Tensor& q_latent) {
  const ModelConfig& config = context.config;
  const Numerics& numerics = context.numerics;
  const int64_t rows = x.size(0), heads = config.index_n_heads, channels = config.index_head_dim;
  const RopeTable& rope = context.rope_of(plan);
  cover_selection(context, plan);
  at::Tensor q = project(q_latent, weights.wq_b, numerics).view({rows, heads, channels});
  q = ops::rope(q, rope.cos, rope.sin, /*inverse=*/false);
  if (numerics.quantize_index) q = ops::fake_quantize_fq4_32(q);
  const double factor =
      1.0 / std::sqrt(static_cast<double>(channels)) / std::sqrt(static_cast<double>(heads));
  return {q, ops::linear(x, weights.weights_proj, x.scalar_type()) * factor};
}

void select_entries(ForwardContext& context, const LayerPlan& plan, const IndexQuery& query) {
  const ModelConfig& config = context.config;
  const ParallelRank& rank = context.rank;
  const at::Tensor visible =
      rank.region({}, [&] { return visible_entries(context.positions, plan.ratio); });
  const std::vector<SpanScores> spans =
      rank.region(Axis::kContext, [&] { return score_entries(context, plan, query, visible); });
  if (plan.publishes_candidates) {
    context.candidates = choose_candidates(context, plan, spans, visible);
  }
  const bool filtered = (plan.filters_by_candidates && !fault("candidate_filter_missing")) ||
                        (plan.publishes_candidates && fault("candidate_filter_on_its_source"));
  // Scores (as bits) and entries of the largest, int32 [2, rows, index_topk]: -inf and -1 where
  // there is none. They travel in one collective.
  const auto scores_of = [](const at::Tensor& best) { return best[0].view(at::kFloat); };
  const at::Tensor nothing = rank.region({}, [&] {
    const at::Tensor best =
        at::full({2, visible.size(0), config.index_topk}, -1, visible.options().dtype(at::kInt));
    scores_of(best).fill_(kUnscored);
    return best;
  });
  const at::Tensor own_best = rank.region(Axis::kContext, [&] {
    if (!any_entry(spans)) return nothing;
    const at::Tensor best = nothing.clone();
    const at::Tensor scores = scores_of(best), row = best[1];
    for (size_t i = 0; i < spans.size(); ++i) {
      SpanScores span = spans[i];
      if (span.empty()) continue;
      if (filtered) {
        span.scores = ops::candidate_mask(span.scores, context.spans[i].rows_of(context.candidates),
                                          candidate_block_of(span.entries, config));
      }
      const at::Tensor chosen = ops::topk_select(span.scores, config.index_topk);
      context.spans[i].rows_of(row).copy_(chosen);
      context.spans[i].rows_of(scores).copy_(
          span.scores.gather(1, chosen.to(at::kLong).clamp_min(0)));
    }
    scores.masked_fill_(row.lt(0), kUnscored);
    row.copy_(rank.tiles().entries_of(row));
    return best;
  });
  at::Tensor topk = own_best[1];
  if (rank.size(Axis::kContext) > 1 && !fault("topk_of_ranks_not_merged")) {
    const at::Tensor best = rank.all_gather(Axis::kContext, own_best);
    const auto of_all = [&](int64_t part) {  // [rows, ranks * index_topk]
      return best.select(1, part).permute({1, 0, 2}).reshape({topk.size(0), -1});
    };
    topk = rank.region({}, [&] {
      return ops::topk_merge(of_all(0).view(at::kFloat), of_all(1), config.index_topk);
    });
  }
  context.observe("topk", plan.layer, topk);
  context.selected[plan.layer] = rank.region(Axis::kContext, [&] {
    const at::Tensor own = any_entry(spans) ? rank.tiles().rows(topk) : nothing[1];
    std::vector<at::Tensor> of_spans;
    for (const BatchSpan& span : context.spans) of_spans.push_back(span.rows_of(own));
    return of_spans;
  });
  if (rank.size(Axis::kContext) > 1) {
    context.selected_holders[plan.layer] =
        rank.region({}, [&] { return holders_of(topk, rank.mesh()); });
  }
}

}  // namespace deepinfer
