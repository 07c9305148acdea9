// The indexer of an index source: which compressed entries each query attends (model-verified.md
// 8).
#pragma once

#include <ATen/ATen.h>

#include "model/forward_context.h"
#include "model/layer_plan.h"
#include "model/weights.h"

namespace deepinfer {

// What the indexer asks with.
struct IndexQuery {
  at::Tensor q;             // [rows, index_n_heads, index_head_dim]
  at::Tensor head_weights;  // [rows, index_n_heads]
};

// x: the normed attention input [rows, hidden]; q_latent: the normed query latent [rows,
// q_lora_rank].
IndexQuery index_query(const ForwardContext& context, const LayerPlan& plan,
                       const IndexerWeights& weights, const at::Tensor& x,
                       const at::Tensor& q_latent);

// Selects over the entries of all context-parallel ranks; publishes the layer's selection in
// context.selected, and the candidate blocks if it is their source.
void select_entries(ForwardContext& context, const LayerPlan& plan, const IndexQuery& query);

}  // namespace deepinfer
