// Engram: adds a gated value, looked up by n-gram hash, to the streams before a layer
// (model-verified.md 10).
#pragma once

#include <ATen/ATen.h>

#include "model/engram_meta.h"
#include "model/forward_context.h"
#include "model/layer_plan.h"
#include "model/weights.h"

namespace deepinfer {

// streams [rows, hc_mult, hidden] -> the same. Hashes reach into the tokens of earlier forwards.
at::Tensor engram(const ForwardContext& context, const LayerPlan& plan,
                  const EngramWeights& weights, const EngramMeta& meta, const at::Tensor& streams);

}  // namespace deepinfer
