#include "model/moe.h"

#include <utility>
#include <vector>

#include "platform/fault.h"
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

// Outputs of the rank's routed experts, [pairs, hidden] in the order of `assignment`.
at::Tensor routed_experts(const ForwardContext& context, const Assignment& assignment,
                          const MoeWeights& weights, const at::Tensor& x) {
  const Numerics& numerics = context.numerics;
  const auto quantized = [&](const at::Tensor& input, const ExpertProjections& projections) {
    return numerics.quantize_linear && !projections.scales.empty()
               ? ops::fake_quantize_aq32(input, numerics.fp8_max)
               : input;
  };
  const auto multiply = [&](const at::Tensor& input, const ExpertProjections& projections) {
    return ops::grouped_linear(input, assignment.offsets, projections.weights, projections.scales,
                               input.scalar_type());
  };
  const at::Tensor input = x.index_select(0, assignment.row);
  const at::Tensor input1 = quantized(input, weights.w1);
  const bool alike = weights.w1.scales.empty() == weights.w3.scales.empty();
  at::Tensor gate = multiply(input1, weights.w1);
  at::Tensor up = multiply(alike ? input1 : quantized(input, weights.w3), weights.w3);
  if (fault("gate_and_up_swapped")) std::swap(gate, up);
  cover_clamp(context, gate, up);
  // The routing weight goes in before w2, and so before w2's input is quantised.
  const bool late = fault("weight_after_w2");
  const ops::OptionalTensor row_weight =
      late ? ops::OptionalTensor() : ops::OptionalTensor(assignment.weight);
  const at::Tensor hidden = ops::swiglu(gate, up, row_weight, context.config.swiglu_limit);
  const at::Tensor output = multiply(quantized(hidden, weights.w2), weights.w2);
  return late ? output * assignment.weight.unsqueeze(1) : output;
}

// The gate's choice of every row, the same on every rank.
Assignment route(const ForwardContext& context, const LayerPlan& plan, const MoeWeights& weights,
                 const at::Tensor& x) {
  const ModelConfig& config = context.config;
  at::Tensor bias = weights.bias;
  if (context.has_images) {
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
  if (context.rank.counts()) cover_hits(context, plan.layer, assignment.offsets);
  return assignment;
}

// The pairs of experts [own.begin, own.end).
Assignment part_of(const Assignment& all, IndexRange own) {
  const int64_t* offsets = all.offsets.data_ptr<int64_t>();
  const int64_t begin = offsets[own.begin], end = offsets[own.end];
  return {all.row.slice(0, begin, end), all.weight.slice(0, begin, end),
          all.offsets.slice(0, own.begin, own.end + 1) - begin};
}

// Partials of the rank's expert subtrees, fp32 [S, rows, hidden]; undefined if no row chose one of
// its experts.
at::Tensor routed_partials(const ForwardContext& context, const Assignment& assignment,
                           const MoeWeights& weights, const at::Tensor& x) {
  const UnitShards& experts = context.rank.mesh().experts();
  const int64_t place = context.rank.index(Axis::kExpert);
  const IndexRange own = experts.of_rank[static_cast<size_t>(place)];
  const Assignment part = part_of(assignment, own);
  if (part.row.size(0) == 0) return {};
  if (fault("experts_of_last_rank_dropped") && place == experts.map.ranks() - 1) return {};
  const IndexRange positions = experts.map.positions_of_rank(place);
  return ops::moe_partials(routed_experts(context, part, weights, x), part.row, part.offsets,
                           x.size(0), own.begin, experts.map.units(), positions.begin,
                           positions.count());
}

// What the shared expert's w1 and w3 take, the same on every rank.
struct SharedInputs {
  at::Tensor w1, w3;  // [rows, hidden]
};

SharedInputs shared_inputs(const ForwardContext& context, const MoeWeights& weights,
                           const at::Tensor& x) {
  const at::Tensor w1 = quantized_input(x, weights.shared_w1, context.numerics);
  const bool alike = weights.shared_w1.quantized() == weights.shared_w3.quantized();
  return {w1, alike ? w1 : quantized_input(x, weights.shared_w3, context.numerics)};
}

// The shared expert's slices of the rank, fp32 [S, rows, hidden]; undefined if they are all others'
// (systems.md X6).
at::Tensor shared_partials(const ForwardContext& context, const MoeWeights& weights,
                           const SharedInputs& x) {
  const ColumnShards& slices = context.rank.mesh().shared();
  const int64_t place = context.rank.index(Axis::kTensor);
  const IndexRange own = slices.columns_of_rank(place);
  if (own.count() == 0) return {};
  const IndexRange positions = slices.map().positions_of_rank(place);
  const at::Tensor gate = project_quantized(x.w1, weights.shared_w1);
  const at::Tensor up = project_quantized(x.w3, weights.shared_w3);
  cover_clamp(context, gate, up);
  const at::Tensor hidden = ops::swiglu(gate, up, {}, context.config.swiglu_limit);
  return project_partials(quantized_input(hidden, weights.shared_w2, context.numerics),
                          weights.shared_w2, own.begin, positions.begin,
                          slices.bounds(place, {0, slices.columns()}));
}

// fp32 x with subnormal numbers as zeros of their sign (CANONICAL.md C1.2), which ATen's additions
// keep.
at::Tensor flushed(const at::Tensor& x) {
  constexpr double kLeastNormal = 0x1p-126;
  return at::where(x.abs().lt(kLeastNormal), x * 0.0f, x);
}

}  // namespace

