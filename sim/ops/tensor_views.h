// How tensors are seen by kernels: rows of fp32 or bf16, operands of a product, spans.
#pragma once

#include <span>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "sim/kernels/gemm.h"
#include "sim/kernels/row_view.h"

namespace deepinfer::host {

// fp32 or bf16, else an error that names the op and the argument.
inline ElementType element_type(const at::Tensor& x, const char* what) {
  TORCH_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16, what,
              " must be fp32 or bf16, found ", x.scalar_type());
  return x.scalar_type() == at::kFloat ? ElementType::kFp32 : ElementType::kBf16;
}

// `x` contiguous, its leading axes flattened to rows. The tensor must outlive the view.
inline RowView rows_view(const at::Tensor& x, int64_t columns, const char* what) {
  TORCH_CHECK(x.is_contiguous(), what, " must be contiguous");
  return {element_type(x, what), x.data_ptr(), columns == 0 ? 0 : x.numel() / columns, columns,
          columns};
}
inline MutableRowView mutable_rows_view(const at::Tensor& x, int64_t columns, const char* what) {
  const RowView view = rows_view(x, columns, what);
  return {view.type, x.data_ptr(), view.rows, view.columns, view.row_stride};
}

// A plain row-major matrix [rows, K].
inline GemmOperand matrix_operand(const at::Tensor& x, const char* what) {
  const int64_t stride = x.size(-1);
  TORCH_CHECK(x.is_contiguous(), what, " must be contiguous");
  return element_type(x, what) == ElementType::kFp32
             ? fp32_operand(static_cast<const float*>(x.data_ptr()), stride)
             : bf16_operand(static_cast<const uint16_t*>(x.data_ptr()), stride);
}
inline GemmOutput matrix_output(const at::Tensor& x, int64_t stride) {
  return element_type(x, "the result") == ElementType::kFp32
             ? fp32_output(static_cast<float*>(x.data_ptr()), stride)
             : bf16_output(static_cast<uint16_t*>(x.data_ptr()), stride);
}

inline GemmOptions gemm_options() {
  GemmOptions options;
  options.threads = at::get_num_threads();
  return options;
}

// Contiguous data of a certain type.
template <class T>
std::span<T> span_of(const at::Tensor& x) {
  TORCH_INTERNAL_ASSERT(x.is_contiguous());
  return {x.data_ptr<T>(), static_cast<size_t>(x.numel())};
}

}  // namespace deepinfer::host
