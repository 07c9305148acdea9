// Cases of engram_hash and engram_fetch, which are exact, and of engram_gate.
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

void add_engram_hash(std::vector<OpCase>& cases) {
  const auto add = [&](int64_t length, int64_t rows, int64_t order, int64_t heads,
                       int64_t image_one_in, int64_t multiplier_bits) {
    OpCase one;
    one.op = "engram_hash";
    one.outputs = {"rows"};
    one.name = "ids " + std::to_string(length) + " rows " + std::to_string(rows) + " order " +
               std::to_string(order) + " heads " + std::to_string(heads) +
               (image_one_in > 0 ? " with image tokens" : "") + " multipliers of " +
               std::to_string(multiplier_bits) + " bits";
    one.inputs = [=](RandomStream& random) -> Tensors {
      // Products stay below 2^63: ids of 17 bits (a vocabulary of 129280), multipliers of the rest.
      std::vector<int64_t> ids, multipliers, primes, offsets;
      for (int64_t i = 0; i < length; ++i) {
        ids.push_back(image_one_in > 0 && random.one_in(image_one_in) ? -1 : random.below(1 << 17));
      }
      for (int64_t i = 0; i < order; ++i) {
        const uint64_t bits =
            (static_cast<uint64_t>(random.word()) << 32 | random.word()) >> (64 - multiplier_bits);
        multipliers.push_back(static_cast<int64_t>(bits | 1));
      }
      constexpr int64_t kPrimes[] = {2, 3, 101, 1009, 65537, 1000003, 2147483647};
      for (int64_t i = 0; i < (order - 1) * heads; ++i) {
        primes.push_back(kPrimes[random.below(std::size(kPrimes))]);
        offsets.push_back(random.below(1 << 30) << (i % 8));
      }
      return {long_tensor(ids), long_tensor(multipliers), long_tensor(primes),
              long_tensor(offsets)};
    };
    one.run = [=](const Tensors& in, bool) -> Tensors {
      return {ops::engram_hash(in[0], rows, in[1], in[2], in[3], /*pad=*/7)};
    };
    cases.push_back(one);
  };
  for (const int64_t order : {2, 3, 5}) {
    for (const int64_t heads : {1, 3, 8}) {
      for (const int64_t images : {0, 4}) {
        add(17, 17, order, heads, images, 20);
        add(33, 5, order, heads, images, 45);
        add(3, 3, order, heads, images, 45);  // shorter than the longest n-gram, for some
      }
    }
  }
  add(0, 0, 3, 2, 0, 20);
  add(9, 0, 3, 2, 0, 20);
  add(1, 1, 3, 2, 0, 45);
  add(12, 12, 3, 4, 1, 45);  // images only
  OpCase wrong = cases.back();
  wrong.name = "more rows than ids";
  wrong.inputs = [](RandomStream&) -> Tensors {
    return {long_tensor({1, 2}), long_tensor({3, 5}), long_tensor({101}), long_tensor({0})};
  };
  wrong.run = [](const Tensors& in, bool) -> Tensors {
    return {ops::engram_hash(in[0], 3, in[1], in[2], in[3], 0)};
  };
  wrong.throws = {{.text = "ids [L >= rows]"}};
  cases.push_back(wrong);
}

