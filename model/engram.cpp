#include "model/engram.h"

#include <algorithm>

#include "platform/fault.h"
#include "platform/ops.h"

namespace deepinfer {

namespace {

// Table rows of a span's tokens: int64 [count, columns].
at::Tensor hash_span(const ForwardContext& context, const BatchSpan& span,
                     const EngramWeights& weights, const EngramMeta& meta) {
  const std::vector<int64_t>& tokens = span.sequence->tokens;  // this forward's included
  int64_t look_back = std::min(context.config.engram_max_ngram_size - 1, span.position);
  context.cover(Path::kEngramHistory, std::min(look_back, span.count));
  if (fault("engram_history_lost")) look_back = 0;
  std::vector<int64_t> compressed;
  for (int64_t position = span.position - look_back; position < span.end_position(); ++position) {
    const int64_t token = tokens[position];
    compressed.push_back(token == context.config.image_token_id ? -1 : meta.token_map[token]);
  }
  const at::Tensor ids = at::tensor(compressed, at::kLong).to(context.device());
  return ops::engram_hash(ids, span.count, weights.multipliers, weights.primes, weights.offsets,
                          meta.pad_compressed);
}

}  // namespace

at::Tensor engram(const ForwardContext& context, const LayerPlan& plan,
                  const EngramWeights& weights, const EngramMeta& meta, const at::Tensor& streams) {
  std::vector<at::Tensor> spans;
  for (const BatchSpan& span : context.spans)
    spans.push_back(hash_span(context, span, weights, meta));
  const at::Tensor rows = spans.size() == 1 ? spans[0] : at::cat(spans, 0);
  context.observe("engram_rows", plan.layer, rows);
  const at::Tensor values =
      ops::engram_fetch(weights.codes, weights.scales, rows, streams.scalar_type());
  const at::Tensor key_value = project(values, weights.wkv, context.numerics);
  auto [out, gate] = ops::engram_gate(streams, key_value, weights.q_weight, weights.k_weight,
                                      context.text, context.config.rms_norm_eps);
  context.observe("engram_gate", plan.layer, gate);
  context.observe("post_engram", plan.layer, out);
  return out;
}

}  // namespace deepinfer
