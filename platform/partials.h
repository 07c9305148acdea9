// The arguments of the ops that return a rank's partial sums, or merge those of all, checked alike
// by every implementation.
#pragma once

#include <cstdint>
#include <vector>

#include "platform/ops.h"
#include "platform/shard_map.h"

namespace deepinfer {

enum class WeightForm {
  kPlain,
  kFp8,  // scales by 32x32 tile
  kFp4,  // two codes a byte, scales by row and 32 columns
};

// What a call of ops::linear_partials asks for.
struct LinearPartials {
  WeightForm form = WeightForm::kPlain;
  int64_t weight_columns = 0;     // of the whole weight
  std::vector<Subtree> subtrees;  // one for each partial

  int64_t count() const { return static_cast<int64_t>(subtrees.size()); }
};

// Throw c10::Error, which names the op, for arguments that platform/ops.h does not allow. Of
// tensors only shapes and dtypes are looked at, and the values of offsets and rows.
LinearPartials check_linear_partials(const at::Tensor& x, const at::Tensor& weight,
                                     const ops::OptionalTensor& scales, int64_t first_column,
                                     int64_t first_position, at::IntArrayRef bounds);
// Returns the subtrees, one for each partial.
std::vector<Subtree> check_moe_partials(const at::Tensor& outputs, const at::Tensor& rows,
                                        const at::Tensor& offsets, int64_t tokens,
                                        int64_t first_expert, int64_t experts,
                                        int64_t first_position, int64_t positions);
// Returns the subtrees, as many as there are counts.
std::vector<Subtree> check_attention_merge(const at::Tensor& maximum, const at::Tensor& sum,
                                           const at::Tensor& out, const at::Tensor& rows,
                                           int64_t tokens, at::IntArrayRef begins,
                                           at::IntArrayRef counts, at::IntArrayRef row_counts,
                                           const ops::OptionalTensor& sink);

}  // namespace deepinfer
