// Cases of rms_norm, rope_table and rope.
#include <cmath>

#include "golden/conformance/bounds.h"
#include "golden/conformance/case_values.h"
#include "golden/conformance/op_case.h"
#include "platform/ops.h"

namespace deepinfer::conformance {

namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};

Tensor widened(const Tensor& x, bool wide) { return wide ? x.to(at::kDouble) : x; }

// y = w (x r), r = 1 / sqrt(q): relative error of r by inverse_rms_units(), and one rounding for
// each product. Flushes: of x (|w| r each), of x r (|w|), of w (|x| r), of the result (1).
Tensor rms_norm_error(const Tensor& x, const Tensor& weight, double eps, const Tensor& truth,
                      SumOrder order) {
  const int64_t n = x.size(-1);
  const Tensor squares = square_sum(x);
  const Tensor r = (squares / static_cast<double>(n) + eps).rsqrt();
  const Tensor w = wide(weight).abs();
  const Tensor relative =
      wide(truth).abs() * (gamma(inverse_rms_units(n, order) + 2) * kSecondOrder);
  const Tensor flush = (w * r + w + wide(x).abs() * r + 1) * kSmallest;
  // An fp32 sum of squares that overflows gives r = 0.
  return guard(relative + flush, squares.expand_as(truth));
}

void add_rms_norm(std::vector<OpCase>& cases) {
  const auto add = [&](at::ScalarType dtype, at::ScalarType weight_dtype,
                       const std::vector<int64_t>& shape, double eps, Values values) {
    OpCase one;
    one.op = "rms_norm";
    one.outputs = {"y"};
    one.name = dtype_name(dtype) + " weight " + dtype_name(weight_dtype) + " " + shape_text(shape) +
               " eps " + (eps < 1e-10 ? "1e-20" : "1e-6") + " " + std::string(values_name(values));
    one.inputs = [=](RandomStream& random) -> Tensors {
      return {random_tensor(random, shape, dtype, values),
              random_tensor(random, {shape.back()}, weight_dtype,
                            values == Values::kTiny ? Values::kTiny : Values::kOrdinary)};
    };
    one.run = [=](const Tensors& in, bool wide) -> Tensors {
      return {ops::rms_norm(widened(in[0], wide), in[1], eps)};
    };
    one.errors = [=](const Tensors& in, const Tensors& truth, SumOrder order) -> Tensors {
      return {rms_norm_error(in[0], in[1], eps, truth[0], order)};
    };
    cases.push_back(one);
  };
  const std::vector<std::vector<int64_t>> shapes = {{0, 16}, {1, 1},    {3, 7},      {2, 3, 33},
                                                    {5, 64}, {17, 100}, {2, 1, 512}, {1, 4096}};
  size_t turn = 0;
  for (const at::ScalarType dtype : kTypes) {
    for (const at::ScalarType weight_dtype : kTypes) {
      for (const double eps : {1e-20, 1e-6}) {
        for (const Values values : {Values::kOrdinary, Values::kSpread, Values::kTiny,
                                    Values::kExtreme, Values::kZeros, Values::kSpecial}) {
          add(dtype, weight_dtype, shapes[turn++ % shapes.size()], eps, values);
        }
      }
    }
  }
  OpCase wrong;
  wrong.op = "rms_norm";
  wrong.outputs = {"y"};
  wrong.name = "weight of another size";
  wrong.inputs = [](RandomStream& random) -> Tensors {
    return {random_tensor(random, {2, 33}, at::kFloat), random_tensor(random, {32}, at::kFloat)};
  };
  wrong.run = [](const Tensors& in, bool) -> Tensors {
    return {ops::rms_norm(in[0], in[1], 1e-6)};
  };
  wrong.throws = {{.text = "weight must be [33]"}};
  cases.push_back(wrong);
}

// The angle is the fp32 product in both; then C3.5: at most 0.501 ulp of the result, for angles up
// to 2^21. Beyond it nothing is promised. Flushes: the frequency's and the angle's (cos and sin
// change by no more than the angle does), the result's.
void add_rope_table(std::vector<OpCase>& cases) {
  constexpr double kLargestAngle = 0x1p21;
  const auto add = [&](int64_t rows, int64_t pairs, int64_t positions, double theta, bool special) {
    OpCase one;
    one.op = "rope_table";
    one.outputs = {"cos", "sin"};
    one.name = "positions below " + std::to_string(positions) + " " + shape_text({rows, pairs}) +
               (special ? " with tiny and zero frequencies" : "");
    one.inputs = [=](RandomStream& random) -> Tensors {
      std::vector<float> frequencies;
      for (int64_t i = 0; i < pairs; ++i) {
        float f = static_cast<float>(
            std::pow(theta, -static_cast<double>(i) / static_cast<double>(pairs)));
        if (special) f = i % 3 == 0 ? 0.0f : i % 3 == 1 ? random.uniform() * 0x1p-125f : -f;
        frequencies.push_back(f);
      }
      return {random_integers(random, {rows}, positions), float_tensor(frequencies, {pairs})};
    };
    one.run = [](const Tensors& in, bool) -> Tensors {
      const auto [cos, sin] = ops::rope_table(in[0], in[1]);
      return {cos, sin};
    };
    one.errors = [](const Tensors& in, const Tensors& truth, SumOrder) -> Tensors {
      const Tensor angle = wide(in[0].to(at::kFloat).unsqueeze(1) * in[1].unsqueeze(0));
      Tensors errors;
      const Tensor lost = flush_loss(in[0].unsqueeze(1), in[1].unsqueeze(0));
      for (const Tensor& value : truth) {
        const Tensor error = ulp_of(value, at::kFloat) * 0.501 + lost + 2 * kSmallest;
        errors.push_back(error.masked_fill(angle.abs().gt(kLargestAngle),
                                           std::numeric_limits<double>::infinity()));
      }
      return errors;
    };
    cases.push_back(one);
  };
  for (const int64_t rows : {0, 1, 5, 33}) {
    for (const int64_t pairs : {1, 7, 16, 32}) {
      add(rows, pairs, 4096, 10000, false);
      add(rows, pairs, 1 << 20, 160000, false);
    }
  }
  add(17, 19, 1 << 21, 10000, false);
  add(9, 12, 1 << 20, 10000, true);
  OpCase wrong;
  wrong.op = "rope_table";
  wrong.outputs = {"cos", "sin"};
  wrong.name = "frequencies in bf16";
  wrong.inputs = [](RandomStream& random) -> Tensors {
    return {random_integers(random, {3}, 9), random_tensor(random, {4}, at::kBFloat16)};
  };
  wrong.run = [](const Tensors& in, bool) -> Tensors {
    const auto [cos, sin] = ops::rope_table(in[0], in[1]);
    return {cos, sin};
  };
  wrong.throws = {{.text = "fp32 frequencies [R/2] expected"}};
  cases.push_back(wrong);
}

