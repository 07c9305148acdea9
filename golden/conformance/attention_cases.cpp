// Cases of sparse_attention and its parts by ranks.
#include <cmath>
#include <limits>

#include "golden/conformance/bounds.h"
#include "golden/conformance/case_values.h"
#include "golden/conformance/op_case.h"
#include "platform/ops.h"
#include "platform/shard_map.h"

namespace deepinfer::conformance {

namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Merges of a leaf's partial on its way to the root: 64 leaves, 6 levels (C2.5); each rounds twice
// and calls exp once. A device may merge every entry on its own.
constexpr double kMergeLevels = 6;

// What queries' lists say about their keys. [T, L, ...]; unused places have zeros.
struct ListedKeys {
  Tensor used;      // bool [T, L]
  Tensor gathered;  // [T, L, C]
  Tensor s;         // scores [T, H, L]
  Tensor error_s;
};
ListedKeys listed_keys(const Tensor& q, const Tensor& window, const Tensor& window_index,
                       const Tensor& compressed, const Tensor& compressed_index, double scale,
                       SumOrder order) {
  const int64_t channels = q.size(2);
  const Tensor keys = at::cat({wide(window), wide(compressed)}, 0);
  const Tensor shifted =
      at::where(compressed_index.ge(0), compressed_index + window.size(0), compressed_index);
  const Tensor index = at::cat({window_index, shifted}, 1).to(at::kLong);  // [T, L]
  ListedKeys made;
  made.used = index.ge(0);
  made.gathered =
      at::cat({keys, at::zeros({1, channels}, at::kDouble)}, 0)
          .index_select(
              0, at::where(made.used, index, at::full({}, keys.size(0), at::kLong)).reshape({-1}))
          .view({q.size(0), index.size(1), channels});
  const DotBound dot = dot_bound(q, made.gathered, order);  // [T, H, L]
  made.s = at::matmul(wide(q), made.gathered.transpose(1, 2)) * scale;
  made.error_s = dot.error * std::abs(scale) + made.s.abs() * (2 * kUnit) + kSmallest;
  return made;
}

// The most entries, of `count` with neighbouring numbers, that one leaf holds: tiles of 8 go round
// 64 leaves (C7.3); where they are not aligned there is one tile more.
int64_t leaf_entries(int64_t count) {
  const int64_t tiles = (count + 7) / 8 + 1;
  return (tiles + 63) / 64 * 8;
}

// Bound of sparse_attention.
//
// A score s = scale (q . k) has the dot product's error times scale and two roundings (product,
// scale as fp32). The maximum that a weight is taken against cancels in out = sum p v / d, exactly
// where it is exact. So a weight's relative error is its own score's error; u (M - s) for rounded
// arguments (on the way of merges, C7.5, the maxima only rise: the differences add up to M - s);
// exp's own once for the entry and once a merge; and gamma of the sums it passes through, the chain
// of its leaf and two a merge. d has the mean of the weights' errors and of the sink's, which is
// u |sink - M| and exp's own. One rounding for the quotient. Weights below 2^-126 (d is about 1 or
// more) become 0: 2^-126 |v| each, and a flush for each sum. narrow rounds each weight of the
// values, not of d, to bf16: a relative error of 2^-8. lse = M + log l: the mean error of the
// weights, log's own, two roundings.
struct AttentionBound {
  Tensor out, lse;
};
AttentionBound attention_error(const Tensors& in, double scale, bool narrow, SumOrder order) {
  const Tensor& q = in[0];
  const int64_t rows = q.size(0), heads = q.size(1);
  const int64_t length = in[2].size(1) + in[4].size(1);
  if (length == 0) {
    return {at::zeros(q.sizes(), at::kDouble), at::zeros({rows, heads}, at::kDouble)};
  }
  const ListedKeys listed = listed_keys(q, in[1], in[2], in[3], in[4], scale, order);
  const Tensor& gathered = listed.gathered;
  const Tensor& s = listed.s;
  const Tensor& error_s = listed.error_s;
  const Tensor used = listed.used.unsqueeze(1);  // [T, 1, L]
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
  const bool canonical = order == SumOrder::kCanonical;
  const double merges = canonical ? kMergeLevels : static_cast<double>(length);
  const int64_t chain =
      canonical ? std::min(length, leaf_entries(in[1].size(0)) + leaf_entries(in[3].size(0)))
                : length;
  const double sums = static_cast<double>(chain) + 2 * merges;
  const Tensor own = error_s + (maximum - s).clamp(0, -kExpUnderflow) * kUnit +
                     (1 + merges) * kExpUnits * kUnit + gamma(sums);
  const Tensor own_used = own.masked_fill(hidden, 0);
  const Tensor largest_own = own_used.amax({-1}, /*keepdim=*/true);
  const Tensor share = (p / d).masked_fill(d.eq(0), 0);  // [T, H, L]
  const Tensor magnitude_v = gathered.abs();
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

constexpr Attention kAttentionSizes[] = {
    {0, 2, 32, 4, 4, 0, 2, 2},      {1, 1, 1, 1, 1, 0, 0, 0},
    {5, 3, 33, 17, 9, 100, 5, 3},   {4, 2, 64, 0, 0, 0, 40, 31},
    {9, 4, 64, 128, 64, 7, 70, 70}, {2, 2, 128, 33, 20, 511, 600, 130},
    {4, 1, 16, 8, 8, 4096, 0, 0},
};

std::string attention_name(at::ScalarType q_type, at::ScalarType k_type, const Attention& a) {
  return dtype_name(q_type) + " x " + dtype_name(k_type) + " " +
         shape_text({a.rows, a.heads, a.channels}) + " window " + std::to_string(a.window) +
         " compressed " + std::to_string(a.compressed);
}
double usual_scale(int64_t channels) {
  return static_cast<double>(
      static_cast<float>(1 / std::sqrt(static_cast<double>(std::max(channels, int64_t{1})))));
}

// q times `size`, window, its index, compressed, its index.
Tensors attention_inputs(RandomStream& random, at::ScalarType q_type, at::ScalarType k_type,
                         const Attention& a, Values values, double size) {
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
  const Tensor window_rows = random_tensor(random, {a.window, a.channels}, k_type, values);
  const Tensor entries = random_tensor(random, {a.compressed, a.channels}, k_type, values);
  return {q, window_rows, int_tensor(window, {a.rows, a.window_index}), entries,
          int_tensor(compressed, {a.rows, a.compressed_index})};
}

void add_sparse_attention(std::vector<OpCase>& cases) {
  const auto add = [&](at::ScalarType q_type, at::ScalarType k_type, const Attention& a, bool sink,
                       bool narrow, Values values, double size) {
    OpCase one;
    one.op = "sparse_attention";
    one.outputs = {"out", "lse"};
    one.at_edges = at_edges(values);
    one.name = attention_name(q_type, k_type, a) + (sink ? " sink" : "") +
               (narrow ? " narrow " : " ") + std::string(values_name(values)) + " times " +
               std::to_string(static_cast<int>(size));
    const double scale = usual_scale(a.channels);
    one.inputs = [=](RandomStream& random) -> Tensors {
      Tensors in = attention_inputs(random, q_type, k_type, a, values, size);
      in.push_back(sink ? random_tensor(random, {a.heads}, at::kFloat) * 3 : Tensor());
      return in;
    };
    one.run = [=](const Tensors& in, bool wide) -> Tensors {
      const ops::OptionalTensor maybe = in[5].defined() ? ops::OptionalTensor(in[5]) : c10::nullopt;
      // The truth has no rounded weights: kernel and reference round against different maxima.
      const auto [out, lse] =
          ops::sparse_attention(wide ? in[0].to(at::kDouble) : in[0], in[1], a.position, in[2],
                                in[3], in[4], maybe, scale, narrow && !wide);
      return {out, lse};
    };
    if (narrow) one.rounded_to = at::kBFloat16;
    one.errors = [=](const Tensors& in, const Tensors&, SumOrder order) -> Tensors {
      const AttentionBound bound = attention_error(in, scale, narrow, order);
      return {bound.out, bound.lse};
    };
    cases.push_back(one);
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
          add(q_type, k_type, kAttentionSizes[turn++ % std::size(kAttentionSizes)], sink, narrow,
              values, size);
          if (values == Values::kOrdinary) {
            add(q_type, k_type, kAttentionSizes[turn++ % std::size(kAttentionSizes)], sink, narrow,
                values, 100);
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

// Bound of attention_maximum: the maximum moves by no more than a score does.
Tensor maximum_error(const ListedKeys& listed) {
  return listed.error_s.masked_fill(listed.used.logical_not().unsqueeze(1), 0).amax({-1});
}

void add_attention_maximum(std::vector<OpCase>& cases) {
  const auto add = [&](at::ScalarType q_type, at::ScalarType k_type, const Attention& a,
                       Values values) {
    OpCase one;
    one.op = "attention_maximum";
    one.outputs = {"maximum"};
    one.at_edges = at_edges(values);
    one.name = attention_name(q_type, k_type, a) + " " + std::string(values_name(values));
    const double scale = usual_scale(a.channels);
    one.inputs = [=](RandomStream& random) -> Tensors {
      return attention_inputs(random, q_type, k_type, a, values, 1);
    };
    one.run = [=](const Tensors& in, bool wide) -> Tensors {
      return {ops::attention_maximum(wide ? in[0].to(at::kDouble) : in[0], in[1], in[2], in[3],
                                     in[4], scale)};
    };
    one.errors = [=](const Tensors& in, const Tensors& truth, SumOrder order) -> Tensors {
      if (in[2].size(1) + in[4].size(1) == 0) return {at::zeros_like(truth[0], at::kDouble)};
      return {maximum_error(listed_keys(in[0], in[1], in[2], in[3], in[4], scale, order))};
    };
    cases.push_back(one);
  };
  size_t turn = 0;
  for (const at::ScalarType q_type : kTypes) {
    for (const Values values :
         {Values::kOrdinary, Values::kSpread, Values::kTiny, Values::kExtreme, Values::kZeros}) {
      for (int i = 0; i < 2; ++i) {
        const at::ScalarType k_type = turn % 6 == 5 ? at::kFloat : q_type;
        add(q_type, k_type, kAttentionSizes[turn++ % std::size(kAttentionSizes)], values);
      }
    }
  }
  OpCase wrong = cases.back();
  wrong.name = "an index for another number of rows";
  wrong.inputs = [](RandomStream& random) -> Tensors {
    return {random_tensor(random, {2, 3, 32}, at::kFloat),
            random_tensor(random, {4, 32}, at::kFloat), int_tensor({0, 1, 2}, {3, 1}),
            random_tensor(random, {2, 32}, at::kFloat), int_tensor({0, 1}, {2, 1})};
  };
  wrong.throws = {{.text = "attention_maximum: q [T, H, C]"}};
  cases.push_back(wrong);
}

// Tree positions of a rank, and how its rows come about.
struct Ranked {
  int64_t first_position, positions;
  int64_t first_window, first_entry;  // global indices are looked at from here on
};

// Global indices of `count` keys at the rank's tree positions, ascending.
std::vector<int64_t> owned(const Ranked& rank, int64_t first, int64_t count) {
  const ShardMap map = ShardMap::interleaved("KV tiles", 1);
  const IndexRange positions{rank.first_position, rank.first_position + rank.positions};
  std::vector<int64_t> found;
  for (int64_t i = first; static_cast<int64_t>(found.size()) < count; ++i) {
    if (positions.contains(map.position_of_leaf(map.leaf_of_unit(i / kKvTileEntries)))) {
      found.push_back(i);
    }
  }
  return found;
}

// Bounds of attention_partials, in the terms of sparse_attention's. Nothing cancels here: a weight
// is taken against the maximum as computed, so its relative error is the maximum's too, unless that
// is given. Reference and kernel both round weights to bf16 against a given maximum: two roundings.
Tensors partials_error(const Tensors& in, const Ranked& rank, double scale, SumOrder order) {
  const Tensor& q = in[0];
  const std::vector<Subtree> subtrees =
      maximal_subtrees({rank.first_position, rank.first_position + rank.positions});
  const auto count = static_cast<int64_t>(subtrees.size());
  const int64_t rows = q.size(0), heads = q.size(1), channels = q.size(2);
  const int64_t length = in[3].size(1) + in[6].size(1);
  const Tensor error_m = at::zeros({count, rows, heads}, at::kDouble),
               error_l = at::zeros({count, rows, heads}, at::kDouble),
               error_o = at::zeros({count, rows, heads, channels}, at::kDouble);
  if (length == 0) return {error_m, error_l, error_o};
  const ListedKeys listed = listed_keys(q, in[1], in[3], in[4], in[6], scale, order);
  // Tree positions of listed keys, [T, L].
  const ShardMap map = ShardMap::interleaved("KV tiles", 1);
  const Tensor global = at::cat({in[2], in[5]}, 0);
  const Tensor position = at::full({rows, length}, -1, at::kLong);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t i = 0; i < length; ++i) {
      const bool in_window = i < in[3].size(1);
      const int64_t row =
          in_window ? in[3][t][i].item<int32_t>() : in[6][t][i - in[3].size(1)].item<int32_t>();
      if (row < 0) continue;
      const int64_t index = global[in_window ? row : row + in[1].size(0)].item<int64_t>();
      position[t][i] = map.position_of_leaf(map.leaf_of_unit(index / kKvTileEntries));
    }
  }
  const bool given = in[7].defined();
  const bool canonical = order == SumOrder::kCanonical;
  const double merges = canonical ? kMergeLevels : static_cast<double>(length);
  for (int64_t i = 0; i < count; ++i) {
    const Subtree& subtree = subtrees[static_cast<size_t>(i)];
    const Tensor mine =
        position.ge(subtree.begin).logical_and(position.lt(subtree.begin + subtree.count));
    const Tensor hidden = mine.logical_not().unsqueeze(1);  // [T, 1, L]
    const Tensor empty = hidden.all(-1);                    // [T, 1]
    const Tensor error_s = listed.error_s.masked_fill(hidden, 0);
    const Tensor masked = listed.s.masked_fill(hidden, -kInfinity);
    const Tensor largest = masked.amax({-1}, /*keepdim=*/true);
    const Tensor maximum = (given ? wide(in[7]).unsqueeze(-1) : largest).clamp_min(-1e30);
    const Tensor own_m = given ? at::zeros_like(largest)
                               : error_s.amax({-1}, /*keepdim=*/true) + maximum.abs() * kUnit;
    const Tensor p = (masked - maximum).exp();
    const Tensor own =
        (error_s + own_m + (maximum - listed.s).clamp(0, -kExpUnderflow) * kUnit +
         (1 + merges) * kExpUnits * kUnit + gamma(static_cast<double>(length) + 2 * merges))
            .masked_fill(hidden, 0);
    const Tensor magnitude_v =
        listed.gathered.abs().masked_fill(mine.logical_not().unsqueeze(-1), 0);
    const double flushes = 4.0 * (static_cast<double>(length) + merges) * kSmallest;
    const Tensor sums = (p * own).sum({-1}) * kSecondOrder + flushes;
    const Tensor values_own = given ? own + 2 * kBf16Unit : own;
    const Tensor outs = at::matmul(p * values_own, magnitude_v) * kSecondOrder +
                        magnitude_v.sum(1).unsqueeze(1) * (2 * kSmallest) + flushes;
    const Tensor largest_own = own.amax({-1});  // [T, H]
    const Tensor lost =
        largest_own.gt(kFirstOrderLimit).logical_or(largest_own.isfinite().logical_not());
    error_m[i].copy_(own_m.squeeze(-1).masked_fill(empty, 0));
    error_l[i].copy_(sums.masked_fill(lost, kInfinity).masked_fill(empty, 0));
    error_o[i].copy_(guard(outs, at::matmul(p, magnitude_v))
                         .masked_fill(lost.unsqueeze(-1), kInfinity)
                         .masked_fill(empty.unsqueeze(-1), 0));
  }
  return {error_m, error_l, error_o};
}

void add_attention_partials(std::vector<OpCase>& cases) {
  const auto add = [&](at::ScalarType q_type, at::ScalarType k_type, const Attention& a,
                       const Ranked& rank, bool narrow, Values values) {
    OpCase one;
    one.op = "attention_partials";
    one.outputs = {"maximum", "sum", "out"};
    one.at_edges = at_edges(values);
    one.name = attention_name(q_type, k_type, a) + " positions " +
               std::to_string(rank.first_position) + " + " + std::to_string(rank.positions) +
               (narrow ? " narrow " : " ") + std::string(values_name(values));
    const double scale = usual_scale(a.channels);
    one.inputs = [=](RandomStream& random) -> Tensors {
      // Not normalised, a result has the absolute error of its scores: scores of a million would be
      // of no use.
      const double size = values == Values::kSpread ? 0x1p-8 : 1;
      const Tensors in = attention_inputs(random, q_type, k_type, a, values, size);
      Tensor maximum;
      if (narrow) {
        // Other ranks' scores may be larger.
        const Tensor others = random_tensor(random, {a.rows, a.heads}, at::kFloat);
        const int64_t length = a.window_index + a.compressed_index;
        maximum = others * 2;
        if (length > 0) {
          const ListedKeys listed =
              listed_keys(in[0], in[1], in[2], in[3], in[4], scale, SumOrder::kCanonical);
          const Tensor own = listed.s.masked_fill(listed.used.logical_not().unsqueeze(1), -1e30)
                                 .amax({-1})
                                 .to(at::kFloat);
          maximum = at::maximum(maximum, own);
        }
      }
      return {in[0], in[1],  long_tensor(owned(rank, rank.first_window, a.window)),
              in[2], in[3],  long_tensor(owned(rank, rank.first_entry, a.compressed)),
              in[4], maximum};
    };
    one.run = [=](const Tensors& in, bool wide) -> Tensors {
      const ops::OptionalTensor maximum =
          in[7].defined() ? ops::OptionalTensor(in[7]) : c10::nullopt;
      const auto [maxima, sums, outs] = ops::attention_partials(
          wide ? in[0].to(at::kDouble) : in[0], in[1], in[2], in[3], in[4], in[5], in[6], maximum,
          scale, rank.first_position, rank.positions);
      return {maxima, sums, outs};
    };
    one.errors = [=](const Tensors& in, const Tensors&, SumOrder order) -> Tensors {
      return partials_error(in, rank, scale, order);
    };
    cases.push_back(one);
  };
  // Ranks 0 of 1, 1 of 2, 2 of 3, 40 of 64, 3 of 5, and none of the positions.
  constexpr Ranked kRanks[] = {
      {0, 64, 0, 0}, {32, 32, 7, 3}, {42, 22, 100, 40}, {40, 1, 4096, 0}, {38, 13, 0, 900}};
  size_t turn = 0;
  for (const at::ScalarType q_type : kTypes) {
    for (const bool narrow : {false, true}) {
      for (const Values values :
           {Values::kOrdinary, Values::kSpread, Values::kTiny, Values::kExtreme, Values::kZeros}) {
        for (int i = 0; i < 2; ++i) {
          const at::ScalarType k_type = turn % 6 == 5 ? at::kFloat : q_type;
          add(q_type, k_type, kAttentionSizes[turn % std::size(kAttentionSizes)],
              kRanks[turn % std::size(kRanks)], narrow, values);
          ++turn;
        }
      }
    }
  }
  add(at::kFloat, at::kFloat, {3, 2, 32, 0, 2, 0, 0, 3}, {17, 0, 0, 0}, false, Values::kOrdinary);
  const auto add_throwing = [&](const std::string& name, const std::vector<int64_t>& positions,
                                int64_t listed, const std::string& text) {
    OpCase one = cases.back();
    one.name = name;
    one.inputs = [=](RandomStream& random) -> Tensors {
      return {random_tensor(random, {2, 3, 32}, at::kFloat),
              random_tensor(random, {2, 32}, at::kFloat),
              long_tensor({0, 1}),
              int_tensor({0, 1, -1, -1}, {2, 2}),
              random_tensor(random, {3, 32}, at::kFloat),
              long_tensor(positions),
              int_tensor({0, listed}, {2, 1}),
              Tensor()};
    };
    one.run = [](const Tensors& in, bool) -> Tensors {
      const auto [maxima, sums, outs] =
          ops::attention_partials(in[0], in[1], in[2], in[3], in[4], in[5], in[6], {}, 0.25, 0, 2);
      return {maxima, sums, outs};
    };
    one.throws = {{.text = text}};
    cases.push_back(one);
  };
  // Positions 0 and 1 are leaves 0 and 32: entries 0 to 7, 256 to 263.
  add_throwing("a key of another rank", {3, 260, 264}, 2,
               "row 1 lists row 2 of compressed, entry 264, which is at tree position 33");
  add_throwing("entries that do not ascend", {3, 260, 260}, 1,
               "compressed_entries must ascend from 0 or more: 260 in row 2");
}

// Bound of attention_merge: sparse_attention's, with the partials for keys. A partial's weight
// e^(M_s - M) has the error of rounded differences, which add up to M - M_s on its way, exp's own
// once a merge, and two roundings a merge; what it weighs is given.
Tensors merge_error(const Tensors& in, SumOrder order) {
  const Tensor m = wide(in[0]), l = wide(in[1]), o = wide(in[2]);
  const auto count = static_cast<double>(m.size(0));
  const int64_t rows = m.size(1), heads = m.size(2), channels = o.size(3);
  if (m.size(0) == 0) {
    return {at::zeros({rows, heads, channels}, at::kDouble), at::zeros({rows, heads}, at::kDouble)};
  }
  const double merges = order == SumOrder::kCanonical ? std::min(kMergeLevels, count) : count;
  const Tensor absent = m.eq(-kInfinity);
  const Tensor top = m.amax({0}).clamp_min(-1e30);  // [T, H]
  const Tensor away = (top - m).masked_fill(absent, 0);
  const Tensor weight = away.neg().exp().masked_fill(absent, 0);
  const Tensor own = away.clamp_max(-kExpUnderflow) * kUnit + merges * kExpUnits * kUnit +
                     gamma(2 * merges);  // [S, T, H]
  const Tensor total = (weight * l).sum({0});
  const double flushes = 4.0 * (count + merges) * kSmallest;
  const Tensor error_l =
      (weight * l * own).sum({0}) * kSecondOrder + l.sum({0}) * (2 * kSmallest) + flushes;
  Tensor d = total, error_d = error_l;
  if (in[3].defined()) {
    const Tensor beyond = wide(in[3]).view({1, heads}) - top;
    d = d + beyond.exp();
    error_d = error_d + beyond.exp() * (beyond.abs().clamp_max(100) * kUnit + kExpUnits * kUnit) +
              kSmallest;
  }
  error_d = error_d + d * kUnit;
  const Tensor magnitude = o.abs().masked_fill(absent.unsqueeze(-1), 0);
  const Tensor carried = (weight.unsqueeze(-1) * magnitude).sum({0});
  const Tensor error_o = ((weight * own).unsqueeze(-1) * magnitude).sum({0}) * kSecondOrder +
                         magnitude.sum({0}) * (2 * kSmallest) + flushes;
  const Tensor share = (error_d / d).unsqueeze(-1);
  const Tensor out =
      (error_o + carried * (share + kUnit)) / d.unsqueeze(-1) * kSecondOrder + kSmallest;
  const Tensor log_l = total.log();
  const Tensor lse =
      (error_l / total + log_l.abs() * (kLogUnits * kUnit) + (top + log_l).abs() * kUnit) *
          kSecondOrder +
      2 * kSmallest;
  const Tensor empty = absent.all(0);
  return {guard(out, at::maximum(carried, carried / d.unsqueeze(-1)))
              .masked_fill(empty.unsqueeze(-1), 0),
          lse.masked_fill(empty, 0)};
}

// attention_merge of partials [S, T, H, ...], of which rows that are absent for all heads are not
// listed but for every other one.
ops::TensorPair merge_listed(const Tensors& in, const std::vector<int64_t>& begins,
                             const std::vector<int64_t>& counts, const ops::OptionalTensor& sink,
                             at::ScalarType type) {
  const int64_t tokens = in[0].size(1);
  const Tensor absent = in[0].eq(-kInfinity).all(2);  // [S, T]
  std::vector<int64_t> listed, rows, row_counts;
  for (int64_t s = 0; s < in[0].size(0); ++s) {
    int64_t& of_subtree = row_counts.emplace_back(0);
    for (int64_t t = 0; t < tokens; ++t) {
      if (absent[s][t].item<bool>() && (s + t) % 2 == 0) continue;
      listed.push_back(s * tokens + t);
      rows.push_back(t);
      ++of_subtree;
    }
  }
  const Tensor number = at::tensor(listed, at::kLong);
  const auto take = [&](size_t i) { return in[i].flatten(0, 1).index_select(0, number); };
  // As ranks hand them over: something stands between the rows; or, of one head, the stride of a
  // dimension of one element is any.
  Tensor out = at::constant_pad_nd(take(2), {0, 2}, 7).slice(2, 0, in[2].size(3));
  if (out.size(1) == 1) {
    out = take(2).transpose(0, 1).clone(at::MemoryFormat::Contiguous).transpose(0, 1);
  }
  return ops::attention_merge(take(0), take(1), out, at::tensor(rows, at::kLong), tokens, begins,
                              counts, row_counts, sink, type);
}

void add_attention_merge(std::vector<OpCase>& cases) {
  using Subtrees = std::vector<Subtree>;
  struct Size {
    int64_t rows, heads, channels;
  };
  const auto add = [&](const Subtrees& subtrees, const Size& size, bool sink, at::ScalarType type,
                       Values values, double spread) {
    OpCase one;
    one.op = "attention_merge";
    one.outputs = {"out", "lse"};
    one.at_edges = at_edges(values);
    const auto count = static_cast<int64_t>(subtrees.size());
    one.name = std::to_string(count) + " partials of " +
               shape_text({size.rows, size.heads, size.channels}) + " to " + dtype_name(type) +
               (sink ? " sink " : " ") + std::string(values_name(values)) + ", maxima times " +
               std::to_string(static_cast<int>(spread));
    one.inputs = [=](RandomStream& random) -> Tensors {
      const std::vector<int64_t> shape = {count, size.rows, size.heads};
      Tensor maximum = random_tensor(random, shape, at::kFloat) * spread;
      Tensor sum = random_tensor(random, shape, at::kFloat).abs() * 8 + 1;
      const Tensor out =
          random_tensor(random, {count, size.rows, size.heads, size.channels}, at::kFloat, values);
      // Of some queries every partial is absent, of some heads a few are.
      for (int64_t s = 0; s < count; ++s) {
        for (int64_t t = 0; t < size.rows; ++t) {
          for (int64_t h = 0; h < size.heads; ++h) {
            if (t % 4 != 2 && !random.one_in(5)) continue;
            maximum[s][t][h] = -kInfinity;
            sum[s][t][h] = 0;
          }
        }
      }
      return {maximum, sum, out,
              sink ? random_tensor(random, {size.heads}, at::kFloat) * 3 : Tensor()};
    };
    one.run = [=](const Tensors& in, bool wide) -> Tensors {
      std::vector<int64_t> begins, counts;
      for (const Subtree& subtree : subtrees) {
        begins.push_back(subtree.begin), counts.push_back(subtree.count);
      }
      const ops::OptionalTensor maybe = in[3].defined() ? ops::OptionalTensor(in[3]) : c10::nullopt;
      const auto [out, lse] = merge_listed(in, begins, counts, maybe, wide ? at::kDouble : type);
      return {out, lse};
    };
    one.errors = [](const Tensors& in, const Tensors&, SumOrder order) -> Tensors {
      return merge_error(in, order);
    };
    cases.push_back(one);
  };
  Subtrees leaves;
  for (int64_t i = 0; i < kCanonicalLeaves; ++i) leaves.push_back({i, 1});
  const Subtrees kForests[] = {leaves,
                               {{0, 64}},
                               {{0, 32}, {32, 32}},
                               {},
                               {{0, 16}, {16, 4}, {20, 1}, {21, 1}, {22, 2}, {24, 8}, {32, 32}}};
  constexpr Size kSizes[] = {{5, 3, 33}, {1, 1, 1},  {4, 17, 32}, {3, 16, 64},
                             {0, 2, 16}, {2, 0, 16}, {6, 4, 50},  {9, 1, 32}};
  size_t turn = 0;
  for (const at::ScalarType type : kTypes) {
    for (const bool sink : {false, true}) {
      for (const Values values :
           {Values::kOrdinary, Values::kSpread, Values::kTiny, Values::kExtreme, Values::kZeros}) {
        for (const double spread : {5.0, 60.0}) {
          add(kForests[turn % std::size(kForests)], kSizes[turn % std::size(kSizes)], sink, type,
              values, spread);
          ++turn;
        }
      }
    }
  }
  const auto add_throwing = [&](const std::string& name, const std::vector<int64_t>& begins,
                                const std::vector<int64_t>& counts,
                                const std::vector<int64_t>& row_counts,
                                const std::vector<int64_t>& rows, const std::string& text) {
    OpCase one = cases.back();
    one.name = name;
    one.inputs = [=](RandomStream& random) -> Tensors {
      return {random_tensor(random, {5, 4}, at::kFloat), random_tensor(random, {5, 4}, at::kFloat),
              random_tensor(random, {5, 4, 16}, at::kFloat), at::tensor(rows, at::kLong)};
    };
    one.run = [=](const Tensors& in, bool) -> Tensors {
      const auto [out, lse] = ops::attention_merge(in[0], in[1], in[2], in[3], 3, begins, counts,
                                                   row_counts, {}, at::kFloat);
      return {out, lse};
    };
    one.throws = {{.text = text}};
    cases.push_back(one);
  };
  const std::vector<int64_t> two = {3, 2}, rows = {0, 1, 2, 0, 2};
  const std::string expected = "begins and counts of disjoint subtrees in tree order expected";
  add_throwing("a subtree too few", {0}, {32}, two, rows, "row_counts of 1 subtrees expected");
  add_throwing("subtrees that overlap", {0, 16}, {32, 16}, two, rows, expected);
  add_throwing("subtrees in another order", {32, 0}, {32, 32}, two, rows, expected);
  add_throwing("no subtree of the tree", {0, 2}, {1, 4}, two, rows, expected);
  add_throwing("a subtree past the tree", {0, 64}, {64, 1}, two, rows, expected);
  const std::string sum = "row_counts must add up to 5";
  add_throwing("a partial of no subtree", {0, 32}, {32, 32}, {3, 1}, rows, sum);
  add_throwing("more rows than partials", {0, 32}, {32, 32}, {3, 3}, rows, sum);
  add_throwing("a negative number of rows", {0, 32}, {32, 32}, {6, -1}, rows, sum);
  add_throwing("a row twice", {0, 32}, {32, 32}, two, {0, 1, 1, 0, 2},
               "row 1 of partial 2, 2 to 2 expected");
  add_throwing("a row past the last", {0, 32}, {32, 32}, two, {0, 1, 2, 0, 3},
               "row 3 of partial 4, 1 to 2 expected");
}

}  // namespace

namespace internal {
void add_attention_cases(std::vector<OpCase>& cases) {
  add_sparse_attention(cases);
  add_attention_maximum(cases);
  add_attention_partials(cases);
  add_attention_merge(cases);
}
}  // namespace internal

}  // namespace deepinfer::conformance
