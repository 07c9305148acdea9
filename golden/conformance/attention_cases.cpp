// Cases of kv_store, compress_pool, index_score and sparse_attention.
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
// exp of less is 0 in canonical arithmetic (C3.1), and below 2^-126 in truth: what flushes count.
constexpr double kExpUnderflow = -87.5;
// Merges of a leaf's partial on its way to the root: 64 leaves, 6 levels (C2.5); each rounds twice
// and calls exp once. A device may merge every entry on its own.
constexpr double kMergeLevels = 6;

void add_kv_store(std::vector<OpCase>& cases) {
  const auto add = [&](at::ScalarType dtype, int64_t pool, int64_t channels, int64_t rows,
                       Values values) {
    OpCase one;
    one.op = "kv_store";
    one.outputs = {"pool"};
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

// Bound of sparse_attention.
//
// A score s = scale (q . k) has the dot product's error times scale and two roundings (product,
// scale as fp32). The maximum that a weight is taken against cancels in out = sum p v / d, exactly
// where it is exact; so a weight's relative error is its own score's error, u (M - s) for rounded
// arguments (on the way of merges, C7.5, the maxima only rise, so that the differences add up to M
// - s), exp's own once for the entry and once a merge, and gamma of the L + 2 * merges sums it
// passes through. d has the mean of the weights' errors, and of the sink's: u |sink - M| and exp's
// own. One rounding for the quotient. Weights below 2^-126 (d is about 1 or more) become 0: 2^-126
// |v| each, and a flush for each sum. narrow rounds each weight of the values, not of d, to bf16:
// relative 2^-8 u16 more. lse = M + log l: the mean error of the weights, log's own, two roundings.
struct AttentionBound {
  Tensor out, lse;
};
AttentionBound attention_error(const Tensors& in, double scale, bool narrow, SumOrder order) {
  const Tensor& q = in[0];
  const int64_t rows = q.size(0), heads = q.size(1), channels = q.size(2);
  const Tensor keys = at::cat({wide(in[1]), wide(in[3])}, 0);
  const Tensor shifted = at::where(in[4].ge(0), in[4] + in[1].size(0), in[4]);
  const Tensor index = at::cat({in[2], shifted}, 1).to(at::kLong);  // [T, L]
  const int64_t length = index.size(1);
  const Tensor used = index.ge(0).unsqueeze(1);  // [T, 1, L]
  const Tensor gathered =
      at::cat({keys, at::zeros({1, channels}, at::kDouble)}, 0)
          .index_select(
              0, at::where(index.ge(0), index, at::full({}, keys.size(0), at::kLong)).reshape({-1}))
          .view({rows, length, channels});
  if (length == 0) {
    return {at::zeros(q.sizes(), at::kDouble), at::zeros({rows, heads}, at::kDouble)};
  }
  const DotBound dot = dot_bound(q, gathered, order);  // [T, H, L]
  const Tensor s = at::matmul(wide(q), gathered.transpose(1, 2)) * scale;
  const Tensor error_s = dot.error * std::abs(scale) + s.abs() * (2 * kUnit) + kSmallest;
  const Tensor hidden = used.logical_not();
  const Tensor masked = s.masked_fill(hidden, -kInfinity);
  const Tensor maximum = masked.amax({-1}, /*keepdim=*/true).clamp_min(-1e30);
  const Tensor p = (masked - maximum).exp();
  const Tensor l = p.sum(-1, /*keepdim=*/true);
  Tensor d = l;
  Tensor sink_error = at::zeros_like(l), sink_weight = at::zeros_like(l);
  if (in[5].defined()) {
    const Tensor away = wide(in[5]).view({1, heads, 1}) - maximum;
    sink_weight = away.exp();
    d = d + sink_weight;
    sink_error = away.abs().clamp_max(100) * kUnit + (kExpUnits + 1) * kUnit;
  }
  const double merges = order == SumOrder::kCanonical ? kMergeLevels : static_cast<double>(length);
  const double sums = static_cast<double>(length) + 2 * merges;
  const Tensor own = error_s + (maximum - s).clamp(0, -kExpUnderflow) * kUnit +
                     (1 + merges) * kExpUnits * kUnit + gamma(sums);
  const Tensor own_used = own.masked_fill(hidden, 0);
  const Tensor largest_own = own_used.amax({-1}, /*keepdim=*/true);
  const Tensor share = (p / d).masked_fill(d.eq(0), 0);  // [T, H, L]
  const Tensor magnitude_v = gathered.abs().masked_fill(index.lt(0).unsqueeze(-1), 0);
  const Tensor values_own = narrow ? own_used + kBf16Unit : own_used;
  const Tensor mean =
      (share * own_used).sum(-1, true) + (sink_weight / d * sink_error).masked_fill(d.eq(0), 0);
  const Tensor carried = at::matmul(share, magnitude_v);  // sum of share |v|
  Tensor out = at::matmul(share * values_own, magnitude_v) + carried * (mean + 2 * kUnit);
  out = out * kSecondOrder +
        (magnitude_v.sum(1).unsqueeze(1) * 2 + 4.0 * (static_cast<double>(length) + merges)) *
            kSmallest;
  const Tensor promised = largest_own.gt(kFirstOrderLimit);
  out = guard(out.masked_fill(promised, kInfinity), carried.expand_as(out));
  // Dot products that may overflow, or with infinities and NaN, promise nothing.
  const Tensor lost = largest_own.isfinite().logical_not();
  out = out.masked_fill(lost, kInfinity);

  const Tensor log_l = l.log().masked_fill(l.eq(0), 0);
  Tensor lse = ((p / l * own_used).masked_fill(l.eq(0), 0).sum(-1, true) +
                log_l.abs() * (kLogUnits * kUnit) + (maximum + log_l).abs() * kUnit) *
                   kSecondOrder +
               2 * kSmallest;
  // A row that sees nothing: -inf exactly. (One whose scores are all below the reference's floor of
  // the maximum is beyond any first-order bound.)
  lse = lse.masked_fill(promised.logical_or(lost), kInfinity)
            .masked_fill(used.any(-1, /*keepdim=*/true).logical_not(), 0)
            .squeeze(-1);
  return {out, lse};
}

struct Attention {
  int64_t rows, heads, channels;
  int64_t window, window_index, position;  // keys, places in a row's list, absolute position
  int64_t compressed, compressed_index;
};

// Ascending places of a list, some unused.
std::vector<int64_t> places(RandomStream& random, int64_t count, int64_t of, bool empty) {
  std::vector<int64_t> list;
  for (int64_t i = 0; i < count; ++i) {
    const bool used = of > 0 && i < of && !empty && !random.one_in(4);
    list.push_back(used ? i * of / std::max(count, int64_t{1}) : -1);
  }
  // A place that is named twice would be read twice; keep the first.
  for (size_t i = 1; i < list.size(); ++i) {
    if (list[i] >= 0 && std::find(list.begin(), list.begin() + static_cast<int64_t>(i), list[i]) !=
                            list.begin() + static_cast<int64_t>(i)) {
      list[i] = -1;
    }
  }
  return list;
}

void add_sparse_attention(std::vector<OpCase>& cases) {
  const auto add = [&](at::ScalarType q_type, at::ScalarType k_type, const Attention& a, bool sink,
                       bool narrow, Values values, double size) {
    OpCase one;
    one.op = "sparse_attention";
    one.outputs = {"out", "lse"};
    one.name = dtype_name(q_type) + " x " + dtype_name(k_type) + " " +
               shape_text({a.rows, a.heads, a.channels}) + " window " + std::to_string(a.window) +
               " compressed " + std::to_string(a.compressed) + (sink ? " sink" : "") +
               (narrow ? " narrow " : " ") + std::string(values_name(values)) + " times " +
               std::to_string(static_cast<int>(size));
    const double scale = static_cast<double>(
        static_cast<float>(1 / std::sqrt(static_cast<double>(std::max(a.channels, int64_t{1})))));
    one.inputs = [=](RandomStream& random) -> Tensors {
      std::vector<int64_t> window, compressed;
      for (int64_t row = 0; row < a.rows; ++row) {
        const bool empty = row % 5 == 3;  // a row that sees nothing
        const auto w = places(random, a.window_index, a.window, empty);
        const auto c = places(random, a.compressed_index, a.compressed, empty);
        window.insert(window.end(), w.begin(), w.end());
        compressed.insert(compressed.end(), c.begin(), c.end());
      }
      const Tensor q =
          (random_tensor(random, {a.rows, a.heads, a.channels}, q_type, values) * size).to(q_type);
      return {q,
              random_tensor(random, {a.window, a.channels}, k_type, values),
              int_tensor(window, {a.rows, a.window_index}),
              random_tensor(random, {a.compressed, a.channels}, k_type, values),
              int_tensor(compressed, {a.rows, a.compressed_index}),
              sink ? random_tensor(random, {a.heads}, at::kFloat) * 3 : Tensor()};
    };
    one.run = [=](const Tensors& in, bool wide) -> Tensors {
      const ops::OptionalTensor maybe = in[5].defined() ? ops::OptionalTensor(in[5]) : c10::nullopt;
      // The truth has no rounded weights: kernel and reference round against different maxima.
      const auto [out, lse] =
          ops::sparse_attention(wide ? in[0].to(at::kDouble) : in[0], in[1], a.position, in[2],
                                in[3], in[4], maybe, scale, narrow && !wide);
      return {out, lse};
    };
    one.errors = [=](const Tensors& in, const Tensors&, SumOrder order) -> Tensors {
      const AttentionBound bound = attention_error(in, scale, narrow, order);
      return {bound.out, bound.lse};
    };
    cases.push_back(one);
  };
  constexpr Attention kSizes[] = {
      {0, 2, 32, 4, 4, 0, 2, 2},      {1, 1, 1, 1, 1, 0, 0, 0},
      {5, 3, 33, 17, 9, 100, 5, 3},   {4, 2, 64, 0, 0, 0, 40, 31},
      {9, 4, 64, 128, 64, 7, 70, 70}, {2, 2, 128, 33, 20, 511, 600, 130},
      {4, 1, 16, 8, 8, 4096, 0, 0},
  };
  size_t turn = 0;
  for (const at::ScalarType q_type : kTypes) {
    for (const bool sink : {false, true}) {
      for (const bool narrow : {false, true}) {
        for (const Values values : {Values::kOrdinary, Values::kSpread, Values::kTiny,
                                    Values::kExtreme, Values::kZeros}) {
          const at::ScalarType k_type = turn % 6 == 5 ? at::kFloat : q_type;
          // Large enough queries make weights that underflow.
          const double size =
              values == Values::kOrdinary ? 1 + 19 * static_cast<double>(turn % 2) : 1;
          add(q_type, k_type, kSizes[turn++ % std::size(kSizes)], sink, narrow, values, size);
          if (values == Values::kOrdinary) {
            add(q_type, k_type, kSizes[turn++ % std::size(kSizes)], sink, narrow, values, 100);
          }
        }
      }
    }
  }
  OpCase wrong = cases.back();
  wrong.name = "a sink of another size";
  wrong.inputs = [](RandomStream& random) -> Tensors {
    return {random_tensor(random, {2, 3, 32}, at::kFloat),
            random_tensor(random, {4, 32}, at::kFloat),
            int_tensor({0, 1, 2, 3}, {2, 2}),
            random_tensor(random, {2, 32}, at::kFloat),
            int_tensor({0, 1}, {2, 1}),
            random_tensor(random, {2}, at::kFloat)};
  };
  wrong.throws = {{.text = "sink must be"}};
  cases.push_back(wrong);
}

}  // namespace

namespace internal {
void add_attention_cases(std::vector<OpCase>& cases) {
  add_kv_store(cases);
  add_compress_pool(cases);
  add_index_score(cases);
  // platform/ops.h has the selections in between; they are a family of their own.
  add_sparse_attention(cases);
}
}  // namespace internal

}  // namespace deepinfer::conformance