// e' = fma(e, c, -(o s)): one product rounded, one sum: gamma_2 of |e c| + |o s|, three flushes and
// what flushed operands lose. Channels that are not turned are copied (C1.6): exact.
Tensor rope_error(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const int64_t turned = cos.size(-1) * 2, kept = x.size(-1) - turned;
  std::vector<int64_t> shape(static_cast<size_t>(x.dim()), 1);
  shape.front() = x.size(0);
  shape.back() = turned / 2;
  const Tensor c = cos.view(shape), s = sin.view(shape);
  const Tensor even = x.slice(-1, kept, x.size(-1), 2), odd = x.slice(-1, kept + 1, x.size(-1), 2);
  const auto error_of = [](const Tensor& a, const Tensor& p, const Tensor& b, const Tensor& q) {
    const Tensor magnitude = (wide(a) * wide(p)).abs() + (wide(b) * wide(q)).abs();
    return guard(
        magnitude * (gamma(2) * kSecondOrder) + flush_loss(a, p) + flush_loss(b, q) + 3 * kSmallest,
        magnitude);
  };
  const Tensor pairs = at::stack({error_of(even, c, odd, s), error_of(even, s, odd, c)}, -1);
  const Tensor still = at::zeros(x.slice(-1, 0, kept).sizes(), at::kDouble);
  return at::cat({still, pairs.flatten(-2)}, -1);
}

void add_rope(std::vector<OpCase>& cases) {
  const auto add = [&](at::ScalarType dtype, const std::vector<int64_t>& shape, int64_t pairs,
                       bool inverse, Values values) {
    OpCase one;
    one.op = "rope";
    one.outputs = {"y"};
    one.name = dtype_name(dtype) + " " + shape_text(shape) + " pairs " + std::to_string(pairs) +
               (inverse ? " inverse " : " ") + std::string(values_name(values));
    one.inputs = [=](RandomStream& random) -> Tensors {
      const Tensor angle = random_tensor(random, {shape.front(), pairs}, at::kFloat) * 10;
      return {random_tensor(random, shape, dtype, values), angle.cos(), angle.sin()};
    };
    one.run = [=](const Tensors& in, bool wide) -> Tensors {
      return {ops::rope(widened(in[0], wide), in[1], in[2], inverse)};
    };
    one.errors = [](const Tensors& in, const Tensors&, SumOrder) -> Tensors {
      return {rope_error(in[0], in[1], in[2])};
    };
    cases.push_back(one);
  };
  struct Layout {
    std::vector<int64_t> shape;
    int64_t pairs;
  };
  const std::vector<Layout> layouts = {{{0, 2, 16}, 4},   {{1, 2}, 1},       {{3, 5}, 2},
                                       {{5, 3, 64}, 16},  {{17, 1, 33}, 16}, {{2, 2, 2, 40}, 20},
                                       {{4, 4, 128}, 32}, {{3, 7}, 0}};
  size_t turn = 0;
  for (const at::ScalarType dtype : kTypes) {
    for (const bool inverse : {false, true}) {
      for (const Values values : {Values::kOrdinary, Values::kSpread, Values::kTiny,
                                  Values::kExtreme, Values::kZeros, Values::kSpecial}) {
        for (int64_t i = 0; i < 2; ++i) {
          const Layout& layout = layouts[turn++ % layouts.size()];
          add(dtype, layout.shape, layout.pairs, inverse, values);
        }
      }
    }
  }
  OpCase wrong;
  wrong.op = "rope";
  wrong.outputs = {"y"};
  wrong.name = "more pairs than channels";
  wrong.inputs = [](RandomStream& random) -> Tensors {
    return {random_tensor(random, {2, 6}, at::kFloat), random_tensor(random, {2, 4}, at::kFloat),
            random_tensor(random, {2, 4}, at::kFloat)};
  };
  wrong.run = [](const Tensors& in, bool) -> Tensors {
    return {ops::rope(in[0], in[1], in[2], false)};
  };
  wrong.throws = {{.text = "with R <= C expected"}};
  cases.push_back(wrong);
}

}  // namespace

namespace internal {
void add_row_cases(std::vector<OpCase>& cases) {
  add_rms_norm(cases);
  add_rope_table(cases);
  add_rope(cases);
}
}  // namespace internal

}  // namespace deepinfer::conformance
