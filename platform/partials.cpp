#include "platform/partials.h"

#include <algorithm>

#include "platform/formats.h"

namespace deepinfer {

using at::Tensor;

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

std::vector<Subtree> subtrees_at(const char* op, int64_t first, int64_t count) {
  TORCH_CHECK(
      first >= 0 && count >= 0 && count <= kCanonicalLeaves && first <= kCanonicalLeaves - count,
      op, ": tree positions must lie in 0 .. ", kCanonicalLeaves - 1, ", found ", count, " from ",
      first, " on");
  return maximal_subtrees({first, first + count});
}

bool has_shape(const Tensor& x, int64_t rows, int64_t columns) {
  return x.size(0) == rows && x.size(1) == columns;
}

}  // namespace

LinearPartials check_linear_partials(const Tensor& x, const Tensor& weight,
                                     const ops::OptionalTensor& scales, int64_t first_column,
                                     int64_t first_position, at::IntArrayRef bounds) {
  const char* const op = "linear_partials";
  TORCH_CHECK(x.dim() == 2 && weight.dim() == 2, op,
              ": x [T, K] and a weight of 2 dimensions expected, found ", x.sizes(), " and ",
              weight.sizes());
  const int64_t k = x.size(1), rows = weight.size(0);
  TORCH_CHECK(!bounds.empty() && bounds.front() == 0 && bounds.back() == k &&
                  std::is_sorted(bounds.begin(), bounds.end()),
              op, ": bounds must ascend from 0 to ", k, ", found ", bounds);
  for (const int64_t bound : bounds) {
    TORCH_CHECK(bound % kScaleBlock == 0 || bound == k, op, ": a position starts at column ", bound,
                " of x, which is no multiple of ", kScaleBlock);
  }
  TORCH_CHECK(first_column >= 0 && first_column % kScaleBlock == 0, op,
              ": first_column must be a multiple of ", kScaleBlock, ", found ", first_column);
  LinearPartials parts;
  parts.subtrees = subtrees_at(op, first_position, static_cast<int64_t>(bounds.size()) - 1);
  parts.weight_columns = weight.size(1);
  if (scales.has_value()) {
    TORCH_CHECK(weight.scalar_type() == at::kByte && scales->scalar_type() == at::kByte &&
                    scales->dim() == 2,
                op, ": codes and scales must be uint8 of 2 dimensions, found ",
                weight.scalar_type(), " ", weight.sizes(), " and ", scales->scalar_type(), " ",
                scales->sizes());
    // Told apart by the shape of the scales. One row of at most 16 bytes may be either; it is fp8
    // if that has enough columns.
    const int64_t bytes = weight.size(1);
    const bool tiles =
        has_shape(*scales, ceil_div(rows, kScaleBlock), ceil_div(bytes, kScaleBlock));
    const bool by_row = has_shape(*scales, rows, ceil_div(2 * bytes, kScaleBlock));
    TORCH_CHECK(tiles || by_row, op, ": scales of codes ", weight.sizes(), " must be [",
                ceil_div(rows, kScaleBlock), ", ", ceil_div(bytes, kScaleBlock), "] (fp8) or [",
                rows, ", ", ceil_div(2 * bytes, kScaleBlock), "] (fp4), found ", scales->sizes());
    parts.form =
        tiles && !(by_row && first_column + k > bytes) ? WeightForm::kFp8 : WeightForm::kFp4;
    if (parts.form == WeightForm::kFp4) parts.weight_columns = 2 * bytes;
  } else {
    TORCH_CHECK(at::isFloatingType(weight.scalar_type()), op, ": codes ", weight.sizes(),
                " without scales");
  }
  TORCH_CHECK(first_column <= parts.weight_columns - k, op, ": columns ", first_column, " .. ",
              first_column + k - 1, " of a weight with ", parts.weight_columns, " columns");
  return parts;
}

