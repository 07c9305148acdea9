// The compressor of a KV source: closes groups of tokens into cache rows and index keys
// (model-verified.md 8).
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "model/forward_context.h"
#include "model/layer_plan.h"
#include "model/weights.h"

namespace deepinfer {

// What the batch's rows of one sequence close, and what they leave open.
struct ClosedGroups {
  at::Tensor rows;                   // [entries, head_dim]
  at::Tensor index_keys;             // [entries, index_head_dim]
  at::Tensor open_value, open_gate;  // as in CompressedCache
  int64_t entries = 0;
};

// Closes the groups of each span; changes no cache. x: the normed attention input [rows, hidden].
std::vector<ClosedGroups> close_groups(const ForwardContext& context, const LayerPlan& plan,
                                       const CompressorWeights& weights, const at::Tensor& x);

// Appends the rank's own of them to the sequences' caches of this layer.
void append_entries(ForwardContext& context, const LayerPlan& plan,
                    const std::vector<ClosedGroups>& closed);

// Entries that the query at each position sees: floor((p + 1) / ratio), int64 of positions' shape.
at::Tensor visible_entries(const at::Tensor& positions, int64_t ratio);

}  // namespace deepinfer
