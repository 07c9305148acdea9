// The mixture of experts: gate, routed experts grouped by expert, shared expert (model-verified.md
// 9).
#pragma once

#include <ATen/ATen.h>

#include "model/forward_context.h"
#include "model/layer_plan.h"
#include "model/weights.h"

namespace deepinfer {

// x: normed input [rows, hidden] -> [rows, hidden].
at::Tensor mixture_of_experts(ForwardContext& context, const LayerPlan& plan,
                              const MoeWeights& weights, const at::Tensor& x);

}  // namespace deepinfer
