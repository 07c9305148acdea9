// Sums expert outputs by token, leaf by leaf (CANONICAL.md C8.4).
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "platform/shard_map.h"
#include "sim/kernels/row_view.h"

namespace deepinfer {

// What experts that follow each other gave. outputs [P, D]: rows offsets[e] .. offsets[e + 1] - 1
// come from expert first_expert + e and belong to the tokens `rows`; offsets ascend from 0 to P.
struct ExpertOutputs {
  RowView outputs;
  const int64_t* rows = nullptr;
  std::span<const int64_t> offsets;  // [experts here + 1]
  int64_t tokens = 0;                // T
  int64_t first_expert = 0;
  int64_t experts = 0;  // in all, which the leaves divide among themselves
};

// Shapes, and that the experts here are on the positions, are asserted. Only additions and one
// rounding: one plain implementation gives the bits of every target.

// C8.4. shared [T, D] of outputs' type, out [T, D] too. All experts are here.
void moe_combine(const ExpertOutputs& from, const std::optional<RowView>& shared,
                 const MutableRowView& out);

// The routed part of it that tree positions `positions` hold: partials [S, T, D], contiguous, what
// each of the S maximal subtrees sums to; -0 where no expert of a subtree has the token.
void moe_partials(const ExpertOutputs& from, IndexRange positions, float* partials);

}  // namespace deepinfer
