// Cases of the hyper-connections: hc_mix, hc_collapse, hc_expand.
#include "golden/conformance/bounds.h"
#include "golden/conformance/case_values.h"
#include "golden/conformance/op_case.h"
#include "platform/ops.h"

namespace deepinfer::conformance {

namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};

Tensor widened(const Tensor& x, bool wide) { return wide ? x.to(at::kDouble) : x; }

// Largest half L1 distance of two distributions among the rows of [T, S, S] (Dobrushin's
// coefficient): how much a weighted mean by these rows keeps of the spread of what it averages.
Tensor dobrushin(const Tensor& rows) {
  return (rows.unsqueeze(1) - rows.unsqueeze(2)).abs().sum(-1).amax({1, 2}) / 2;
}

// Errors of pre, post, comb.
//
// m_q = dot_q r: the dot product's error times r, and r's relative error (inverse_rms_units) with
// the rounding of the product. t = fma(m, s, b): |s| times that, one rounding. sigmoid has slope at
// most 1/4 and kSigmoidUnits of its own; hc_eps one as fp32, one rounding for its sum.
//
// comb, before Sinkhorn: e = exp(t - M) has relative error 2 max|error t| + u |t - M| (rounded
// argument) + exp's own; then C = e / sum e + hc_eps adds that of the mean, S roundings of the sum,
// and 3. Call it rho: C is right up to a factor within exp(+-rho) for each element.
//
// Sinkhorn only multiplies rows and columns by factors. So after any number of steps the computed
// matrix is the true one times exp(E_jk + a_j + b_k), with |E| <= rho plus u for each division. A
// row step makes a_j minus a mean of E_jk + b_k over the row, weighted by the true row, plus S + 1
// roundings of its sum; a mean keeps of the spread of b only Dobrushin's share tau < 1 (Birkhoff's
// contraction), so spread(a) <= 2 rho + tau spread(b) + 2 (S + 1) u. After the last column step
// E + a + b is E minus a mean of E + a over the column: at most 2 rho + spread(a), roundings added.
// hc_eps in the denominators takes a share of at most hc_eps / sum, which kSecondOrder covers.
struct MixCase {
  int64_t iterations;
  double hc_eps;
  double norm_eps;
};

Tensors hc_mix_errors(const Tensors& in, const Tensors& truth, const MixCase& mix, SumOrder order) {
  const int64_t rows = in[0].size(0), count = in[0].size(1), n = count * in[0].size(2);
  const Tensor x = in[0].reshape({rows, n});
  const Tensor scale = wide(in[2]), base = wide(in[3]);
  const DotBound dot = dot_bound(x, in[1], order);
  const Tensor squares = square_sum(x);
  const Tensor r = (squares / static_cast<double>(n) + mix.norm_eps).rsqrt();
  const Tensor m = at::matmul(wide(x), wide(in[1]).t()) * r;
  const Tensor error_m = guard(
      dot.error * r + m.abs() * (gamma(inverse_rms_units(n, order) + 1) * kSecondOrder) + kSmallest,
      squares);
  const Tensor which = at::cat({at::zeros({count}, at::kLong), at::ones({count}, at::kLong),
                                at::full({count * count}, 2, at::kLong)});
  const Tensor factor = scale.index_select(0, which);
  const Tensor t = m * factor + base;
  const Tensor error_t = error_m * factor.abs() + (t.abs() + error_m * factor.abs()) * kUnit +
                         3 * kSmallest * (1 + factor.abs());

  const double count_d = static_cast<double>(count);
  const Tensor error_pre =
      (error_t.slice(1, 0, count) / 4 +
       (wide(truth[0]) * (kSigmoidUnits + 1) + mix.hc_eps) * kUnit + 2 * kSmallest) *
      kSecondOrder;
  const Tensor error_post = (error_t.slice(1, count, 2 * count) / 2 +
                             wide(truth[1]) * kSigmoidUnits * kUnit + 4 * kSmallest) *
                            kSecondOrder;

  const std::vector<int64_t> square = {rows, count, count};
  const Tensor logits = t.slice(1, 2 * count, t.size(1)).reshape(square);
  const Tensor error_logits = error_t.slice(1, 2 * count, t.size(1)).reshape(square).amax({1, 2});
  const Tensor depth = (logits.amax({-1}, true) - logits).amax({1, 2});
  // exp(t - M) below 2^-126 becomes 0: against hc_eps, which was added, less than u.
  const Tensor rho_start =
      (2 * error_logits + depth.clamp_max(88) * kUnit + (kExpUnits + 1) * kUnit) * 2 +
      (count_d + 3) * kUnit;
  const double step = (count_d + 2) * kUnit;  // a row's sum, + hc_eps, and hc_eps as fp32
  Tensor rho = rho_start;
  Tensor c = at::softmax(logits, -1) + mix.hc_eps;
  Tensor spread_a = at::zeros({rows}, at::kDouble), spread_b = at::zeros({rows}, at::kDouble);
  const auto normalise = [&](int64_t axis) {
    const Tensor total = c.sum({axis}, /*keepdim=*/true);
    const Tensor weights = axis == -1 ? c / total : (c / total).transpose(1, 2);
    Tensor& made = axis == -1 ? spread_a : spread_b;
    const Tensor& other = axis == -1 ? spread_b : spread_a;
    made = 2 * rho + dobrushin(weights) * other + 2 * step;
    rho = rho + kUnit;
    c = c / (total + mix.hc_eps);
  };
  normalise(-2);
  for (int64_t i = 1; i < mix.iterations; ++i) {
    normalise(-1);
    normalise(-2);
  }
  const Tensor relative = ((2 * rho + spread_a + step + kUnit) * kSecondOrder).view({rows, 1, 1});
  const Tensor promised =
      relative.masked_fill(relative.gt(kFirstOrderLimit), std::numeric_limits<double>::infinity());
  const Tensor error_comb = wide(truth[2]) * promised + kSmallest;
  return {error_pre, error_post, error_comb};
}