std::vector<Subtree> check_moe_partials(const Tensor& outputs, const Tensor& rows,
                                        const Tensor& offsets, int64_t tokens, int64_t first_expert,
                                        int64_t experts, int64_t first_position,
                                        int64_t positions) {
  const char* const op = "moe_partials";
  TORCH_CHECK(outputs.dim() == 2 && rows.dim() == 1 && rows.size(0) == outputs.size(0) &&
                  rows.scalar_type() == at::kLong && offsets.dim() == 1 && offsets.numel() >= 1 &&
                  offsets.scalar_type() == at::kLong && tokens >= 0,
              op, ": outputs [P, D], int64 rows [P], int64 offsets [E+1] expected, found ",
              outputs.sizes(), ", ", rows.sizes(), ", ", offsets.sizes());
  if (!offsets.is_meta()) {
    TORCH_CHECK(offsets.is_cpu() && offsets.is_contiguous(), op,
                ": offsets must be on the host and contiguous");
    const int64_t* bounds = offsets.data_ptr<int64_t>();
    TORCH_CHECK(bounds[0] == 0 && bounds[offsets.numel() - 1] == outputs.size(0) &&
                    std::is_sorted(bounds, bounds + offsets.numel()),
                op, ": offsets must ascend from 0 to ", outputs.size(0));
  }
  const std::vector<Subtree> subtrees = subtrees_at(op, first_position, positions);
  const int64_t count = offsets.numel() - 1;
  TORCH_CHECK(first_expert >= 0 && first_expert <= experts - count, op, ": experts ", first_expert,
              " .. ", first_expert + count - 1, " of ", experts);
  // Positions ascend with experts: the first and the last tell of all.
  for (const int64_t expert : {first_expert, first_expert + count - 1}) {
    if (count == 0) break;
    const int64_t position = expert * kCanonicalLeaves / experts;
    TORCH_CHECK(position >= first_position && position < first_position + positions, op,
                ": expert ", expert, " is on tree position ", position, ", outside ",
                first_position, " .. ", first_position + positions - 1);
  }
  return subtrees;
}

std::vector<Subtree> check_attention_merge(const Tensor& maximum, const Tensor& sum,
                                           const Tensor& out, const Tensor& rows, int64_t tokens,
                                           at::IntArrayRef begins, at::IntArrayRef counts,
                                           at::IntArrayRef row_counts,
                                           const ops::OptionalTensor& sink) {
  const char* const op = "attention_merge";
  TORCH_CHECK(out.dim() == 3 && maximum.sizes() == out.sizes().slice(0, 2) &&
                  sum.sizes() == maximum.sizes() && out.size(2) > 0,
              op, ": maximum and sum [P, H], out [P, H, C] with C > 0 expected, found ",
              maximum.sizes(), ", ", sum.sizes(), ", ", out.sizes());
  TORCH_CHECK(rows.dim() == 1 && rows.size(0) == out.size(0) && rows.scalar_type() == at::kLong, op,
              ": rows must be int64 [", out.size(0), "], found ", rows.scalar_type(), " ",
              rows.sizes());
  TORCH_CHECK(tokens >= 0, op, ": tokens must not be negative, found ", tokens);
  TORCH_CHECK(!sink.has_value() || sink->numel() == out.size(1), op, ": sink must be [",
              out.size(1), "]");
  std::vector<Subtree> subtrees;
  for (size_t i = 0; i < std::min(begins.size(), counts.size()); ++i) {
    subtrees.push_back({begins[i], counts[i]});
  }
  TORCH_CHECK(begins.size() == counts.size() && are_subtrees(subtrees, kCanonicalLeaves), op,
              ": begins and counts of disjoint subtrees in tree order expected, found ", begins,
              " and ", counts);
  TORCH_CHECK(row_counts.size() == counts.size(), op, ": row_counts of ", counts.size(),
              " subtrees expected, found ", row_counts);
  const Tensor named = rows.cpu().contiguous();
  const int64_t* row = named.data_ptr<int64_t>();
  int64_t begin = 0;
  for (const int64_t count : row_counts) {
    TORCH_CHECK(count >= 0 && count <= rows.size(0) - begin, op, ": row_counts must add up to ",
                rows.size(0), ", found ", row_counts);
    for (int64_t i = begin; i < begin + count; ++i) {
      const int64_t least = i == begin ? 0 : row[i - 1] + 1;
      TORCH_CHECK(row[i] >= least && row[i] < tokens, op, ": row ", row[i], " of partial ", i, ", ",
                  least, " to ", tokens - 1, " expected: rows ascend within a subtree");
    }
    begin += count;
  }
  TORCH_CHECK(begin == rows.size(0), op, ": row_counts must add up to ", rows.size(0), ", found ",
              row_counts);
  return subtrees;
}

}  // namespace deepinfer
