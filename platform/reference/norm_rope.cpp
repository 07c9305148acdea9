// Reference RMSNorm and rotary position embedding.
#include "platform/fault.h"
#include "platform/reference/reference.h"

namespace deepinfer::reference {

using at::Tensor;

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  TORCH_CHECK(x.size(-1) == weight.numel(), "rms_norm: weight must be [", x.size(-1), "], found ",
              weight.sizes());
  if (fault("norm_eps_1e-6")) eps = 1e-6;
  const Tensor wide = widen(x);
  const Tensor inverse_rms = (wide.square().mean(-1, /*keepdim=*/true) + eps).rsqrt();
  // The weight is applied before the only rounding (model-verified.md 4).
  return (widen(weight) * (wide * inverse_rms)).to(x.scalar_type());
}

ops::TensorPair rope_table(const Tensor& positions, const Tensor& frequencies) {
  TORCH_CHECK(
      positions.dim() == 1 && frequencies.dim() == 1 && frequencies.scalar_type() == at::kFloat,
      "rope_table: positions [T] and fp32 frequencies [R/2] expected, found ", positions.sizes(),
      " and ", frequencies.sizes());
  // The angle is the fp32 product, which is part of the model (model.md 3.0); its cosine and sine
  // are then taken in fp64 and rounded, so that no library's fp32 range reduction shows.
  const Tensor angles = widen(positions.to(at::kFloat).unsqueeze(1) * frequencies.unsqueeze(0));
  return {angles.cos().to(at::kFloat), angles.sin().to(at::kFloat)};
}

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, bool inverse) {
  const int64_t rotated = cos.size(-1) * 2;
  TORCH_CHECK(x.dim() >= 2 && cos.dim() == 2 && cos.sizes() == sin.sizes() &&
                  cos.size(0) == x.size(0) && rotated <= x.size(-1),
              "rope: x [T, ..., C] and cos, sin [T, R/2] with R <= C expected, found ", x.sizes(),
              ", ", cos.sizes(), ", ", sin.sizes());
  const int64_t kept = fault("rope_on_first_channels") ? 0 : x.size(-1) - rotated;
  const Tensor wide = widen(x);
  const Tensor rotating = wide.slice(-1, kept, kept + rotated);
  const bool halves = fault("rope_pairs_halves");
  const Tensor even =
      halves ? rotating.slice(-1, 0, rotated / 2) : rotating.slice(-1, 0, rotated, 2);
  const Tensor odd = halves ? rotating.slice(-1, rotated / 2) : rotating.slice(-1, 1, rotated, 2);
  // [T, 1, ..., 1, R/2]: one angle a row, the same for every head.
  std::vector<int64_t> shape(x.dim(), 1);
  shape.front() = x.size(0);
  shape.back() = rotated / 2;
  const Tensor c = cos.view(shape);
  const Tensor s = inverse ? sin.view(shape).neg() : sin.view(shape);
  const Tensor new_even = even * c - odd * s;
  const Tensor new_odd = even * s + odd * c;
  const Tensor turned =
      halves ? at::cat({new_even, new_odd}, -1) : at::stack({new_even, new_odd}, -1).flatten(-2);
  return at::cat({wide.slice(-1, 0, kept), turned, wide.slice(-1, kept + rotated)}, -1)
      .to(x.scalar_type());
}

}  // namespace deepinfer::reference
