// Runs the block quantisers on a target.
#include "sim/kernels/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/kernels/quantize.cpp"
#include <hwy/foreach_target.h>

#include "sim/kernels/quantize-inl.h"

#if HWY_ONCE
#include "platform/errors.h"
#include "platform/formats.h"
#include "sim/kernels/float_scope.h"
#include "sim/kernels/quantize.h"

namespace deepinfer {
namespace {

const QuantizeKernels& quantize_kernels(Target target) {
  DEEPINFER_SIM_SELECT_TARGET(target, kQuantizeKernels);
  return scalar_quantize_kernels();
}

void check_block(const char* name, int64_t columns, int64_t block) {
  DEEPINFER_ASSERT(columns % block == 0, name << ": " << columns << " columns, block " << block);
}

float checked_fp8_max(double fp8_max) {
  const float limit = static_cast<float>(fp8_max);
  // Scales of larger reciprocals could leave ue8m0.
  DEEPINFER_ASSERT(limit >= 16 && limit <= 448 &&
                       decode(NumericFormat::kE4M3FN,
                              encode(NumericFormat::kE4M3FN, limit, Overflow::kSaturate)) == limit,
                   "fp8_max " << fp8_max);
  return limit;
}

void check_same(const char* name, const RowView& x, const MutableRowView& y) {
  DEEPINFER_ASSERT(x.type == y.type && x.rows == y.rows && x.columns == y.columns,
                   name << ": x [" << x.rows << ", " << x.columns << "], y [" << y.rows << ", "
                        << y.columns << "], or two types");
}

}  // namespace

int64_t quantize_aq32(const RowView& x, double fp8_max, uint8_t* codes, int64_t code_stride,
                      uint8_t* scales, int64_t scale_stride, Target target) {
  check_block("quantize_aq32", x.columns, kScaleBlock);
  const float limit = checked_fp8_max(fp8_max);
  const QuantizeKernels& kernels = quantize_kernels(target);
  const FloatScope scope;
  return kernels.aq32(x, limit, codes, code_stride, scales, scale_stride);
}

void dequantize_aq32(const uint8_t* codes, int64_t code_stride, const uint8_t* scales,
                     int64_t scale_stride, const MutableRowView& y, Target target) {
  check_block("dequantize_aq32", y.columns, kScaleBlock);
  const QuantizeKernels& kernels = quantize_kernels(target);
  const FloatScope scope;
  kernels.dequantize_aq32(codes, code_stride, scales, scale_stride, y);
}

int64_t fake_quantize_aq32(const RowView& x, double fp8_max, const MutableRowView& y,
                           Target target) {
  check_block("fake_quantize_aq32", x.columns, kScaleBlock);
  check_same("fake_quantize_aq32", x, y);
  const float limit = checked_fp8_max(fp8_max);
  const QuantizeKernels& kernels = quantize_kernels(target);
  const FloatScope scope;
  return kernels.fake_aq32(x, limit, y);
}

int64_t fake_quantize_fq4_32(const RowView& x, const MutableRowView& y, Target target) {
  check_block("fake_quantize_fq4_32", x.columns, kScaleBlock);
  check_same("fake_quantize_fq4_32", x, y);
  const QuantizeKernels& kernels = quantize_kernels(target);
  const FloatScope scope;
  return kernels.fake_fq4_32(x, y);
}

int64_t fake_quantize_fq4_16(const RowView& x, double fp8_max, const MutableRowView& y,
                             Target target) {
  check_block("fake_quantize_fq4_16", x.columns, kFp4ScaleBlock16);
  check_same("fake_quantize_fq4_16", x, y);
  const float limit = checked_fp8_max(fp8_max);
  const QuantizeKernels& kernels = quantize_kernels(target);
  const FloatScope scope;
  return kernels.fake_fq4_16(x, limit, y);
}

}  // namespace deepinfer
#endif  // HWY_ONCE
