// Reference quantisers: round to the format's grid with exact powers of two, in ATen.
#include <cmath>

#include "platform/fault.h"
#include "platform/formats.h"
#include "platform/reference/reference.h"

namespace deepinfer::reference {

using at::Tensor;

namespace {

// fp32 2^e for an int32 tensor of exponents in the normal range, assembled from bits.
Tensor power_of_two(const Tensor& exponents) {
  return (exponents.to(at::kInt) + 127).bitwise_left_shift(23).view(at::kFloat);
}

// floor(log2 |x|), not below `lowest`, which is also zero's.
Tensor binade(const Tensor& magnitude, int64_t lowest) {
  const Tensor exponent = (std::get<1>(at::frexp(magnitude)) - 1).clamp_min(lowest);
  return exponent.masked_fill(magnitude.eq(0), lowest);  // frexp gives zero the exponent of 0.5
}

// Nearest multiple of the format's step in each value's binade, ties to even, magnitudes above
// `largest` become `largest`, the sign of zero is kept.
Tensor round_to_grid(const Tensor& x, int64_t mantissa_bits, int64_t lowest_exponent,
                     double largest) {
  const Tensor magnitude = x.abs();
  const Tensor step = power_of_two(binade(magnitude, lowest_exponent) - mantissa_bits);
  const Tensor steps = magnitude / step;
  const Tensor rounded = (fault("quantiser_truncates") ? steps.floor() : steps.round()) * step;
  return at::copysign(rounded.clamp_max(largest), x);
}

constexpr int64_t kE4m3LowestExponent = -6;
constexpr int64_t kE4m3MantissaBits = 3;

Tensor round_e4m3(const Tensor& x, double largest) {
  return round_to_grid(x, kE4m3MantissaBits, kE4m3LowestExponent, largest);
}
Tensor round_e2m1(const Tensor& x) { return round_to_grid(x, 1, 0, 6); }

// Bits of the smallest power of two >= x (normal x > 0): exponent, plus one if any mantissa bit is
// set.
Tensor power_of_two_exponent_field(const Tensor& x) {
  const Tensor bits = x.contiguous().view(at::kInt);
  return bits.bitwise_right_shift(23) + bits.bitwise_and(0x7FFFFF).ne(0).to(at::kInt);
}

Tensor blocks_of(const Tensor& x, int64_t block) {
  TORCH_CHECK(x.dim() >= 1 && x.size(-1) % block == 0,
              "quantise: the last axis must be a multiple of ", block, ", found ", x.sizes());
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() /= block;
  shape.push_back(block);
  return x.to(at::kFloat).contiguous().view(shape);  // quantisers are defined on fp32
}

// max |x| of each block with a floor: [..., blocks, 1].
Tensor block_amax(const Tensor& blocks, double floor) {
  return blocks.abs().amax({-1}, /*keepdim=*/true).clamp_min(floor);
}

// ue8m0 exponent field of QA: P2(max(amax, 1e-4) * f32(1/fp8_max)).
Tensor aq32_exponent_field(const Tensor& blocks, double fp8_max) {
  const double reciprocal = static_cast<double>(static_cast<float>(1.0 / fp8_max));
  const Tensor target = block_amax(blocks, 1e-4) * reciprocal;
  if (fault("quantiser_scale_one_octave_up")) return power_of_two_exponent_field(target) + 1;
  return power_of_two_exponent_field(target);
}

Tensor field_value(const Tensor& exponent_field) {
  return exponent_field.bitwise_left_shift(23).view(at::kFloat);
}

// Bytes of e4m3 values that lie on the grid.
Tensor e4m3_bytes(const Tensor& values) {
  const Tensor magnitude = values.abs();
  const Tensor exponent = binade(magnitude, kE4m3LowestExponent);
  const Tensor steps = (magnitude / power_of_two(exponent - kE4m3MantissaBits)).to(at::kInt);
  // A normal value has 8..15 steps, the leading one being the exponent field's own; a subnormal has
  // fewer.
  const Tensor code = (exponent - kE4m3LowestExponent) * 8 + steps;
  return (code + at::signbit(values).to(at::kInt) * 128).to(at::kByte);
}

}  // namespace

ops::TensorPair quantize_aq32(const Tensor& x, double fp8_max) {
  const Tensor blocks = blocks_of(x, kScaleBlock);
  const Tensor field = aq32_exponent_field(blocks, fp8_max);
  const Tensor codes = e4m3_bytes(round_e4m3(blocks / field_value(field), fp8_max)).view(x.sizes());
  return {codes, field.squeeze(-1).to(at::kByte)};
}

Tensor dequantize_aq32(const Tensor& codes, const Tensor& scales) {
  TORCH_CHECK(codes.scalar_type() == at::kByte && scales.scalar_type() == at::kByte &&
                  codes.dim() == scales.dim() && codes.size(-1) == scales.size(-1) * kScaleBlock,
              "dequantize_aq32: codes [..., K] and scales [..., K/32] must be uint8, found ",
              codes.sizes(), " and ", scales.sizes());
  const Tensor by_element =
      look_up(e8m0_table(codes.device()), scales).repeat_interleave(kScaleBlock, -1);
  return look_up(e4m3_table(codes.device()), codes) * by_element;
}

Tensor fake_quantize_aq32(const Tensor& x, double fp8_max) {
  const Tensor blocks = blocks_of(x, kScaleBlock);
  const Tensor scale = field_value(aq32_exponent_field(blocks, fp8_max));
  return (round_e4m3(blocks / scale, fp8_max) * scale).view(x.sizes()).to(x.scalar_type());
}

Tensor fake_quantize_fq4_32(const Tensor& x) {
  const Tensor blocks = blocks_of(x, kScaleBlock);
  const double reciprocal = static_cast<double>(1.0f / 6.0f);
  const Tensor scale = field_value(
      power_of_two_exponent_field(block_amax(blocks, 6 * std::ldexp(1.0, -126)) * reciprocal));
  return (round_e2m1(blocks / scale) * scale).view(x.sizes()).to(x.scalar_type());
}

Tensor fake_quantize_fq4_16(const Tensor& x, double fp8_max) {
  const Tensor blocks = blocks_of(x, kFp4ScaleBlock16);
  // The floor keeps an all-zero block's scale at 2^-9, the smallest e4m3 value, instead of 0.
  const Tensor scale = round_e4m3(block_amax(blocks, 6 * std::ldexp(1.0, -9)) / 6, fp8_max);
  return (round_e2m1(blocks / scale) * scale).view(x.sizes()).to(x.scalar_type());
}

}  // namespace deepinfer::reference