void add_engram_fetch(std::vector<OpCase>& cases) {
  const auto add = [&](int64_t table, int64_t blocks, int64_t tokens, int64_t columns,
                       at::ScalarType out, Values values) {
    OpCase one;
    one.op = "engram_fetch";
    one.outputs = {"values"};
    one.name = "table " + shape_text({table, blocks * 32}) + " rows " +
               shape_text({tokens, columns}) + " -> " + dtype_name(out) + " " +
               std::string(values_name(values));
    one.inputs = [=](RandomStream& random) -> Tensors {
      return {random_e4m3(random, {table, blocks * 32}, values == Values::kSpecial),
              random_scales(random, {table, blocks}, values),
              random_integers(random, {tokens, columns}, table)};
    };
    one.run = [=](const Tensors& in, bool) -> Tensors {
      return {ops::engram_fetch(in[0], in[1], in[2], out)};
    };
    cases.push_back(one);
  };
  for (const at::ScalarType out : kTypes) {
    for (const Values values :
         {Values::kOrdinary, Values::kTiny, Values::kExtreme, Values::kSpecial}) {
      add(9, 1, 5, 3, out, values);
      add(33, 3, 7, 2, out, values);
      add(100, 2, 1, 16, out, values);
    }
    add(5, 1, 0, 2, out, Values::kOrdinary);
    add(5, 1, 3, 0, out, Values::kOrdinary);
  }
  OpCase outside = cases.back();
  outside.name = "a row past the table";
  outside.inputs = [](RandomStream& random) -> Tensors {
    return {random_e4m3(random, {4, 32}), random_scales(random, {4, 1}, Values::kOrdinary),
            long_tensor({0, 1, 4, 2}).view({2, 2})};
  };
  outside.throws = {{.text = "place 2 names row 4 of a table of 4"}};
  cases.push_back(outside);
  OpCase wrong = outside;
  wrong.name = "one scale too few";
  wrong.inputs = [](RandomStream& random) -> Tensors {
    return {random_e4m3(random, {4, 64}), random_scales(random, {4, 1}, Values::kOrdinary),
            long_tensor({0, 1}).view({1, 2})};
  };
  wrong.throws = {{.text = "scales [R, C/32]"}};
  cases.push_back(wrong);
}

// d = dot(x (q k), key) rx rk / sqrt(n): the dot product with two roundings more in each term, both
// inverse norms (inverse_rms_units), three products and 1 / sqrt(n) with its two roundings. root =
// sqrt(max(|d|, 1e-6)): error / (root + root of what is left), one rounding. sigmoid: slope at
// most 1/4, kSigmoidUnits of its own. Where |d| is within its error the sign may be the other one:
// then the whole jump sigmoid(root) - sigmoid(-root) is allowed. x' = fma(g, v, x): |v| times the
// gate's error, one rounding, flushes.
Tensors engram_gate_errors(const Tensors& in, const Tensors& truth, double eps, SumOrder order) {
  const int64_t rows = in[0].size(0), count = in[0].size(1), hidden = in[0].size(2);
  const auto n = static_cast<double>(hidden);
  const Tensor x = wide(in[0]);
  const Tensor parts = in[1].view({rows, count + 1, hidden});
  const Tensor key = parts.slice(1, 0, count), value = parts.slice(1, count, count + 1);
  const Tensor qk = wide(in[2]) * wide(in[3]);
  const Tensor terms = x * qk * wide(key);
  const Tensor dot = terms.sum(-1), magnitude = terms.abs().sum(-1);
  // Products that flush: of q k (|x key|), of x (q k) (|key|), of operands.
  const Tensor flush = (((x * wide(key)).abs() + wide(key).abs() + x.abs() + qk.abs()).sum(-1) * 2 +
                        dot_flushes(hidden)) *
                       kSmallest;
  const Tensor squares_x = square_sum(in[0]).squeeze(-1), squares_k = square_sum(key).squeeze(-1);
  const Tensor rx = (squares_x / n + eps).rsqrt(), rk = (squares_k / n + eps).rsqrt();
  const Tensor factor = rx * rk / std::sqrt(n);
  const double units =
      static_cast<double>(dot_depth(hidden, order)) + 2 + 2 * inverse_rms_units(hidden, order) + 5;
  const Tensor d = dot * factor;
  // dot rx rk: a flush of dot rx is raised by rk.
  const Tensor error_d =
      (magnitude * gamma(units) + flush) * factor * kSecondOrder + kSmallest * (rk + 2);
  const Tensor clamped = d.abs().clamp_min(1e-6);
  const Tensor root = clamped.sqrt();
  const Tensor left = (clamped - error_d).clamp_min(1e-6).sqrt();
  const Tensor error_root = error_d / (root + left) + root * (2 * kUnit);
  const Tensor gate = wide(truth[1]);
  Tensor error_gate =
      (error_root / 4 + gate * (kSigmoidUnits * kUnit)) * kSecondOrder + 2 * kSmallest;
  const Tensor sign_open = d.abs().le(error_d);
  const Tensor jump = (root + error_root).sigmoid() * 2 - 1;
  error_gate = error_gate + jump.masked_fill(sign_open.logical_not(), 0);
  // Everything before the gate may overflow with x^2, key^2 or the terms.
  const Tensor largest = at::maximum(at::maximum(squares_x, squares_k),
                                     at::maximum(magnitude, (x * qk).abs().amax({-1})));
  error_gate = guard(error_gate, largest);
  error_gate = error_gate.masked_fill(in[4].logical_not().unsqueeze(1), 0);  // image tokens: 0

  const Tensor v = wide(value).abs();
  const Tensor g = gate.unsqueeze(-1), eg = error_gate.unsqueeze(-1);
  const Tensor carried = (eg * v).masked_fill(eg.isinf().expand({rows, count, hidden}), kInfinity);
  const Tensor sum = x.abs() + g * v;
  Tensor error = carried + (sum + carried) * kUnit + kSmallest * (g + 2);
  error = guard(error, sum);
  return {error, error_gate};
}

