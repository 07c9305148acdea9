#include "model/moe.h"

#include <numeric>

#include "platform/fault.h"
#include "platform/formats.h"
#include "platform/ops.h"

namespace deepinfer {

namespace {

// (row, choice) pairs in ascending expert order, rows ascending within an expert.
struct Assignment {
  at::Tensor row;      // int64 [pairs]
  at::Tensor weight;   // fp32 [pairs]
  at::Tensor offsets;  // int64 [experts + 1], on the host
};

Assignment group_by_expert(const at::Tensor& ids, const at::Tensor& weights, int64_t experts) {
  const int64_t choices = ids.size(1);
  const at::Tensor flat = ids.reshape({-1}).to(at::kLong);
  const at::Tensor order =
      std::get<1>(at::sort(flat, /*stable=*/true, /*dim=*/0, /*descending=*/false));
  const at::Tensor hits = at::bincount(flat, {}, experts).to(at::kCPU);
  return {at::floor_divide(order, choices), weights.reshape({-1}).index_select(0, order),
          at::constant_pad_nd(hits.cumsum(0), {1, 0}, 0)};
}

void cover_hits(const ForwardContext& context, int64_t layer, const at::Tensor& offsets) {
  if (context.coverage == nullptr) return;
  const int64_t* bounds = offsets.data_ptr<int64_t>();
  std::vector<int64_t> hits;
  for (int64_t expert = 0; expert + 1 < offsets.numel(); ++expert) {
    hits.push_back(bounds[expert + 1] - bounds[expert]);
  }
  context.coverage->add_expert_hits(layer, hits);
}

void cover_clamp(const ForwardContext& context, const at::Tensor& gate, const at::Tensor& up) {
  if (context.coverage == nullptr) return;
  const double limit = context.config.swiglu_limit;
  const at::Tensor clamped = gate.gt(limit).logical_or(up.abs().gt(limit));
  context.cover(Path::kClampSeen, clamped.sum().item<int64_t>());
}

// Outputs of the routed experts, [pairs, hidden] in the order of `assignment`.
at::Tensor routed_experts(const ForwardContext& context, const Assignment& assignment,
                          const MoeWeights& weights, const at::Tensor& x) {
  const Numerics& numerics = context.numerics;
  const auto multiply = [&](const at::Tensor& input, const ExpertProjections& projections) {
    const bool quantize = numerics.quantize_linear && !projections.scales.empty();
    return ops::grouped_linear(quantize ? ops::fake_quantize_aq32(input, numerics.fp8_max) : input,
                               assignment.offsets, projections.weights, projections.scales,
                               input.scalar_type());
  };
  const at::Tensor input = x.index_select(0, assignment.row);
  at::Tensor gate = multiply(input, weights.w1);
  at::Tensor up = multiply(input, weights.w3);
  if (fault("gate_and_up_swapped")) std::swap(gate, up);
  cover_clamp(context, gate, up);
  // The routing weight goes in before w2, and so before w2's input is quantised.
  const bool late = fault("weight_after_w2");
  const ops::OptionalTensor row_weight =
      late ? ops::OptionalTensor() : ops::OptionalTensor(assignment.weight);
  const at::Tensor hidden = ops::swiglu(gate, up, row_weight, context.config.swiglu_limit);
  const at::Tensor output = multiply(hidden, weights.w2);
  return late ? output * assignment.weight.unsqueeze(1) : output;
}

// How the inputs of the shared expert's w2 are cut, and the columns of a slice: slice i on leaf i
// where there are as many leaves (architecture.md, "64 leaves").
std::pair<ShardMap, int64_t> shared_slices(int64_t columns) {
  const int64_t width = columns % 128 == 0 ? 128 : kScaleBlock;
  const int64_t slices = (columns + width - 1) / width;
  if (slices > kCanonicalLeaves) return {ShardMap::contiguous("shared expert", slices, 1), width};
  std::vector<int64_t> leaves(static_cast<size_t>(slices));
  std::iota(leaves.begin(), leaves.end(), 0);
  return {ShardMap::explicit_leaves("shared expert", std::move(leaves), 1), width};
}

}  // namespace

at::Tensor mixture_of_experts(ForwardContext& context, const LayerPlan& plan,
                              const MoeWeights& weights, const at::Tensor& x) {
  const ModelConfig& config = context.config;
  at::Tensor bias = weights.bias;
  if (!context.text.all().item<bool>()) {
    // Image tokens choose by their own bias; the weights never see either.
    bias = at::where(context.text.unsqueeze(1), weights.bias.unsqueeze(0),
                     weights.bias_vl.unsqueeze(0));
  }
  auto [ids, expert_weights] = ops::moe_gate(x, weights.gate, bias, config.num_experts_per_tok,
                                             config.gate_temp, config.routed_scaling_factor);
  context.observe("experts", plan.layer, ids);
  context.observe("expert_weights", plan.layer, expert_weights);
  if (fault("last_expert_dropped")) {
    ids = ids.slice(1, 0, config.num_experts_per_tok - 1);
    expert_weights = expert_weights.slice(1, 0, config.num_experts_per_tok - 1);
  }
  const Assignment assignment = group_by_expert(ids, expert_weights, config.n_routed_experts);
  cover_hits(context, plan.layer, assignment.offsets);
  const at::Tensor routed = routed_experts(context, assignment, weights, x);
  ops::OptionalTensor shared;
  if (config.n_shared_experts > 0 && !fault("shared_expert_missing")) {
    const at::Tensor gate = project(x, weights.shared_w1, context.numerics);
    const at::Tensor up = project(x, weights.shared_w3, context.numerics);
    cover_clamp(context, gate, up);
    const at::Tensor hidden = ops::swiglu(gate, up, {}, config.swiglu_limit);
    const auto [map, width] = shared_slices(hidden.size(1));
    shared = project_row_parallel(hidden, weights.shared_w2, context.numerics, map, width);
  }
  return ops::moe_combine(routed, assignment.row, assignment.offsets, shared, x.size(0));
}

}  // namespace deepinfer
