// Host GEMM ops: tensors as operands of the canonical products.
#include "platform/formats.h"
#include "platform/partials.h"
#include "sim/ops/host_kernels.h"
#include "sim/ops/tensor_views.h"

namespace deepinfer::host {

using at::Tensor;

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void check_bytes(const char* op, const char* what, const Tensor& x, int64_t rows, int64_t columns) {
  TORCH_CHECK(
      x.dim() == 2 && x.scalar_type() == at::kByte && x.size(0) == rows && x.size(1) == columns, op,
      ": ", what, " must be uint8 [", rows, ", ", columns, "], found ", x.scalar_type(), " ",
      x.sizes());
  TORCH_CHECK(x.is_contiguous(), op, ": ", what, " must be contiguous");
}

// fp4 codes have K/2 columns. (Without columns the two are the same: fp8.)
WeightForm form_of(const Tensor& weight, const Tensor& scales, int64_t k) {
  if (!scales.defined()) return WeightForm::kPlain;
  return weight.size(-1) == k ? WeightForm::kFp8 : WeightForm::kFp4;
}

// A weight [N, K] with the scales that belong to its form; `scales` undefined for a plain one.
GemmOperand weight_operand(const char* op, const Tensor& weight, const Tensor& scales, int64_t k,
                           WeightForm form) {
  TORCH_CHECK(weight.dim() == 2, op, ": a weight must have 2 dimensions, found ", weight.sizes());
  const int64_t n = weight.size(0);
  if (form == WeightForm::kPlain) {
    TORCH_CHECK(weight.size(1) == k, op, ": weight must be [N, ", k, "], found ", weight.sizes());
    return matrix_operand(weight, "weight");
  }
  const auto* codes = weight.data_ptr<uint8_t>();
  const auto* scale_bytes = scales.data_ptr<uint8_t>();
  const int64_t blocks = ceil_div(k, kScaleBlock);
  if (form == WeightForm::kFp8) {
    check_bytes(op, "codes", weight, n, k);
    check_bytes(op, "scales", scales, ceil_div(n, kScaleBlock), blocks);
    return fp8_tiles_operand(codes, k, scale_bytes, blocks);
  }
  TORCH_CHECK(k % 2 == 0, op, ": two codes a byte need an even K, found ", k);
  check_bytes(op, "codes", weight, n, k / 2);
  check_bytes(op, "scales", scales, n, blocks);
  return fp4_operand(codes, k / 2, scale_bytes, blocks);
}

Tensor multiply(const char* op, const Tensor& x, const Tensor& weight, const Tensor& scales,
                WeightForm form, at::ScalarType out_dtype) {
  TORCH_CHECK(x.dim() == 2, op, ": x must be [T, K], found ", x.sizes());
  const Tensor input = x.contiguous();
  const int64_t rows = x.size(0), k = x.size(1), n = weight.size(0);
  const Tensor out = at::empty({rows, n}, x.options().dtype(out_dtype));
  gemm(rows, n, k, matrix_operand(input, "x"), weight_operand(op, weight, scales, k, form),
       matrix_output(out, n), gemm_options());
  return out;
}

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, at::ScalarType out_dtype) {
  return multiply("linear", x, weight.contiguous(), {}, WeightForm::kPlain, out_dtype);
}

Tensor fp8_linear(const Tensor& x, const Tensor& codes, const Tensor& scales,
                  at::ScalarType out_dtype) {
  check_bytes("fp8_linear", "codes", codes, codes.size(0), x.size(-1));
  return multiply("fp8_linear", x, codes, scales, WeightForm::kFp8, out_dtype);
}

Tensor fp4_linear(const Tensor& x, const Tensor& codes, const Tensor& scales,
                  at::ScalarType out_dtype) {
  check_bytes("fp4_linear", "codes", codes, codes.size(0), x.size(-1) / 2);
  return multiply("fp4_linear", x, codes, scales, WeightForm::kFp4, out_dtype);
}

Tensor grouped_linear(const Tensor& x, const Tensor& offsets, at::TensorList weights,
                      at::TensorList scales, at::ScalarType out_dtype) {
  const int64_t groups = static_cast<int64_t>(weights.size());
  TORCH_CHECK(x.dim() == 2 && groups > 0 && (scales.empty() || scales.size() == weights.size()),
              "grouped_linear: x [T, K], weights, and no scales or one for each expected; found ",
              x.sizes(), ", ", weights.size(), " and ", scales.size());
  TORCH_CHECK(offsets.scalar_type() == at::kLong && offsets.numel() == groups + 1 &&
                  offsets.is_contiguous(),
              "grouped_linear: offsets must be int64 [", groups + 1, "]");
  const std::span<int64_t> bounds = span_of<int64_t>(offsets);
  TORCH_CHECK(bounds.front() == 0 && bounds.back() == x.size(0) &&
                  std::is_sorted(bounds.begin(), bounds.end()),
              "grouped_linear: offsets must ascend from 0 to ", x.size(0));
  const Tensor input = x.contiguous();
  const int64_t k = x.size(1), n = weights[0].size(0);
  std::vector<GemmOperand> operands;
  for (int64_t group = 0; group < groups; ++group) {
    TORCH_CHECK(weights[group].size(0) == n, "grouped_linear: weight ", group, " must have ", n,
                " rows");
    const Tensor group_scales = scales.empty() ? Tensor() : scales[group];
    operands.push_back(weight_operand("grouped_linear", weights[group], group_scales, k,
                                      form_of(weights[group], group_scales, k)));
  }
  const Tensor out = at::empty({x.size(0), n}, x.options().dtype(out_dtype));
  gemm_grouped(bounds, n, k, matrix_operand(input, "x"), operands, matrix_output(out, n),
               gemm_options());
  return out;
}

Tensor linear_partials(const Tensor& x, const Tensor& weight, const ops::OptionalTensor& scales,
                       int64_t first_column, int64_t first_position, at::IntArrayRef bounds) {
  const LinearPartials parts =
      check_linear_partials(x, weight, scales, first_column, first_position, bounds);
  const Tensor input = x.contiguous(), w = weight.contiguous();
  const Tensor s = scales.has_value() ? scales->contiguous() : Tensor();
  const int64_t rows = x.size(0), n = weight.size(0);
  const Tensor out = at::empty({parts.count(), rows, n}, x.options().dtype(at::kFloat));
  const GemmOperand operand =
      weight_operand("linear_partials", w, s, parts.weight_columns, parts.form);
  gemm_subtree_partials(rows, n, first_position, bounds, matrix_operand(input, "x"),
                        operand.from_column(first_column), out.data_ptr<float>(), gemm_options());
  return out;
}

}  // namespace deepinfer::host