void add_engram_gate(std::vector<OpCase>& cases) {
  const auto add = [&](at::ScalarType dtype, at::ScalarType w_type, int64_t rows, int64_t count,
                       int64_t hidden, double eps, Values values) {
    OpCase one;
    one.op = "engram_gate";
    one.outputs = {"streams", "gate"};
    one.name = dtype_name(dtype) + " weights " + dtype_name(w_type) + " " +
               shape_text({rows, count, hidden}) + " eps " + (eps < 1e-10 ? "1e-20 " : "1e-6 ") +
               std::string(values_name(values));
    one.inputs = [=](RandomStream& random) -> Tensors {
      Tensor text = random_integers(random, {rows}, 4).gt(0);
      return {random_tensor(random, {rows, count, hidden}, dtype, values),
              random_tensor(random, {rows, (count + 1) * hidden}, dtype, values),
              random_tensor(random, {count, hidden}, w_type),
              random_tensor(random, {count, hidden}, w_type), text};
    };
    one.run = [=](const Tensors& in, bool wide) -> Tensors {
      const auto [streams, gate] =
          ops::engram_gate(wide ? in[0].to(at::kDouble) : in[0], in[1], in[2], in[3], in[4], eps);
      return {streams, gate};
    };
    one.errors = [=](const Tensors& in, const Tensors& truth, SumOrder order) -> Tensors {
      return engram_gate_errors(in, truth, eps, order);
    };
    cases.push_back(one);
  };
  constexpr int64_t kSizes[][3] = {{0, 4, 32},  {1, 1, 1},   {3, 4, 64}, {5, 2, 33},
                                   {2, 4, 100}, {17, 3, 17}, {1, 4, 512}};
  size_t turn = 0;
  for (const at::ScalarType dtype : kTypes) {
    for (const at::ScalarType w_type : kTypes) {
      for (const double eps : {1e-20, 1e-6}) {
        for (const Values values : {Values::kOrdinary, Values::kSpread, Values::kTiny,
                                    Values::kExtreme, Values::kZeros}) {
          const int64_t* size = kSizes[turn++ % std::size(kSizes)];
          add(dtype, w_type, size[0], size[1], size[2], eps, values);
        }
      }
    }
  }
  OpCase wrong = cases.back();
  wrong.name = "keys of one stream fewer";
  wrong.inputs = [](RandomStream& random) -> Tensors {
    return {random_tensor(random, {2, 4, 8}, at::kFloat),
            random_tensor(random, {2, 32}, at::kFloat), random_tensor(random, {4, 8}, at::kFloat),
            random_tensor(random, {4, 8}, at::kFloat), at::ones({2}, at::kBool)};
  };
  wrong.throws = {{.text = "key_value [T, (S+1)*D]"}};
  cases.push_back(wrong);
}

}  // namespace

namespace internal {
void add_engram_cases(std::vector<OpCase>& cases) {
  add_engram_hash(cases);
  add_engram_fetch(cases);
  add_engram_gate(cases);
}
}  // namespace internal

}  // namespace deepinfer::conformance
