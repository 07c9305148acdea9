// Attention over the keys of all context-parallel ranks (architecture.md, "Attention").
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "model/forward_context.h"
#include "model/layer_plan.h"

namespace deepinfer {

// The rank's own keys that the rows of a span may attend.
struct SpanKeys {
  at::Tensor window;            // [keys, head_dim], at WindowPlaces::positions
  at::Tensor kept;              // of those, what the next forward needs
  at::Tensor compressed;        // [rows, head_dim]
  at::Tensor compressed_entry;  // int64 [rows]
  at::Tensor selected;          // int32 [count, index_topk], rows of compressed
};

// Rows of the batch that have a key on each cp place, and how their partials are listed for
// ops::attention_merge: place by place, subtree by subtree.
struct KeyedRows {
  std::vector<std::vector<int64_t>> of_place;  // ascending
  at::Tensor listed;                           // int64 [partials]
  std::vector<int64_t> row_counts;             // of each subtree
};
// The same on every rank.
KeyedRows keyed_rows(const ForwardContext& context, const LayerPlan& plan);

// q [rows, heads, head_dim], the heads of the rank's tp place -> the same; sink fp32 [heads]. Each
// rank attends its own keys with all heads, for the rows that have any there, hands every rank the
// partials of some heads, merges what it gets of its own heads, adds the sink once, and gathers the
// heads again.
at::Tensor attend_over_ranks(const ForwardContext& context, const KeyedRows& keyed,
                             const std::vector<SpanKeys>& keys, const at::Tensor& q,
                             const at::Tensor& sink, double scale);

}  // namespace deepinfer
