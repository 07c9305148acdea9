// Reference attention: KV stores, compression pooling, sparse attention with sink and log-sum-exp,
// whole and by ranks.
#include <limits>

#include "platform/fault.h"
#include "platform/partials.h"
#include "platform/reference/reference.h"
#include "platform/shard_map.h"

namespace deepinfer::reference {

using at::Tensor;

namespace {

// The running maximum starts at a finite value, so that an empty row gives 0 and not NaN
// (model.md 3.3).
constexpr double kMaximumFloor = -1e30;
// List entries that share a running maximum in the official kernel (model.md 4.3).
constexpr int64_t kListBlock = 64;
// Gathered keys of one step have at most this many elements.
constexpr int64_t kGatherElements = int64_t{32} << 20;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The keys of both sources, and the list of each query.
struct KeyLists {
  Tensor keys;   // fp64 [1 + N + M, C]; the first is 0, and stands for unused places
  Tensor index;  // int64 [T, L]

  // Queries that are worked on at once.
  int64_t step() const {
    return std::max<int64_t>(kGatherElements / std::max<int64_t>(index.size(1) * keys.size(1), 1),
                             1);
  }
};

KeyLists key_lists(const char* op, const Tensor& q, const Tensor& window,
                   const Tensor& window_index, const Tensor& compressed,
                   const Tensor& compressed_index) {
  const int64_t rows = q.size(0);
  TORCH_CHECK(
      q.dim() == 3 && window.dim() == 2 && window.size(1) == q.size(2) && compressed.dim() == 2 &&
          compressed.size(1) == q.size(2) && window_index.dim() == 2 &&
          window_index.size(0) == rows && compressed_index.dim() == 2 &&
          compressed_index.size(0) == rows,
      op,
      ": q [T, H, C], window [N, C], window_index [T, W], compressed [M, C], compressed_index "
      "[T, K] expected, found ",
      q.sizes(), ", ", window.sizes(), ", ", window_index.sizes(), ", ", compressed.sizes(), ", ",
      compressed_index.sizes());
  const Tensor none = at::zeros({1, q.size(2)}, window.options());
  const Tensor w = window_index.to(at::kLong) + 1, c = compressed_index.to(at::kLong) + 1;
  return {widen(at::cat({none, window, compressed}, 0)),
          at::cat({w, at::where(c.gt(0), c + window.size(0), c)}, 1)};
}

// Queries begin .. end-1 of lists with their keys.
struct Scored {
  Tensor gathered;  // fp64 [T, L, C]
  Tensor scores;    // fp64 [T, H, L], -inf for unused places
};
Scored score(const Tensor& q, const KeyLists& lists, double scale, int64_t begin, int64_t end) {
  const Tensor index = lists.index.slice(0, begin, end);
  const Tensor gathered = lists.keys.index_select(0, index.reshape({-1}))
                              .view({end - begin, index.size(1), lists.keys.size(1)});
  const Tensor scores = at::matmul(widen(q.slice(0, begin, end)), gathered.transpose(1, 2)) * scale;
  return {gathered, scores.masked_fill(index.eq(0).unsqueeze(1), -kInfinity)};
}

struct Attended {
  Tensor out;  // fp64 [T, H, C]
  Tensor lse;  // fp64 [T, H]
};

Attended attend(const Scored& scored, const ops::OptionalTensor& sink, double scale, bool narrow) {
  const Tensor& scores = scored.scores;
  const Tensor& gathered = scored.gathered;
  const int64_t rows = scores.size(0), heads = scores.size(1), length = scores.size(2),
                channels = gathered.size(2);
  const Tensor wide_sink = sink.has_value() ? widen(*sink).view({1, heads, 1}) : Tensor();
  Tensor maximum = at::full({rows, heads, 1}, kMaximumFloor, scores.options());
  if (sink.has_value() && fault("sink_in_the_maximum")) maximum = at::maximum(maximum, wide_sink);
  Tensor sum = at::zeros({rows, heads, 1}, scores.options());
  Tensor out = at::zeros({rows, heads, channels}, scores.options());
  const int64_t block = narrow ? kListBlock : std::max<int64_t>(length, 1);
  for (int64_t begin = 0; begin < length; begin += block) {
    const int64_t end = std::min(length, begin + block);
    const Tensor s = scores.slice(2, begin, end);
    const Tensor new_maximum = at::maximum(maximum, s.amax({2}, /*keepdim=*/true));
    const Tensor rescale = (maximum - new_maximum).exp();
    const Tensor p = (s - new_maximum).exp();
    // The denominator takes the probabilities as they are, the values the rounded ones
    // (model-verified.md 7).
    const Tensor p_values = narrow ? widen(p.to(at::kBFloat16)) : p;
    sum = sum * rescale + p.sum({2}, /*keepdim=*/true);
    out = out * rescale + at::matmul(p_values, gathered.slice(1, begin, end));
    maximum = new_maximum;
  }
  const Tensor lse = (maximum + sum.log()).squeeze(-1);  // log 0 = -inf for an empty row
  Tensor denominator = sum;
  if (sink.has_value() && !fault("sink_missing")) {
    denominator = sum + (wide_sink * (fault("sink_scaled") ? scale : 1.0) - maximum).exp();
  }
  // Without a sink an empty row has denominator 0; its output is 0 by definition.
  return {at::where(sum.gt(0), out / denominator, at::zeros({}, out.options())), lse};
}

}  // namespace

void kv_store(const Tensor& pool, const Tensor& rows, const Tensor& slots) {
  TORCH_CHECK(pool.dim() == 2 && rows.dim() == 2 && rows.size(1) == pool.size(1) &&
                  slots.dim() == 1 && slots.size(0) == rows.size(0) &&
                  pool.scalar_type() == rows.scalar_type(),
              "kv_store: pool [P, C], rows [T, C] of one dtype and slots [T] expected, found ",
              pool.sizes(), " ", pool.scalar_type(), ", ", rows.sizes(), " ", rows.scalar_type(),
              ", ", slots.sizes());
  Tensor target = pool;
  target.index_copy_(0, slots, rows);
}

Tensor compress_pool(const Tensor& values, const Tensor& gates) {
  TORCH_CHECK(values.dim() == 3 && values.sizes() == gates.sizes() &&
                  values.scalar_type() == at::kFloat && gates.scalar_type() == at::kFloat,
              "compress_pool: fp32 values and gates [G, R, C] expected, found ", values.sizes(),
              " and ", gates.sizes());
  return (widen(values) * at::softmax(widen(gates), fault("pool_softmax_over_channels") ? 2 : 1))
      .sum(1)
      .to(at::kFloat);
}

ops::TensorPair sparse_attention(const Tensor& q, const Tensor& window, int64_t /*window_position*/,
                                 const Tensor& window_index, const Tensor& compressed,
                                 const Tensor& compressed_index, const ops::OptionalTensor& sink,
                                 double scale, bool narrow) {
  const KeyLists lists =
      key_lists("sparse_attention", q, window, window_index, compressed, compressed_index);
  TORCH_CHECK(!sink.has_value() || sink->numel() == q.size(1), "sparse_attention: sink must be [",
              q.size(1), "]");
  const int64_t rows = q.size(0);
  std::vector<Tensor> outs, lses;
  for (int64_t begin = 0; begin < rows; begin += lists.step()) {
    const int64_t end = std::min(rows, begin + lists.step());
    const Attended part = attend(score(q, lists, scale, begin, end), sink, scale, narrow);
    outs.push_back(part.out.to(q.scalar_type()));
    lses.push_back(part.lse.to(at::kFloat));
  }
  if (outs.empty()) {
    return {at::zeros_like(q), at::zeros({0, q.size(1)}, q.options().dtype(at::kFloat))};
  }
  return {at::cat(outs, 0), at::cat(lses, 0)};
}

Tensor attention_maximum(const Tensor& q, const Tensor& window, const Tensor& window_index,
                         const Tensor& compressed, const Tensor& compressed_index, double scale) {
  const KeyLists lists =
      key_lists("attention_maximum", q, window, window_index, compressed, compressed_index);
  const int64_t rows = q.size(0), heads = q.size(1);
  Tensor maximum = at::full({rows, heads}, -kInfinity, q.options().dtype(at::kDouble));
  if (lists.index.size(1) == 0) return maximum.to(at::kFloat);
  for (int64_t begin = 0; begin < rows; begin += lists.step()) {
    const int64_t end = std::min(rows, begin + lists.step());
    maximum.slice(0, begin, end).copy_(score(q, lists, scale, begin, end).scores.amax({2}));
  }
  return maximum.to(at::kFloat);
}

namespace {

// Positions in the tree of KV tiles (CANONICAL.md C7.3) of entries with global indices int64 [N].
Tensor tree_positions(const char* what, const Tensor& global, int64_t count) {
  TORCH_CHECK(global.dim() == 1 && global.size(0) == count && global.scalar_type() == at::kLong,
              "attention_partials: ", what, " must be int64 [", count, "], found ",
              global.scalar_type(), " ", global.sizes());
  if (count == 0) return global;
  TORCH_CHECK(global.ge(0).all().item<bool>() &&
                  global.slice(0, 1).gt(global.slice(0, 0, count - 1)).all().item<bool>(),
              "attention_partials: ", what, " must ascend from 0 or more");
  const ShardMap map = ShardMap::interleaved("KV tiles", 1);
  std::vector<int64_t> positions;
  for (int64_t leaf = 0; leaf < map.leaves(); ++leaf) {
    positions.push_back(map.position_of_leaf(leaf));
  }
  const Tensor tile = at::floor_divide(global, kKvTileEntries);
  return at::tensor(positions, at::kLong)
      .to(global.device())
      .index_select(0, tile.remainder(map.leaves()));
}

}  // namespace

ops::TensorTriple attention_partials(const Tensor& q, const Tensor& window,
                                     const Tensor& window_positions, const Tensor& window_index,
                                     const Tensor& compressed, const Tensor& compressed_entries,
                                     const Tensor& compressed_index,
                                     const ops::OptionalTensor& maximum, double scale,
                                     int64_t first_position, int64_t positions) {
  const KeyLists lists =
      key_lists("attention_partials", q, window, window_index, compressed, compressed_index);
  const int64_t rows = q.size(0), heads = q.size(1), channels = q.size(2),
                length = lists.index.size(1);
  TORCH_CHECK(
      first_position >= 0 && positions >= 0 && first_position <= kCanonicalLeaves - positions,
      "attention_partials: ", positions, " tree positions from ", first_position, " of ",
      kCanonicalLeaves);
  TORCH_CHECK(!maximum.has_value() || maximum->sizes() == at::IntArrayRef({rows, heads}),
              "attention_partials: maximum must be [", rows, ", ", heads, "]");
  const Tensor position =
      at::cat({at::full({1}, -1, lists.index.options()),
               tree_positions("window_positions", window_positions, window.size(0)),
               tree_positions("compressed_entries", compressed_entries, compressed.size(0))},
              0)
          .index_select(0, lists.index.reshape({-1}))
          .view({rows, length});  // -1 for unused places
  const auto inside = [&](const Subtree& subtree) {
    return position.ge(subtree.begin).logical_and(position.lt(subtree.begin + subtree.count));
  };
  TORCH_CHECK(inside({first_position, positions}).logical_or(position.lt(0)).all().item<bool>(),
              "attention_partials: a listed key is not at tree positions ", first_position, " to ",
              first_position + positions - 1, ": it belongs to another rank");

  const std::vector<Subtree> subtrees =
      maximal_subtrees({first_position, first_position + positions});
  const auto count = static_cast<int64_t>(subtrees.size());
  const auto options = q.options().dtype(at::kFloat);
  Tensor maxima = at::full({count, rows, heads}, -kInfinity, options);
  Tensor sums = at::zeros({count, rows, heads}, options);
  Tensor outs = at::zeros({count, rows, heads, channels}, options);
  if (length == 0) return {maxima, sums, outs};
  for (int64_t begin = 0; begin < rows; begin += lists.step()) {
    const int64_t end = std::min(rows, begin + lists.step());
    const Scored scored = score(q, lists, scale, begin, end);
    for (int64_t i = 0; i < count; ++i) {
      const Tensor elsewhere = inside(subtrees[i]).slice(0, begin, end).logical_not();  // [T, L]
      const Tensor hidden = elsewhere.unsqueeze(1);
      const Tensor scores = scored.scores.masked_fill(hidden, -kInfinity);
      // The maximum as it is returned, so that the sums belong to it.
      const Tensor m =
          widen(maximum.has_value() ? maximum->slice(0, begin, end).unsqueeze(-1)
                                    : scores.amax({2}, /*keepdim=*/true).to(at::kFloat));
      const Tensor p = (scores - m).exp().masked_fill(hidden, 0);
      const Tensor p_values = maximum.has_value() ? widen(p.to(at::kBFloat16)) : p;
      const Tensor values = scored.gathered.masked_fill(elsewhere.unsqueeze(-1), 0);
      maxima[i]
          .slice(0, begin, end)
          .copy_(m.squeeze(-1).masked_fill(elsewhere.all(1).unsqueeze(1), -kInfinity));
      sums[i].slice(0, begin, end).copy_(p.sum({2}));
      outs[i].slice(0, begin, end).copy_(at::matmul(p_values, values));
    }
  }
  return {maxima, sums, outs};
}

ops::TensorPair attention_merge(const Tensor& maximum, const Tensor& sum, const Tensor& out,
                                const Tensor& rows, int64_t tokens, at::IntArrayRef begins,
                                at::IntArrayRef counts, at::IntArrayRef row_counts,
                                const ops::OptionalTensor& sink, at::ScalarType out_dtype) {
  const auto subtrees = static_cast<int64_t>(
      check_attention_merge(maximum, sum, out, rows, tokens, begins, counts, row_counts, sink)
          .size());
  const int64_t heads = out.size(1), channels = out.size(2);
  if (subtrees == 0) {
    return {at::zeros({tokens, heads, channels}, out.options().dtype(out_dtype)),
            at::full({tokens, heads}, -kInfinity, out.options().dtype(at::kFloat))};
  }
  // A place for every row in every subtree: absent where no partial comes.
  const Tensor m = at::full({subtrees, tokens, heads}, -kInfinity, widen(maximum).options());
  const Tensor l = at::zeros_like(m);
  const Tensor o = at::zeros({subtrees, tokens, heads, channels}, m.options());
  int64_t begin = 0;
  for (int64_t s = 0; s < subtrees; ++s) {
    const int64_t end = begin + row_counts[static_cast<size_t>(s)];
    const Tensor own = rows.slice(0, begin, end);
    m[s].index_copy_(0, own, widen(maximum.slice(0, begin, end)));
    l[s].index_copy_(0, own, widen(sum.slice(0, begin, end)));
    o[s].index_copy_(0, own, widen(out.slice(0, begin, end)));
    begin = end;
  }
  const Tensor absent = m.eq(-kInfinity).logical_and(l.eq(0));
  const Tensor top = m.amax({0});  // [T, H]
  const Tensor weight = (m - top).exp().masked_fill(absent, 0);
  const Tensor total = (l * weight).sum({0});
  const Tensor merged = (o.masked_fill(absent.unsqueeze(-1), 0) * weight.unsqueeze(-1)).sum({0});
  Tensor denominator = total;
  if (sink.has_value() && !fault("sink_missing")) {
    denominator = total + (widen(*sink).view({1, heads}) - top).exp();
  }
  const Tensor empty = absent.all(0);
  return {(merged / denominator.unsqueeze(-1)).masked_fill(empty.unsqueeze(-1), 0).to(out_dtype),
          (top + total.log()).masked_fill(empty, -kInfinity).to(at::kFloat)};
}

}  // namespace deepinfer::reference
