// Cases of moe_gate, moe_combine, moe_partials and swiglu.
#include <cmath>
#include <limits>

#include "golden/conformance/bounds.h"
#include "golden/conformance/case_values.h"
#include "golden/conformance/op_case.h"
#include "platform/errors.h"
#include "platform/ops.h"
#include "platform/shard_map.h"

namespace deepinfer::conformance {

namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Scores {
  Tensor score, biased;  // fp64 [T, E]
  Tensor error, biased_error;
};

// score = sqrt(softplus(z)), z = dot / gate_temp. softplus has slope sigmoid(z) and kSoftplusUnits
// of its own; |sqrt a - sqrt b| = |a - b| / (sqrt a + sqrt b), and at most sqrt |a - b|: a softplus
// below 2^-126 becomes 0.
Scores gate_scores(const Tensors& in, double gate_temp, SumOrder order) {
  const DotBound dot = dot_bound(in[0], in[1], order);
  const Tensor z = at::matmul(wide(in[0]), wide(in[1]).t()) / gate_temp;
  const Tensor error_z = dot.error / gate_temp + z.abs() * (2 * kUnit) + kSmallest;
  const Tensor softplus = at::where(z.gt(20), z, z.clamp_max(20).exp().log1p());
  const Tensor error_softplus =
      ((z + error_z).sigmoid() * error_z + softplus * (kSoftplusUnits * kUnit)) * kSecondOrder +
      2 * kSmallest;
  Scores made;
  made.score = softplus.sqrt();
  const Tensor lower = (softplus - error_softplus).clamp_min(0).sqrt();
  made.error = at::minimum(error_softplus / (made.score + lower), error_softplus.sqrt()) +
               made.score * kUnit;
  made.biased = made.score + wide(in[2]);
  made.biased_error = made.error + (made.biased.abs() + made.error) * kUnit;
  return made;
}

// Whether the k chosen experts and their order are the same for every score within its error: the
// k + 1 largest are equal, which the smaller expert wins, or further apart than both errors.
Tensor decided(const Scores& scores, int64_t k) {
  const auto [sorted, order] =
      at::sort(scores.biased, /*stable=*/true, /*dim=*/1, /*descending=*/true);
  const Tensor error = scores.biased_error.gather(1, order);
  const int64_t last = std::min(k + 1, sorted.size(1));
  const Tensor gap = sorted.slice(1, 0, last - 1) - sorted.slice(1, 1, last);
  const Tensor errors = error.slice(1, 0, last - 1) + error.slice(1, 1, last);
  return gap.eq(0).logical_or(gap.gt(errors)).all(1);
}

// w = s / (sum + 1e-20) * scaling over the chosen: the errors of the scores, k - 1 roundings of the
// sum and two more (1e-20 as fp32, its sum), three of quotient, product and scaling as fp32.
Tensor gate_weight_error(const Scores& scores, const Tensor& ids, double scaling) {
  const Tensor chosen = ids.to(at::kLong);
  const Tensor s = scores.score.gather(1, chosen), e = scores.error.gather(1, chosen);
  const Tensor total = s.sum(1, /*keepdim=*/true) + 1e-20;
  const Tensor error_total =
      e.sum(1, true) + total * gamma(static_cast<double>(ids.size(1)) + 2) + 2 * kSmallest;
  const Tensor quotient = s / total;
  const Tensor error =
      ((e * total + s * error_total) / (total * (total - error_total)) + quotient * gamma(3)) *
          std::abs(scaling) * kSecondOrder +
      2 * kSmallest;
  return error.masked_fill((error_total / total).gt(0.5), kInfinity);
}

enum class Gate { kOrdinary, kIntegers, kZeros, kTiny, kLarge, kNegative, kUnderflow };
constexpr const char* kGateNames[] = {"ordinary",     "integers",      "zeros",         "tiny",
                                      "logits to 60", "logits to -60", "logits to -120"};

Tensors gate_inputs(RandomStream& random, at::ScalarType dtype, int64_t rows, int64_t hidden,
                    int64_t experts, bool bias_by_row, Gate kind) {
  const double norm = 1 / std::sqrt(static_cast<double>(hidden));
  Values values = Values::kOrdinary;
  if (kind == Gate::kIntegers) values = Values::kIntegers;
  if (kind == Gate::kZeros) values = Values::kZeros;
  if (kind == Gate::kTiny) values = Values::kTiny;
  Tensor x = random_tensor(random, {rows, hidden}, dtype, values);
  Tensor weight = random_tensor(random, {experts, hidden}, dtype,
                                kind == Gate::kZeros ? Values::kOrdinary : values);
  if (kind == Gate::kOrdinary) weight = (weight * norm).to(dtype);
  if (kind == Gate::kLarge) weight = (weight * (60 * norm)).to(dtype);
  if (kind == Gate::kNegative || kind == Gate::kUnderflow) {  // exp underflows at -87
    const double most = kind == Gate::kNegative ? -240 : -480;
    x = x.abs();
    weight = (weight.abs() * (most / static_cast<double>(hidden))).to(dtype);
  }
  // Spaced biases decide where the scores hardly differ; shuffled, so that no order is its own.
  std::vector<float> bias;
  for (int64_t row = 0; row < (bias_by_row ? rows : 1); ++row) {
    std::vector<float> one;
    for (int64_t i = 0; i < experts; ++i) {
      const bool spaced = kind != Gate::kOrdinary && kind != Gate::kIntegers;
      one.push_back(spaced                    ? static_cast<float>(i) / 16
                    : kind == Gate::kIntegers ? static_cast<float>(random.below(2)) / 2
                                              : random.uniform() / 8);
    }
    for (int64_t i = experts - 1; i > 0; --i) {
      std::swap(one[static_cast<size_t>(i)], one[static_cast<size_t>(random.below(i + 1))]);
    }
    bias.insert(bias.end(), one.begin(), one.end());
  }
  const Tensor biases =
      bias_by_row ? float_tensor(bias, {rows, experts}) : float_tensor(bias, {experts});
  return {x, weight, biases};
}

void add_moe_gate(std::vector<OpCase>& cases) {
  const auto add = [&](at::ScalarType dtype, int64_t rows, int64_t hidden, int64_t experts,
                       int64_t k, bool bias_by_row, double gate_temp, double scaling, Gate kind) {
    OpCase one;
    one.op = "moe_gate";
    one.outputs = {"experts", "weights"};
    one.at_edges = kind == Gate::kTiny || kind == Gate::kUnderflow;
    one.name = dtype_name(dtype) + " " + shape_text({rows, hidden}) + " experts " +
               std::to_string(experts) + " k " + std::to_string(k) +
               (bias_by_row ? " bias by row " : " ") + kGateNames[static_cast<size_t>(kind)];
    one.inputs = [=](RandomStream& random) -> Tensors {
      Tensors in = gate_inputs(random, dtype, rows, hidden, experts, bias_by_row, kind);
      // Rows whose choice rounding could change are drawn again.
      constexpr int kDraws = 64;
      for (int draw = 0; rows > 0; ++draw) {
        const Tensor sound = decided(gate_scores(in, gate_temp, SumOrder::kAny), k);
        if (sound.all().item<bool>()) break;
        DEEPINFER_ASSERT(draw < kDraws, "moe_gate: no decided rows in " << kDraws << " draws");
        const Tensors again = gate_inputs(random, dtype, rows, hidden, experts, bias_by_row, kind);
        const Tensor keep = sound.unsqueeze(1);
        in[0] = at::where(keep, in[0], again[0]);
        if (bias_by_row) in[2] = at::where(keep, in[2], again[2]);
      }
      return in;
    };
    one.run = [=](const Tensors& in, bool) -> Tensors {
      const auto [ids, weights] = ops::moe_gate(in[0], in[1], in[2], k, gate_temp, scaling);
      return {ids, weights};
    };
    one.errors = [=](const Tensors& in, const Tensors& truth, SumOrder order) -> Tensors {
      return {Tensor(), gate_weight_error(gate_scores(in, gate_temp, order), truth[0], scaling)};
    };
    cases.push_back(one);
  };
  struct Size {
    int64_t rows, hidden, experts, k;
  };
  constexpr Size kSizes[] = {{0, 32, 8, 2},  {1, 1, 1, 1},    {5, 33, 9, 3},  {3, 64, 16, 6},
                             {17, 40, 8, 8}, {4, 512, 64, 6}, {2, 100, 33, 4}};
  size_t turn = 0;
  for (const at::ScalarType dtype : kTypes) {
    for (const bool by_row : {false, true}) {
      for (const Gate kind : {Gate::kOrdinary, Gate::kIntegers, Gate::kZeros, Gate::kTiny,
                              Gate::kLarge, Gate::kNegative, Gate::kUnderflow}) {
        for (int64_t i = 0; i < 2; ++i) {
          const Size& s = kSizes[turn % std::size(kSizes)];
          add(dtype, s.rows, s.hidden, s.experts, s.k, by_row, turn % 2 == 0 ? 1.0 : 1.5,
              turn % 3 == 0 ? 2.5 : 1.0, kind);
          ++turn;
        }
      }
    }
  }
  OpCase nan = cases.back();
  nan.name = "NaN in row 2";
  nan.inputs = [](RandomStream& random) -> Tensors {
    Tensors in = gate_inputs(random, at::kFloat, 4, 32, 8, false, Gate::kOrdinary);
    in[0][2][31] = std::numeric_limits<float>::quiet_NaN();
    return in;
  };
  nan.run = [](const Tensors& in, bool) -> Tensors {
    const auto [ids, weights] = ops::moe_gate(in[0], in[1], in[2], 2, 1, 1);
    return {ids, weights};
  };
  nan.throws = {{.text = "row 2"}};
  cases.push_back(nan);
  OpCase wrong = nan;
  wrong.name = "more chosen than experts";
  wrong.inputs = [](RandomStream& random) -> Tensors {
    return gate_inputs(random, at::kFloat, 2, 32, 1, false, Gate::kOrdinary);
  };
  wrong.throws = {{.text = "0 < k <= E expected"}};
  cases.push_back(wrong);
}

// Rows and offsets of `experts` experts here: token 0 has none, the others about `per_token` of
// `all` experts, some experts nobody.
Tensors routing(RandomStream& random, int64_t tokens, int64_t experts, int64_t all,
                int64_t per_token) {
  std::vector<int64_t> rows, offsets = {0};
  for (int64_t expert = 0; expert < experts; ++expert) {
    for (int64_t token = 0; token < tokens; ++token) {
      if (token != 0 && expert % 5 != 4 && random.below(all) < per_token) rows.push_back(token);
    }
    offsets.push_back(static_cast<int64_t>(rows.size()));
  }
  return {long_tensor(rows), long_tensor(offsets)};
}

// sum |outputs| and the number of outputs by token, fp64 [tokens, D] and [tokens].
std::pair<Tensor, Tensor> magnitude_and_count(const Tensor& outputs, const Tensor& rows,
                                              int64_t tokens) {
  const auto zeros = [](at::IntArrayRef shape) { return at::zeros(shape, at::kDouble); };
  return {zeros({tokens, outputs.size(1)}).index_add(0, rows, wide(outputs).abs()),
          zeros({tokens}).index_add(0, rows, at::ones({rows.size(0)}, at::kDouble))};
}

// The error of `sums` additions of numbers whose magnitudes sum to `magnitude`: a rounding each,
// whatever the tree, and each may flush both operands and its result.
Tensor sum_error(const Tensor& magnitude, const Tensor& sums) {
  const Tensor by_row = sums.unsqueeze(1);
  return guard(magnitude * by_row * (kUnit * kSecondOrder) + by_row * (3 * kSmallest), magnitude);
}

// n outputs of a token, and the shared one or +0: n sums, or one where there are none.
void add_moe_combine(std::vector<OpCase>& cases) {
  const auto add = [&](at::ScalarType dtype, int64_t tokens, int64_t experts, int64_t per_token,
                       int64_t hidden, bool shared, Values values) {
    OpCase one;
    one.op = "moe_combine";
    one.outputs = {"y"};
    one.canonical_nan = true;
    one.at_edges = at_edges(values);
    one.name = dtype_name(dtype) + " " + shape_text({tokens, hidden}) + " experts " +
               std::to_string(experts) + " up to " + std::to_string(per_token) +
               (shared ? " and shared " : " ") + std::string(values_name(values));
    one.host_inputs = {2};
    one.inputs = [=](RandomStream& random) -> Tensors {
      const Tensors routes = routing(random, tokens, experts, experts, per_token);
      return {random_tensor(random, {routes[0].size(0), hidden}, dtype, values), routes[0],
              routes[1],
              shared ? random_tensor(random, {tokens, hidden}, dtype, values) : Tensor()};
    };
    one.run = [=](const Tensors& in, bool wide) -> Tensors {
      const auto widened = [wide](const Tensor& x) { return wide ? x.to(at::kDouble) : x; };
      const ops::OptionalTensor maybe =
          in[3].defined() ? ops::OptionalTensor(widened(in[3])) : c10::nullopt;
      return {ops::moe_combine(widened(in[0]), in[1], in[2], maybe, tokens)};
    };
    one.errors = [=](const Tensors& in, const Tensors&, SumOrder) -> Tensors {
      const auto [routed, count] = magnitude_and_count(in[0], in[1], tokens);
      return {sum_error(in[3].defined() ? routed + wide(in[3]).abs() : routed, count.clamp_min(1))};
    };
    cases.push_back(one);
  };
  struct Size {
    int64_t tokens, experts, per_token, hidden;
  };
  constexpr Size kSizes[] = {{0, 8, 2, 32},  {1, 1, 1, 1},     {5, 9, 3, 33},
                             {7, 64, 6, 64}, {3, 100, 40, 17}, {17, 16, 4, 48}};
  size_t turn = 0;
  for (const at::ScalarType dtype : kTypes) {
    for (const bool shared : {false, true}) {
      for (const Values values : {Values::kOrdinary, Values::kSpread, Values::kTiny,
                                  Values::kExtreme, Values::kZeros, Values::kSpecial}) {
        const Size& s = kSizes[turn++ % std::size(kSizes)];
        add(dtype, s.tokens, s.experts, s.per_token, s.hidden, shared, values);
        const Size& again = kSizes[(turn + 2) % std::size(kSizes)];
        add(dtype, again.tokens, again.experts, again.per_token, again.hidden, shared, values);
      }
    }
  }
  OpCase wrong = cases.back();
  wrong.name = "rows for half of the outputs";
  wrong.inputs = [](RandomStream& random) -> Tensors {
    return {random_tensor(random, {4, 8}, at::kFloat), long_tensor({0, 1}), long_tensor({0, 2, 4}),
            Tensor()};
  };
  wrong.throws = {{.text = "moe_combine: outputs [P, D]"}};
  cases.push_back(wrong);
}

// n outputs of a token in a subtree: n - 1 sums. One is taken as it is.
void add_moe_partials(std::vector<OpCase>& cases) {
  struct Share {
    int64_t first_expert, here, experts, first_position, positions;
  };
  const auto add = [&](at::ScalarType dtype, int64_t tokens, const Share& share, int64_t per_token,
                       int64_t hidden, Values values) {
    OpCase one;
    one.op = "moe_partials";
    one.outputs = {"partials"};
    one.canonical_nan = true;
    one.at_edges = at_edges(values);
    one.name = dtype_name(dtype) + " " + shape_text({tokens, hidden}) + " experts " +
               std::to_string(share.first_expert) + " + " + std::to_string(share.here) + " of " +
               std::to_string(share.experts) + ", positions " +
               std::to_string(share.first_position) + " + " + std::to_string(share.positions) +
               ", up to " + std::to_string(per_token) + " " + std::string(values_name(values));
    one.host_inputs = {2};
    one.inputs = [=](RandomStream& random) -> Tensors {
      const Tensors routes = routing(random, tokens, share.here, share.experts, per_token);
      return {random_tensor(random, {routes[0].size(0), hidden}, dtype, values), routes[0],
              routes[1]};
    };
    one.run = [=](const Tensors& in, bool wide) -> Tensors {
      return {ops::moe_partials(wide ? in[0].to(at::kDouble) : in[0], in[1], in[2], tokens,
                                share.first_expert, share.experts, share.first_position,
                                share.positions)};
    };
    one.errors = [=](const Tensors& in, const Tensors&, SumOrder) -> Tensors {
      Tensors errors = {at::zeros({0, tokens, hidden}, at::kDouble)};
      const int64_t* offsets = in[2].data_ptr<int64_t>();
      for (const Subtree& subtree :
           maximal_subtrees({share.first_position, share.first_position + share.positions})) {
        int64_t first = -1, last = -1;  // rows of the subtree's experts
        for (int64_t e = 0; e < share.here; ++e) {
          const int64_t position = (share.first_expert + e) * kCanonicalLeaves / share.experts;
          if (position < subtree.begin || position >= subtree.begin + subtree.count) continue;
          if (first < 0) first = offsets[e];
          last = offsets[e + 1];
        }
        first = std::max<int64_t>(first, 0), last = std::max<int64_t>(last, 0);
        const auto [magnitude, count] =
            magnitude_and_count(in[0].slice(0, first, last), in[1].slice(0, first, last), tokens);
        errors.push_back(sum_error(magnitude, (count - 1).clamp_min(0)).unsqueeze(0));
      }
      return {at::cat(errors, 0)};
    };
    cases.push_back(one);
  };
  constexpr Share kShares[] = {{0, 64, 64, 0, 64}, {0, 9, 9, 0, 64},      {21, 21, 64, 21, 21},
                               {2, 1, 3, 42, 21},  {100, 50, 384, 16, 9}, {3, 0, 8, 13, 3},
                               {5, 3, 8, 40, 24},  {0, 1, 1, 0, 1},       {50, 50, 100, 32, 32},
                               {8, 0, 8, 64, 0}};
  constexpr int64_t kTokens[] = {5, 7, 3, 17, 0, 2, 1};
  constexpr int64_t kHidden[] = {33, 64, 1, 48};
  size_t turn = 0;
  for (const at::ScalarType dtype : kTypes) {
    for (const Values values : {Values::kOrdinary, Values::kSpread, Values::kTiny, Values::kExtreme,
                                Values::kZeros, Values::kSpecial}) {
      for (int64_t i = 0; i < 4; ++i) {
        const Share& share = kShares[turn % std::size(kShares)];
        add(dtype, kTokens[turn % std::size(kTokens)], share, 1 + share.experts / 4,
            kHidden[turn % std::size(kHidden)], values);
        ++turn;
      }
    }
  }
  const auto refuse = [&](const char* name, std::vector<int64_t> offsets, const Share& share,
                          const char* text) {
    OpCase wrong = cases.back();
    wrong.throws = {{.text = text}};
    wrong.name = name;
    wrong.inputs = [=](RandomStream& random) -> Tensors {
      return {random_tensor(random, {4, 8}, at::kFloat), long_tensor({0, 1, 2, 0}),
              long_tensor(offsets)};
    };
    wrong.run = [=](const Tensors& in, bool) -> Tensors {
      return {ops::moe_partials(in[0], in[1], in[2], 3, share.first_expert, share.experts,
                                share.first_position, share.positions)};
    };
    cases.push_back(wrong);
  };
  refuse("an expert after the positions", {0, 2, 4}, {3, 2, 8, 24, 8},
         "expert 4 is on tree position 32, outside 24 .. 31");
  refuse("an expert before the positions", {0, 2, 4}, {3, 2, 8, 25, 20},
         "expert 3 is on tree position 24, outside 25 .. 44");
  refuse("an expert, but no positions", {0, 4}, {0, 1, 8, 0, 0}, "expert 0 is on tree position 0");
  refuse("more experts than there are", {0, 2, 4}, {7, 2, 8, 0, 64}, "experts 7 .. 8 of 8");
  refuse("positions past the last", {0, 4}, {7, 1, 8, 56, 9}, "must lie in 0 .. 63");
  refuse("offsets of half of the outputs", {0, 2}, {0, 1, 8, 0, 8},
         "offsets must ascend from 0 to 4");
}

// silu has kSiluUnits of its own; two products more, a rounding each. Below about -87 sigmoid is 0
// in fp32, so that silu loses what it has, at most |g| 2^-126. Three flushes more.
Tensor swiglu_error(const Tensors& in, const Tensor& truth, double limit) {
  const Tensor g = wide(in[0]).clamp_max(limit), u = wide(in[1]).clamp(-limit, limit).abs();
  const Tensor w = in[2].defined() ? wide(in[2]).abs().unsqueeze(1) : at::ones({1, 1}, at::kDouble);
  const Tensor silu = (g * g.sigmoid()).abs();
  const Tensor lost = at::minimum(g.abs() * kSmallest, silu) + 2 * kSmallest;
  const Tensor error = silu * u * w * (gamma(kSiluUnits + 2) * kSecondOrder) + lost * u * w +
                       flush_loss(u, at::ones({1}, at::kDouble)) * silu * w + kSmallest * (w + 1) +
                       silu * u * kSmallest;
  return guard(error, (silu * u * w).masked_fill(truth.isnan(), kInfinity));
}

void add_swiglu(std::vector<OpCase>& cases) {
  const auto add = [&](at::ScalarType dtype, int64_t rows, int64_t width, bool weighted,
                       double limit, Values values, double scale) {
    OpCase one;
    one.op = "swiglu";
    one.outputs = {"y"};
    one.at_edges = at_edges(values);
    one.name = dtype_name(dtype) + " " + shape_text({rows, width}) +
               (weighted ? " row weights" : "") + " limit " +
               std::to_string(static_cast<int>(limit)) + " " + std::string(values_name(values)) +
               " times " + std::to_string(static_cast<int>(scale));
    one.inputs = [=](RandomStream& random) -> Tensors {
      const auto drawn = [&] {
        return (random_tensor(random, {rows, width}, dtype, values) * scale).to(dtype);
      };
      const Tensor gate = drawn(), up = drawn();
      return {gate, up, weighted ? random_tensor(random, {rows}, at::kFloat) : Tensor()};
    };
    one.run = [=](const Tensors& in, bool wide) -> Tensors {
      const ops::OptionalTensor maybe = in[2].defined() ? ops::OptionalTensor(in[2]) : c10::nullopt;
      return {ops::swiglu(wide ? in[0].to(at::kDouble) : in[0], in[1], maybe, limit)};
    };
    one.errors = [=](const Tensors& in, const Tensors& truth, SumOrder) -> Tensors {
      return {swiglu_error(in, truth[0], limit)};
    };
    cases.push_back(one);
  };
  constexpr int64_t kSizes[][2] = {{0, 32}, {1, 1}, {3, 33}, {5, 64}, {17, 7}, {2, 513}};
  size_t turn = 0;
  for (const at::ScalarType dtype : kTypes) {
    for (const bool weighted : {false, true}) {
      for (const double limit : {7.0, 10.0}) {
        for (const Values values : {Values::kOrdinary, Values::kSpread, Values::kTiny,
                                    Values::kExtreme, Values::kZeros, Values::kSpecial}) {
          const int64_t* size = kSizes[turn++ % std::size(kSizes)];
          const double scale = values == Values::kOrdinary ? 120 : 1;  // past where exp underflows
          add(dtype, size[0], size[1], weighted, limit, values, scale);
        }
      }
      add(dtype, 9, 40, weighted, 10, Values::kOrdinary, 4);
    }
  }
  OpCase wrong = cases.back();
  wrong.name = "up of another shape";
  wrong.inputs = [](RandomStream& random) -> Tensors {
    return {random_tensor(random, {2, 33}, at::kFloat), random_tensor(random, {2, 32}, at::kFloat),
            Tensor()};
  };
  wrong.throws = {{.text = "swiglu: gate and up [T, F]"}};
  cases.push_back(wrong);
}

}  // namespace

namespace internal {
void add_moe_cases(std::vector<OpCase>& cases) {
  add_moe_gate(cases);
  add_moe_combine(cases);
  add_moe_partials(cases);
  add_swiglu(cases);
}
}  // namespace internal

}  // namespace deepinfer::conformance
