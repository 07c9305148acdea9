// Compressed sparse attention: window rows of this layer, compressed rows of its KV source
// (model-verified.md 7).
#pragma once

#include <ATen/ATen.h>

#include "model/forward_context.h"
#include "model/layer_plan.h"
#include "model/weights.h"

namespace deepinfer {

// x: normed input [rows, hidden] -> [rows, hidden], the same on every rank. `weights` are the
// rank's (shard_text_weights). Appends to the sequences' caches of this layer.
at::Tensor attention(ForwardContext& context, const LayerPlan& plan,
                     const AttentionWeights& weights, const at::Tensor& x);

// Keys of the window of a span, and where its queries find them.
WindowPlaces window_places(const BatchSpan& span, const ModelConfig& config, const TileShard& tiles,
                           at::Device device);
// The cp places that hold a key of each query's window, whatever it is (or a few more).
std::vector<PlaceSet> window_holders(const BatchSpan& span, const ModelConfig& config,
                                     const Mesh& mesh);

}  // namespace deepinfer
