// The scalar twin of the GEMM kernels: C2.1 and C2.2 in plain C++.
#include <algorithm>
#include <cstdint>

#include "sim/kernels/gemm_internal.h"
#include "sim/kernels/software_float.h"

namespace deepinfer::gemm_internal {
namespace {

using software_float::canonical_add;
using software_float::canonical_fma;

float dot_bf16(const GemmProblem& p, const uint16_t* a_row, const uint16_t* w_row) {
  float acc = 0;
  for (int64_t k0 = 0; k0 < p.k; k0 += kBlock) {
    float even = 0, odd = 0;
    for (int64_t k = k0; k < k0 + kBlock; k += 2) {
      even = canonical_fma(bf16_to_fp32(a_row[k]), bf16_to_fp32(w_row[k]), even);
      odd = canonical_fma(bf16_to_fp32(a_row[k + 1]), bf16_to_fp32(w_row[k + 1]), odd);
    }
    acc = canonical_add(acc, canonical_add(even, odd));
  }
  return acc;
}

float dot_fp32(const GemmProblem& p, const float* a_row, const float* w_row) {
  constexpr int64_t kLanes = 16;
  float lanes[kLanes] = {};
  for (int64_t k = 0; k < p.k; ++k) {
    lanes[k % kLanes] = canonical_fma(a_row[k], w_row[k], lanes[k % kLanes]);
  }
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; ++j) lanes[j] = canonical_add(lanes[j], lanes[j + half]);
  }
  return lanes[0];
}

// Decodes A whole and W row by row, the padding of C2.1 being +0.
template <typename T, typename Decode, typename Dot>
void multiply(const GemmProblem& p, Decode decode, Dot dot) {
  const int64_t width = std::max<int64_t>(round_up(p.k, kBlock), 1);
  GemmScratch& scratch = gemm_scratch();
  T* a = scratch.scalar_activations.get<T>(p.m * width);
  T* w_row = scratch.scalar_weights.get<T>(width);
  std::fill(a, a + p.m * width, T{0});
  std::fill(w_row, w_row + width, T{0});
  for (int64_t row = 0; row < p.m; ++row) {
    for (int64_t k = 0; k < p.k; ++k) a[row * width + k] = decode(p.a.type, row_of(p.a, row), k);
  }
  for (int64_t column = 0; column < p.n; ++column) {
    for (int64_t k = 0; k < p.k; ++k) w_row[k] = decode(p.w.type, row_of(p.w, column), k);
    for (int64_t row = 0; row < p.m; ++row) {
      store_element(p.c, row, column, dot(p, a + row * width, w_row));
    }
  }
}

void gemm_bf16(const GemmProblem& p) { multiply<uint16_t>(p, element_bf16, dot_bf16); }
void gemm_fp32(const GemmProblem& p) { multiply<float>(p, element_fp32, dot_fp32); }

}  // namespace

const GemmKernels& scalar_gemm_kernels() {
  static constexpr GemmKernels kernels = {gemm_bf16, gemm_fp32};
  return kernels;
}

GemmScratch& gemm_scratch() {
  thread_local GemmScratch scratch;
  return scratch;
}

}  // namespace deepinfer::gemm_internal
