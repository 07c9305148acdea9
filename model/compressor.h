// The compressor of a KV source: closes groups of tokens into cache rows and index keys
// (model-verified.md 8).
#pragma once

#include <ATen/ATen.h>

#include "model/forward_context.h"
#include "model/layer_plan.h"
#include "model/weights.h"

namespace deepinfer {

// Appends the entries that the batch's rows close to each sequence's cache of this layer; keeps an
// open group's raw values and gates. x: the normed attention input [rows, hidden].
void compress(ForwardContext& context, const LayerPlan& plan, const CompressorWeights& weights,
              const at::Tensor& x);

// Entries that the query at each of the span's positions sees: floor((p + 1) / ratio), int64
// [count].
at::Tensor visible_entries(const BatchSpan& span, int64_t ratio, at::Device device);

}  // namespace deepinfer
