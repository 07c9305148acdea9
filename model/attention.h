// Compressed sparse attention: window rows of this layer, compressed rows of its KV source
// (model-verified.md 7).
#pragma once

#include <ATen/ATen.h>

#include "model/forward_context.h"
#include "model/layer_plan.h"
#include "model/weights.h"

namespace deepinfer {

// x: normed input [rows, hidden] -> [rows, hidden]. Appends to the sequences' caches of this layer.
at::Tensor attention(ForwardContext& context, const LayerPlan& plan,
                     const AttentionWeights& weights, const at::Tensor& x);

}  // namespace deepinfer