at::Tensor mixture_of_experts(ForwardContext& context, const LayerPlan& plan,
                              const MoeWeights& weights, const at::Tensor& x) {
  const ParallelRank& rank = context.rank;
  const at::ScalarType type = x.scalar_type();
  const bool has_shared = context.config.n_shared_experts > 0 && !fault("shared_expert_missing");
  const auto [routing, inputs] = rank.region({}, [&] {
    return std::pair(route(context, plan, weights, x),
                     has_shared ? shared_inputs(context, weights, x) : SharedInputs());
  });
  const Assignment& assignment = routing;  // structured bindings are no variables
  const SharedInputs& shared_input = inputs;
  at::Tensor shared_sum;  // fp32, not yet rounded; undefined without a shared expert
  if (has_shared) {
    const at::Tensor partials =
        rank.region(Axis::kTensor, [&] { return shared_partials(context, weights, shared_input); });
    shared_sum =
        rank.all_reduce_tree(Axis::kTensor, rank.mesh().shared().map(), partials, x.sizes());
  }
  const auto shared = [&] {
    return shared_sum.defined() ? ops::OptionalTensor(shared_sum.to(type)) : ops::OptionalTensor();
  };
  if (rank.size(Axis::kExpert) == 1) {
    return rank.region({}, [&] {
      return ops::moe_combine(routed_experts(context, assignment, weights, x), assignment.row,
                              assignment.offsets, shared(), x.size(0));
    });
  }
  const at::Tensor partials =
      rank.region(Axis::kExpert, [&] { return routed_partials(context, assignment, weights, x); });
  const at::Tensor routed =
      rank.all_reduce_tree(Axis::kExpert, rank.mesh().experts().map, partials, x.sizes());
  return rank.region({}, [&] {
    // C8.4: the shared expert is added after the routed tree, +0 where there is none.
    at::Tensor added = at::zeros({}, routed.options());
    if (const ops::OptionalTensor rounded = shared()) added = flushed(rounded->to(at::kFloat));
    if (fault("shared_expert_added_by_every_rank")) {
      added = added * static_cast<double>(rank.size(Axis::kExpert));
    }
    return flushed(flushed(routed) + added).to(type);
  });
}

}  // namespace deepinfer
