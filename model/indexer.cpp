#include "model/indexer.h"

#include <cmath>

#include "model/compressor.h"
#include "platform/fault.h"
#include "platform/ops.h"

namespace deepinfer {

namespace {

// Queries whose visible blocks outnumber the candidate blocks that are kept.
int64_t rows_cut_by_candidates(const at::Tensor& visible, const ModelConfig& config) {
  const at::Tensor blocks =
      at::floor_divide(visible + config.candidate_block_size - 1, config.candidate_block_size);
  return blocks.gt(config.candidate_topk_blocks).sum().item<int64_t>();
}

}  // namespace

void select_entries(ForwardContext& context, const LayerPlan& plan, const IndexerWeights& weights,
                    const at::Tensor& x, const at::Tensor& q_latent) {
  const ModelConfig& config = context.config;
  const Numerics& numerics = context.numerics;
  const int64_t rows = x.size(0), heads = config.index_n_heads, channels = config.index_head_dim;
  const RopeTable& rope = context.rope_of(plan);

  at::Tensor q = project(q_latent, weights.wq_b, numerics).view({rows, heads, channels});
  q = ops::rope(q, rope.cos, rope.sin, /*inverse=*/false);
  if (numerics.quantize_index) q = ops::fake_quantize_fq4_32(q);
  const double factor =
      1.0 / std::sqrt(static_cast<double>(channels)) / std::sqrt(static_cast<double>(heads));
  const at::Tensor head_weights = ops::linear(x, weights.weights_proj, x.scalar_type()) * factor;

  int64_t owner = plan.kv_source;
  if (plan.owns_kv) context.last_kv_owner = plan.layer;
  std::vector<at::Tensor>& published = context.topk[plan.layer];
  if (plan.publishes_candidates) context.candidates.clear();
  for (size_t i = 0; i < context.spans.size(); ++i) {
    const BatchSpan& span = context.spans[i];
    // Official decode reads the keys of whichever owner published last (model-verified.md 14.1): a
    // defect.
    if (fault("index_keys_of_last_owner") && span.position > 0 &&
        span.end_position() % plan.ratio != 0) {
      owner = span.sequence->caches.rbegin()->first;
    }
    const CompressedCache& cache = span.sequence->caches.at(owner);
    const at::Tensor keys = cache.index_keys.slice(0, 0, cache.entries);
    const at::Tensor visible = visible_entries(span, plan.ratio, x.device());
    at::Tensor scores = ops::index_score(span.rows_of(q), span.rows_of(head_weights), keys, visible,
                                         numerics.narrow_index);
    if (plan.publishes_candidates) {
      context.candidates.push_back(ops::candidate_blocks(
          scores, visible, config.candidate_block_size, config.candidate_topk_blocks));
    }
    const bool filtered = (plan.filters_by_candidates && !fault("candidate_filter_missing")) ||
                          (plan.publishes_candidates && fault("candidate_filter_on_its_source"));
    if (filtered) {
      const at::Tensor blocks = at::floor_divide(at::arange(cache.entries, visible.options()),
                                                 config.candidate_block_size);
      scores = ops::candidate_mask(scores, context.candidates[i], blocks);
    }
    if (context.coverage != nullptr) {
      context.cover(Path::kTopkDropped, visible.gt(config.index_topk).sum().item<int64_t>());
      if (plan.filters_by_candidates) {
        context.cover(Path::kCandidatesCut, rows_cut_by_candidates(visible, config));
      }
    }
    published.push_back(ops::topk_select(scores, config.index_topk));
  }
  context.observe("topk", plan.layer, published.size() == 1 ? published[0] : at::cat(published, 0));
}

}  // namespace deepinfer
