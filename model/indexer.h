// The indexer of an index source: which compressed entries each query attends (model-verified.md
// 8).
#pragma once

#include <ATen/ATen.h>

#include "model/forward_context.h"
#include "model/layer_plan.h"
#include "model/weights.h"

namespace deepinfer {

// Publishes the top-k of this layer in context.topk, and the candidate blocks if it is their
// source. x: the normed attention input [rows, hidden]; q_latent: the normed query latent [rows,
// q_lora_rank].
void select_entries(ForwardContext& context, const LayerPlan& plan, const IndexerWeights& weights,
                    const at::Tensor& x, const at::Tensor& q_latent);

}  // namespace deepinfer
