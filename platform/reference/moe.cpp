// Reference MoE gate, sums of experts, and swiglu (model-verified.md 9).
#include "platform/fault.h"
#include "platform/partials.h"
#include "platform/reference/reference.h"

namespace deepinfer::reference {

using at::Tensor;

namespace {

// outputs [P, D] of the tokens `rows` [P]: fp64 [tokens, D]. -0 for a token without outputs.
Tensor sum_by_token(const Tensor& outputs, const Tensor& rows, int64_t tokens) {
  const Tensor wide = widen(outputs);
  return at::full({tokens, outputs.size(1)}, -0.0, wide.options()).index_add(0, rows, wide);
}

}  // namespace

ops::TensorPair moe_gate(const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t k,
                         double gate_temp, double scaling) {
  TORCH_CHECK(
      x.dim() == 2 && weight.dim() == 2 && weight.size(1) == x.size(1) &&
          bias.size(-1) == weight.size(0) && k > 0 && k <= weight.size(0),
      "moe_gate: x [T, D], weight [E, D], bias [E] or [T, E] and 0 < k <= E expected, found ",
      x.sizes(), ", ", weight.sizes(), ", ", bias.sizes(), ", ", k);
  const Tensor z = at::matmul(widen(x), widen(weight).t()) / gate_temp;
  // softplus as log1p(e^z): log(1 + e^z) would be 0 for z <= -16.64 (model.md 7 row 18).
  const Tensor softplus = at::where(z.gt(20), z, z.clamp_max(20).exp().log1p());
  const Tensor score = fault("router_sigmoid") ? z.sigmoid() : softplus.sqrt();
  const Tensor biased = fault("router_bias_missing") ? score : score + bias;
  TORCH_CHECK(biased.is_meta() || !biased.isnan().any().item<bool>(), "moe_gate: a score is NaN");
  const Tensor order =
      std::get<1>(at::sort(biased, /*stable=*/true, /*dim=*/1, /*descending=*/true));
  const Tensor chosen = order.slice(1, 0, k);
  const Tensor chosen_score = (fault("router_bias_in_weights") ? biased : score).gather(1, chosen);
  const Tensor total = chosen_score.sum(1, /*keepdim=*/true) + 1e-20;
  const double factor = fault("routed_scaling_missing") ? 1.0 : scaling;
  return {chosen.to(at::kInt), (chosen_score / total * factor).to(at::kFloat)};
}

Tensor moe_combine(const Tensor& outputs, const Tensor& rows, const Tensor& offsets,
                   const ops::OptionalTensor& shared, int64_t tokens) {
  TORCH_CHECK(outputs.dim() == 2 && rows.dim() == 1 && rows.size(0) == outputs.size(0) &&
                  offsets.dim() == 1,
              "moe_combine: outputs [P, D], rows [P], offsets [E+1] expected, found ",
              outputs.sizes(), ", ", rows.sizes(), ", ", offsets.sizes());
  const Tensor routed = sum_by_token(outputs, rows, tokens);
  return (shared.has_value() ? routed + widen(*shared) : routed + 0.0).to(outputs.scalar_type());
}

Tensor moe_partials(const Tensor& outputs, const Tensor& rows, const Tensor& offsets,
                    int64_t tokens, int64_t first_expert, int64_t experts, int64_t first_position,
                    int64_t positions) {
  const std::vector<Subtree> subtrees = check_moe_partials(
      outputs, rows, offsets, tokens, first_expert, experts, first_position, positions);
  // Outputs in fp64 ask for what is there before the rounding.
  const at::ScalarType type = outputs.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const int64_t* bounds = offsets.data_ptr<int64_t>();
  const int64_t count = offsets.numel() - 1;
  std::vector<Tensor> partials;
  int64_t expert = 0;
  for (const Subtree& subtree : subtrees) {
    const int64_t first = bounds[expert];
    while (expert < count &&
           (first_expert + expert) * kCanonicalLeaves / experts < subtree.begin + subtree.count) {
      ++expert;
    }
    partials.push_back(sum_by_token(outputs.slice(0, first, bounds[expert]),
                                    rows.slice(0, first, bounds[expert]), tokens)
                           .to(type));
  }
  if (partials.empty())
    return at::empty({0, tokens, outputs.size(1)}, outputs.options().dtype(type));
  return at::stack(partials, 0);
}

Tensor swiglu(const Tensor& gate, const Tensor& up, const ops::OptionalTensor& row_weight,
              double limit) {
  TORCH_CHECK(gate.dim() == 2 && gate.sizes() == up.sizes() &&
                  (!row_weight.has_value() || row_weight->numel() == gate.size(0)),
              "swiglu: gate and up [T, F], row_weight [T] expected, found ", gate.sizes(), " and ",
              up.sizes());
  const bool clamp = !fault("swiglu_clamp_missing");
  const Tensor g = clamp ? widen(gate).clamp_max(limit) : widen(gate);
  const Tensor u = clamp ? widen(up).clamp(-limit, limit) : widen(up);
  Tensor a = g * g.sigmoid() * u;
  // The routing weight multiplies before the rounding (model-verified.md 9).
  if (row_weight.has_value()) a = a * row_weight->unsqueeze(1);
  return a.to(gate.scalar_type());
}

}  // namespace deepinfer::reference