void add_hc_mix(std::vector<OpCase>& cases) {
  const auto add = [&](at::ScalarType dtype, int64_t rows, int64_t count, int64_t hidden,
                       const MixCase& mix, Values values, double spread) {
    OpCase one;
    one.op = "hc_mix";
    one.outputs = {"pre", "post", "comb"};
    one.name = dtype_name(dtype) + " " + shape_text({rows, count, hidden}) + " iterations " +
               std::to_string(mix.iterations) + " logits within " +
               std::to_string(static_cast<int>(spread)) + " " + std::string(values_name(values));
    one.inputs = [=](RandomStream& random) -> Tensors {
      const int64_t coefficients = 2 * count + count * count;
      return {random_tensor(random, {rows, count, hidden}, dtype, values),
              random_tensor(random, {coefficients, count * hidden}, at::kFloat) /
                  static_cast<double>(count * hidden),
              random_tensor(random, {3}, at::kFloat),
              random_tensor(random, {coefficients}, at::kFloat) * spread};
    };
    one.run = [=](const Tensors& in, bool) -> Tensors {
      const auto [pre, post, comb] =
          ops::hc_mix(in[0], in[1], in[2], in[3], mix.iterations, mix.hc_eps, mix.norm_eps);
      return {pre, post, comb};
    };
    one.errors = [=](const Tensors& in, const Tensors& truth, SumOrder order) -> Tensors {
      return hc_mix_errors(in, truth, mix, order);
    };
    cases.push_back(one);
  };
  constexpr int64_t kSizes[][3] = {{0, 4, 32},  {1, 1, 1},   {3, 4, 64}, {5, 2, 33},
                                   {2, 4, 100}, {17, 3, 17}, {1, 4, 512}};
  size_t turn = 0;
  for (const at::ScalarType dtype : kTypes) {
    for (const MixCase& mix :
         {MixCase{20, 1e-6, 1e-20}, MixCase{1, 1e-6, 1e-6}, MixCase{3, 1e-6, 1e-20}}) {
      for (const Values values :
           {Values::kOrdinary, Values::kSpread, Values::kTiny, Values::kExtreme, Values::kZeros}) {
        const int64_t* size = kSizes[turn % std::size(kSizes)];
        const double spread = turn % 3 == 0 ? 8 : 2;
        add(dtype, size[0], size[1], size[2], mix, values, spread);
        ++turn;
      }
    }
  }
  add(at::kFloat, 6, 4, 48, {20, 1e-6, 1e-20}, Values::kOrdinary, 200);  // exp underflows

  OpCase wrong;
  wrong.op = "hc_mix";
  wrong.outputs = {"pre", "post", "comb"};
  wrong.name = "fn of another shape";
  wrong.inputs = [](RandomStream& random) -> Tensors {
    return {random_tensor(random, {2, 4, 8}, at::kFloat),
            random_tensor(random, {24, 31}, at::kFloat), random_tensor(random, {3}, at::kFloat),
            random_tensor(random, {24}, at::kFloat)};
  };
  wrong.run = [](const Tensors& in, bool) -> Tensors {
    const auto [pre, post, comb] = ops::hc_mix(in[0], in[1], in[2], in[3], 20, 1e-6, 1e-6);
    return {pre, post, comb};
  };
  wrong.throws = {{.text = "hc_mix: fn [24, 32]"}};
  cases.push_back(wrong);
}

