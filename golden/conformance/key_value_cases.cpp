// Cases of kv_store, compress_pool and index_score.
#include <cmath>
#include <limits>

#include "golden/conformance/bounds.h"
#include "golden/conformance/case_values.h"
#include "golden/conformance/op_case.h"
#include "platform/ops.h"

namespace deepinfer::conformance {

namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void add_kv_store(std::vector<OpCase>& cases) {
  const auto add = [&](at::ScalarType dtype, int64_t pool, int64_t channels, int64_t rows,
                       Values values) {
    OpCase one;
    one.op = "kv_store";
    one.outputs = {"pool"};
    one.at_edges = at_edges(values);
    one.name = dtype_name(dtype) + " pool " + shape_text({pool, channels}) + " rows " +
               std::to_string(rows) + " " + std::string(values_name(values));
    one.inputs = [=](RandomStream& random) -> Tensors {
      // Slots that differ: the order of two stores into one is not defined.
      std::vector<int64_t> slots;
      for (int64_t i = 0; i < pool; ++i) slots.push_back(i);
      for (int64_t i = pool - 1; i > 0; --i) std::swap(slots[i], slots[random.below(i + 1)]);
      slots.resize(static_cast<size_t>(rows));
      return {random_tensor(random, {pool, channels}, dtype, values),
              random_tensor(random, {rows, channels}, dtype, values), long_tensor(slots)};
    };
    one.run = [](const Tensors& in, bool) -> Tensors {
      Tensor pool_copy = in[0].clone();
      ops::kv_store(pool_copy, in[1], in[2]);
      return {pool_copy};
    };
    cases.push_back(one);
  };
  for (const at::ScalarType dtype : kTypes) {
    for (const Values values :
         {Values::kOrdinary, Values::kTiny, Values::kExtreme, Values::kZeros, Values::kSpecial}) {
      add(dtype, 9, 64, 4, values);
      add(dtype, 5, 33, 5, values);
    }
    add(dtype, 4, 16, 0, Values::kOrdinary);
    add(dtype, 1, 1, 1, Values::kOrdinary);
    add(dtype, 33, 0, 2, Values::kOrdinary);
  }
  const auto add_throwing = [&](const std::string& name, const std::vector<int64_t>& slots,
                                at::ScalarType rows_dtype, const std::string& text) {
    OpCase one = cases.back();
    one.name = name;
    one.inputs = [=](RandomStream& random) -> Tensors {
      return {random_tensor(random, {4, 8}, at::kFloat), random_tensor(random, {2, 8}, rows_dtype),
              long_tensor(slots)};
    };
    one.throws = {{.text = text}};
    cases.push_back(one);
  };
  add_throwing("a slot past the pool", {1, 4}, at::kFloat, "row 1 has slot 4 of a pool of 4");
  add_throwing("rows of another dtype", {1, 2}, at::kBFloat16, "of one dtype");
}

// Weights p_t = e_t / s, e_t = exp(g_t - M): the argument's rounding is u |g_t - M|, exp adds its
// own; s adds the mean of those and R - 1 roundings, the quotient one, the chain R. So each term's
// relative error is its own, the mean's, and gamma_(2R + 1). A weight below 2^-126 becomes 0.
Tensor compress_pool_error(const Tensor& values, const Tensor& gates) {
  const auto count = static_cast<double>(values.size(1));
  const Tensor g = wide(gates), a = wide(values).abs();
  const Tensor depth = (g - g.amax({1}, /*keepdim=*/true)).clamp_min(kExpUnderflow).abs();
  const Tensor weight = at::softmax(g, 1);
  const Tensor own = depth * kUnit + kExpUnits * kUnit;
  const Tensor mean = (weight * own).sum(1, /*keepdim=*/true);
  const Tensor term = weight * a;
  const Tensor relative = (term * (own + mean + gamma(2 * count + 1))).sum(1) * kSecondOrder;
  const Tensor flush = (2 * a + 3).sum(1) * kSmallest;
  return guard(relative + flush, term.sum(1));
}

void add_compress_pool(std::vector<OpCase>& cases) {
  const auto add = [&](int64_t groups, int64_t ratio, int64_t channels, Values values,
                       Values gate_values, double gate_scale) {
    OpCase one;
    one.op = "compress_pool";
    one.outputs = {"pooled"};
    one.at_edges = at_edges(values) || at_edges(gate_values);
    one.name = "fp32 " + shape_text({groups, ratio, channels}) + " " +
               std::string(values_name(values)) + ", gates " +
               std::string(values_name(gate_values)) + " times " +
               std::to_string(static_cast<int>(gate_scale));
    one.inputs = [=](RandomStream& random) -> Tensors {
      return {
          random_tensor(random, {groups, ratio, channels}, at::kFloat, values),
          random_tensor(random, {groups, ratio, channels}, at::kFloat, gate_values) * gate_scale};
    };
    one.run = [](const Tensors& in, bool) -> Tensors { return {ops::compress_pool(in[0], in[1])}; };
    one.errors = [](const Tensors& in, const Tensors&, SumOrder) -> Tensors {
      return {compress_pool_error(in[0], in[1])};
    };
    cases.push_back(one);
  };
  constexpr int64_t kSizes[][3] = {{0, 4, 16}, {1, 1, 1},   {3, 4, 33},  {5, 2, 64},
                                   {2, 16, 7}, {17, 3, 16}, {1, 128, 40}};
  size_t turn = 0;
  for (const Values values :
       {Values::kOrdinary, Values::kSpread, Values::kTiny, Values::kExtreme, Values::kZeros}) {
    for (const Values gates : {Values::kOrdinary, Values::kSpread, Values::kZeros, Values::kTiny}) {
      for (const double scale : {1.0, 60.0}) {
        const int64_t* size = kSizes[turn++ % std::size(kSizes)];
        add(size[0], size[1], size[2], values, gates, scale);
      }
    }
  }
  add(3, 4, 50, Values::kOrdinary, Values::kSpecial, 1);
  add(3, 4, 50, Values::kSpecial, Values::kOrdinary, 1);
  OpCase wrong = cases.back();
  wrong.name = "gates of another shape";
  wrong.inputs = [](RandomStream& random) -> Tensors {
    return {random_tensor(random, {2, 4, 8}, at::kFloat),
            random_tensor(random, {2, 4, 7}, at::kFloat)};
  };
  wrong.throws = {{.text = "values and gates [G, R, C] expected"}};
  cases.push_back(wrong);
}

// Wide: the dot products' errors, weighted (relu has slope at most 1), and a chain of H. narrow:
// reference and kernel each round dot, product and sum to bf16 (half a last place each, taken at
// the largest value that either may have): the chain's error is carried from one to the next.
Tensor index_score_error(const Tensors& in, const Tensor& truth, bool narrow, SumOrder order) {
  const auto heads = static_cast<double>(in[0].size(1));
  // [T, H, C] x [N, C] -> [T, H, N]
  const DotBound dot = dot_bound(in[0], in[2], order);
  const Tensor w = wide(in[1]).unsqueeze(-1).abs();
  Tensor d = at::matmul(wide(in[0]), wide(in[2]).t()).relu();
  const auto round_error = [narrow](const Tensor& largest) {
    return narrow ? ulp_of(largest, at::kBFloat16) : at::zeros_like(largest);
  };
  Tensor error_d = dot.error;
  error_d = error_d + round_error(d + error_d);
  const Tensor x = w * (d + error_d);
  Tensor error_x = w * error_d + kSmallest * (d + 1);
  if (narrow) error_x = error_x + x * kUnit + round_error(x + error_x);
  const Tensor magnitude = (x + error_x).sum(1);
  Tensor error = error_x.sum(1) + magnitude * (gamma(heads) * kSecondOrder) + heads * kSmallest;
  error = error + round_error(magnitude + error);
  error = error.masked_fill((magnitude + error).ge(kOverflow), kInfinity);
  // With infinities and NaN among the operands: a NaN or an infinity is the truth's. A finite sum
  // has lost one to the relu, and what a product before it overflowed to decides.
  const Tensor special = dot.error.isnan().any(1);
  error = at::where(
      special,
      at::where(truth.isfinite(), kInfinity + at::zeros_like(error), kNan + at::zeros_like(error)),
      error);
  // Entries that are not visible: -inf exactly.
  const Tensor entry = at::arange(in[2].size(0), in[3].options());
  return error.masked_fill(entry.unsqueeze(0).ge(in[3].unsqueeze(1)), 0);
}

void add_index_score(std::vector<OpCase>& cases) {
  const auto add = [&](at::ScalarType q_type, at::ScalarType k_type, at::ScalarType w_type,
                       int64_t rows, int64_t heads, int64_t channels, int64_t entries, bool narrow,
                       Values values) {
    OpCase one;
    one.op = "index_score";
    one.outputs = {"scores"};
    one.at_edges = at_edges(values);
    one.name = dtype_name(q_type) + " x " + dtype_name(k_type) + " weights " + dtype_name(w_type) +
               " " + shape_text({rows, heads, channels}) + " x " + shape_text({entries, channels}) +
               (narrow ? " narrow " : " ") + std::string(values_name(values));
    one.inputs = [=](RandomStream& random) -> Tensors {
      std::vector<int64_t> visible;
      for (int64_t i = 0; i < rows; ++i) {
        // Nothing, something, everything, and more than there is.
        visible.push_back(i % 4 == 0   ? entries
                          : i % 4 == 1 ? random.below(entries + 1)
                          : i % 4 == 2 ? 0
                                       : entries + 3);
      }
      return {random_tensor(random, {rows, heads, channels}, q_type, values),
              random_tensor(random, {rows, heads}, w_type),
              random_tensor(random, {entries, channels}, k_type,
                            values == Values::kSpecial ? Values::kOrdinary : values),
              long_tensor(visible)};
    };
    one.run = [=](const Tensors& in, bool) -> Tensors {
      return {ops::index_score(in[0], in[1], in[2], in[3], narrow)};
    };
    if (narrow) one.rounded_to = at::kBFloat16;
    one.errors = [=](const Tensors& in, const Tensors& truth, SumOrder order) -> Tensors {
      return {index_score_error(in, truth[0], narrow, order)};
    };
    cases.push_back(one);
  };
  struct Size {
    int64_t rows, heads, channels, entries;
  };
  constexpr Size kSizes[] = {{0, 2, 32, 5},   {1, 1, 1, 1},    {5, 3, 33, 17}, {4, 4, 64, 40},
                             {8, 2, 100, 33}, {3, 16, 128, 0}, {6, 64, 128, 9}};
  size_t turn = 0;
  for (const at::ScalarType q_type : kTypes) {
    for (const at::ScalarType w_type : kTypes) {
      for (const bool narrow : {false, true}) {
        for (const Values values : {Values::kOrdinary, Values::kSpread, Values::kTiny,
                                    Values::kExtreme, Values::kZeros, Values::kSpecial}) {
          const Size& s = kSizes[turn++ % std::size(kSizes)];
          const at::ScalarType k_type = turn % 5 == 0 ? at::kFloat : q_type;
          add(q_type, k_type, w_type, s.rows, s.heads, s.channels, s.entries, narrow, values);
        }
      }
    }
  }
  OpCase wrong = cases.back();
  wrong.name = "keys of another width";
  wrong.inputs = [](RandomStream& random) -> Tensors {
    return {random_tensor(random, {2, 3, 32}, at::kFloat),
            random_tensor(random, {2, 3}, at::kFloat), random_tensor(random, {5, 31}, at::kFloat),
            long_tensor({5, 5})};
  };
  wrong.throws = {{.text = "keys [N, C]"}};
  cases.push_back(wrong);
}

}  // namespace

namespace internal {
void add_key_value_cases(std::vector<OpCase>& cases) {
  add_kv_store(cases);
  add_compress_pool(cases);
  add_index_score(cases);
}
}  // namespace internal

}  // namespace deepinfer::conformance
