// Reference hyper-connections: mix coefficients with Sinkhorn, collapse and expand
// (model-verified.md 6).
#include "platform/fault.h"
#include "platform/reference/reference.h"

namespace deepinfer::reference {

using at::Tensor;

ops::TensorTriple hc_mix(const Tensor& streams, const Tensor& fn, const Tensor& scale,
                         const Tensor& base, int64_t sinkhorn_iters, double hc_eps,
                         double norm_eps) {
  TORCH_CHECK(streams.dim() == 3, "hc_mix: streams must be [T, S, D], found ", streams.sizes());
  const int64_t rows = streams.size(0), count = streams.size(1);
  const int64_t coefficients = 2 * count + count * count;
  TORCH_CHECK(
      fn.dim() == 2 && fn.size(0) == coefficients && fn.size(1) == count * streams.size(2) &&
          scale.numel() == 3 && base.numel() == coefficients,
      "hc_mix: fn [", coefficients, ", ", count * streams.size(2), "], scale [3], base [",
      coefficients, "] expected, found ", fn.sizes(), ", ", scale.sizes(), ", ", base.sizes());
  if (fault("sinkhorn_19_iterations")) --sinkhorn_iters;
  if (fault("hc_eps_zero")) hc_eps = 0;
  const Tensor x = widen(streams).flatten(1);
  const Tensor inverse_rms = (x.square().mean(-1, /*keepdim=*/true) + norm_eps).rsqrt();
  // The projection is normalised, not its input: one rounding less (model-verified.md 6).
  const Tensor m = at::matmul(x, widen(fn).t()) * inverse_rms;

  const auto part = [&](int64_t which, int64_t begin, int64_t end) {
    return m.slice(1, begin, end) * scale[which] + base.slice(0, begin, end);
  };
  const Tensor pre = part(0, 0, count).sigmoid() + hc_eps;
  const Tensor post = part(1, count, 2 * count).sigmoid() * (fault("post_not_doubled") ? 1 : 2);
  Tensor comb = part(2, 2 * count, coefficients).view({rows, count, count});
  comb = at::softmax(comb, -1) + hc_eps;
  comb = comb / (comb.sum(-2, /*keepdim=*/true) + hc_eps);
  for (int64_t iteration = 1; iteration < sinkhorn_iters; ++iteration) {
    comb = comb / (comb.sum(-1, /*keepdim=*/true) + hc_eps);
    comb = comb / (comb.sum(-2, /*keepdim=*/true) + hc_eps);
  }
  return {pre.to(at::kFloat), post.to(at::kFloat), comb.to(at::kFloat)};
}

Tensor hc_collapse(const Tensor& streams, const Tensor& pre) {
  TORCH_CHECK(streams.dim() == 3 && pre.dim() == 2 && pre.size(0) == streams.size(0) &&
                  pre.size(1) == streams.size(1),
              "hc_collapse: streams [T, S, D] and pre [T, S] expected, found ", streams.sizes(),
              " and ", pre.sizes());
  return (widen(streams) * pre.unsqueeze(-1)).sum(1).to(streams.scalar_type());
}

Tensor hc_expand(const Tensor& y, const Tensor& streams, const Tensor& post, const Tensor& comb) {
  TORCH_CHECK(
      streams.dim() == 3 && y.dim() == 2 && y.size(0) == streams.size(0) &&
          y.size(1) == streams.size(2) && post.size(1) == streams.size(1) && comb.dim() == 3 &&
          comb.size(1) == streams.size(1) && comb.size(2) == streams.size(1),
      "hc_expand: y [T, D], streams [T, S, D], post [T, S], comb [T, S, S] expected, found ",
      y.sizes(), ", ", streams.sizes(), ", ", post.sizes(), ", ", comb.sizes());
  // comb[i, j]: row = source. Target j sums over the sources, hence the transpose.
  const Tensor mix = fault("mix_matrix_transposed") ? comb : comb.transpose(1, 2);
  const Tensor residual = at::matmul(widen(mix), widen(streams));
  return (post.unsqueeze(-1) * widen(y).unsqueeze(1) + residual).to(streams.scalar_type());
}

}  // namespace deepinfer::reference