// A chain of S (collapse) or S + 1 (expand) products, each fused but the first: gamma of as many,
// a flush each, and what flushed operands lose.
Tensor chain_error(const Tensor& magnitude, const Tensor& loss, int64_t terms) {
  return guard(magnitude * (gamma(static_cast<double>(terms)) * kSecondOrder) + loss +
                   2.0 * static_cast<double>(terms) * kSmallest,
               magnitude);
}

void add_collapse_and_expand(std::vector<OpCase>& cases) {
  const auto add = [&](at::ScalarType dtype, int64_t rows, int64_t count, int64_t hidden,
                       Values values) {
    OpCase one;
    one.op = "hc_collapse";
    one.outputs = {"y"};
    one.name = dtype_name(dtype) + " " + shape_text({rows, count, hidden}) + " " +
               std::string(values_name(values));
    one.inputs = [=](RandomStream& random) -> Tensors {
      return {random_tensor(random, {rows, count, hidden}, dtype, values),
              random_tensor(random, {rows, count}, at::kFloat)};
    };
    one.run = [](const Tensors& in, bool wide) -> Tensors {
      return {ops::hc_collapse(widened(in[0], wide), in[1])};
    };
    one.errors = [=](const Tensors& in, const Tensors&, SumOrder) -> Tensors {
      const Tensor pre = in[1].unsqueeze(-1);
      return {chain_error((wide(in[0]) * wide(pre)).abs().sum(1), flush_loss(in[0], pre).sum(1),
                          count)};
    };
    cases.push_back(one);
  };
  const auto add_expand = [&](at::ScalarType dtype, int64_t rows, int64_t count, int64_t hidden,
                              Values values) {
    OpCase one;
    one.op = "hc_expand";
    one.outputs = {"streams"};
    one.name = dtype_name(dtype) + " " + shape_text({rows, count, hidden}) + " " +
               std::string(values_name(values));
    one.inputs = [=](RandomStream& random) -> Tensors {
      return {random_tensor(random, {rows, hidden}, dtype, values),
              random_tensor(random, {rows, count, hidden}, dtype, values),
              random_tensor(random, {rows, count}, at::kFloat),
              random_tensor(random, {rows, count, count}, at::kFloat)};
    };
    one.run = [](const Tensors& in, bool wide) -> Tensors {
      return {ops::hc_expand(in[0], widened(in[1], wide), in[2], in[3])};
    };
    one.errors = [=](const Tensors& in, const Tensors&, SumOrder) -> Tensors {
      // [T, source, target, D]
      const Tensor streams = in[1].unsqueeze(2), comb = in[3].unsqueeze(-1);
      const Tensor y = in[0].unsqueeze(1), post = in[2].unsqueeze(-1);
      const Tensor magnitude =
          (wide(streams) * wide(comb)).abs().sum(1) + (wide(y) * wide(post)).abs();
      const Tensor loss = flush_loss(streams, comb).sum(1) + flush_loss(y, post);
      return {chain_error(magnitude, loss, count + 1)};
    };
    cases.push_back(one);
  };
  constexpr int64_t kSizes[][3] = {{0, 4, 32}, {1, 1, 1},   {3, 4, 7},  {5, 2, 33},
                                   {2, 4, 96}, {17, 3, 16}, {1, 4, 515}};
  for (const auto& add_one :
       {std::function<void(at::ScalarType, int64_t, int64_t, int64_t, Values)>(add),
        std::function<void(at::ScalarType, int64_t, int64_t, int64_t, Values)>(add_expand)}) {
    size_t turn = 0;
    for (const at::ScalarType dtype : kTypes) {
      for (const Values values : {Values::kOrdinary, Values::kSpread, Values::kTiny,
                                  Values::kExtreme, Values::kZeros, Values::kSpecial}) {
        for (int64_t i = 0; i < 3; ++i) {
          const int64_t* size = kSizes[turn++ % std::size(kSizes)];
          add_one(dtype, size[0], size[1], size[2], values);
        }
      }
    }
    OpCase wrong = cases.back();
    wrong.name = "coefficients of one row fewer";
    wrong.throws = {{.text = wrong.op + ": "}};
    const bool expand = wrong.op == "hc_expand";
    wrong.inputs = [expand](RandomStream& random) -> Tensors {
      const Tensor streams = random_tensor(random, {3, 4, 8}, at::kFloat);
      if (!expand) return {streams, random_tensor(random, {2, 4}, at::kFloat)};
      return {random_tensor(random, {3, 8}, at::kFloat), streams,
              random_tensor(random, {3, 3}, at::kFloat),
              random_tensor(random, {3, 4, 4}, at::kFloat)};
    };
    cases.push_back(wrong);
  }
}

}  // namespace

namespace internal {
void add_hyper_connection_cases(std::vector<OpCase>& cases) {
  add_hc_mix(cases);
  add_collapse_and_expand(cases);
}
}  // namespace internal

}  // namespace deepinfer::conformance
