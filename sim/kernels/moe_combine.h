// Sums expert outputs by token, leaf by leaf (CANONICAL.md C8.4).
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "sim/kernels/row_view.h"

namespace deepinfer {

// C8.4. outputs [P, D]: rows offsets[e] .. offsets[e + 1] - 1 come from expert e and belong to the
// tokens `rows`; offsets ascend from 0 to P. shared [T, D] of outputs' type joins leaf 0. out [T,
// D]. Shapes are asserted.
struct MoeCombine {
  RowView outputs;
  const int64_t* rows = nullptr;
  std::span<const int64_t> offsets;  // [experts + 1]
  std::optional<RowView> shared;
  int64_t leaves = 64;
  MutableRowView out;
};
// Only additions and one rounding: one plain implementation gives the bits of every target.
void moe_combine(const MoeCombine& args);

}  // namespace deepinfer
