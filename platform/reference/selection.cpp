// Reference indexer scores, top-k, candidate blocks and greedy sampling: exact orders, ties by
// index.
#include <limits>

#include "platform/fault.h"
#include "platform/reference/reference.h"

namespace deepinfer::reference {

using at::Tensor;

namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

void check_no_nan(const char* op, const Tensor& scores) {
  if (scores.is_meta()) return;
  TORCH_CHECK(!scores.isnan().any().item<bool>(), op, ": a score is NaN");
}

void check_blocks(const char* op, const Tensor& blocks, int64_t count) {
  TORCH_CHECK(!blocks.lt(0).logical_or(blocks.ge(count)).any().item<bool>(), op,
              ": a block lies outside 0 .. ", count - 1);
}

// The k largest entries of each row that are above -inf: larger first, ties to the smaller index.
// int32 [T, k], ascending, -1 padded.
Tensor select_largest(const Tensor& scores, int64_t k) {
  const int64_t width = scores.size(1);
  const int64_t kept = std::min(k, width);
  const bool flip =
      fault("ties_to_larger_index");  // sort a mirrored row: equal scores keep the mirrored order
  auto [sorted, order] =
      at::sort(flip ? scores.flip(1) : scores, /*stable=*/true, /*dim=*/1, /*descending=*/true);
  if (flip) order = width - 1 - order;
  const Tensor valid = sorted.slice(1, 0, kept).ne(kMinusInfinity);
  // Unused places sort to the end as `width`, then become -1.
  const Tensor index =
      at::where(valid, order.slice(1, 0, kept), at::full({}, width, order.options()));
  const Tensor ascending = std::get<0>(at::sort(index, 1));
  const Tensor marked =
      at::where(ascending.lt(width), ascending, at::full({}, -1, ascending.options())).to(at::kInt);
  if (kept == k) return marked;
  return at::cat({marked, at::full({scores.size(0), k - kept}, -1, marked.options())}, 1);
}

}  // namespace

Tensor index_score(const Tensor& q, const Tensor& weights, const Tensor& keys,
                   const Tensor& visible, bool narrow) {
  TORCH_CHECK(q.dim() == 3 && weights.dim() == 2 && weights.size(0) == q.size(0) &&
                  weights.size(1) == q.size(1) && keys.dim() == 2 && keys.size(1) == q.size(2) &&
                  visible.numel() == q.size(0),
              "index_score: q [T, H, C], weights [T, H], keys [N, C], visible [T] expected, found ",
              q.sizes(), ", ", weights.sizes(), ", ", keys.sizes(), ", ", visible.sizes());
  const auto round = [narrow](const Tensor& x) { return narrow ? widen(x.to(at::kBFloat16)) : x; };
  Tensor dots = round(at::matmul(widen(q), widen(keys).t()));  // [T, H, N]
  if (!fault("index_relu_missing")) dots = dots.relu();
  const Tensor scores = round(round(dots * widen(weights).unsqueeze(-1)).sum(1)).to(at::kFloat);
  const Tensor entry = at::arange(keys.size(0), visible.options());
  return scores.masked_fill(entry.unsqueeze(0).ge(visible.unsqueeze(1)), kMinusInfinity);
}

Tensor topk_select(const Tensor& scores, int64_t k) {
  TORCH_CHECK(scores.dim() == 2 && k >= 0, "topk_select: scores must be [T, N] and k >= 0, found ",
              scores.sizes(), " and ", k);
  check_no_nan("topk_select", scores);
  if (fault("topk_one_fewer") && k > 0) {
    return at::constant_pad_nd(select_largest(scores, k - 1), {0, 1}, -1);
  }
  return select_largest(scores, k);
}

Tensor topk_merge(const Tensor& scores, const Tensor& indices, int64_t k) {
  TORCH_CHECK(scores.dim() == 2 && indices.sizes() == scores.sizes() &&
                  indices.scalar_type() == at::kInt && k >= 0,
              "topk_merge: scores and int32 indices [T, N] and k >= 0 expected, found ",
              scores.sizes(), ", ", indices.scalar_type(), " ", indices.sizes(), " and ", k);
  TORCH_CHECK(!indices.lt(-1).any().item<bool>(), "topk_merge: an index is below -1");
  const int64_t width = scores.size(1);
  if (width == 0) return at::full({scores.size(0), k}, -1, indices.options());
  // In the order of indices ties go to the first. Unused places come last.
  const int64_t unused = int64_t{1} << 32;
  const Tensor wide = indices.to(at::kLong);
  const auto [index, order] =
      at::sort(at::where(wide.ge(0), wide, at::full({}, unused, wide.options())), /*dim=*/1);
  const Tensor repeated = index.slice(1, 1).eq(index.slice(1, 0, width - 1));
  TORCH_CHECK(!repeated.logical_and(index.slice(1, 1).lt(unused)).any().item<bool>(),
              "topk_merge: an index is there twice");
  const Tensor score = scores.gather(1, order).masked_fill(index.eq(unused), kMinusInfinity);
  check_no_nan("topk_merge", score);
  const Tensor place = select_largest(score, k).to(at::kLong);
  return at::where(place.ge(0), index.gather(1, place.clamp_min(0)), place).to(at::kInt);
}

Tensor candidate_blocks(const Tensor& scores, const Tensor& visible, int64_t block_size,
                        int64_t max_blocks) {
  TORCH_CHECK(
      scores.dim() == 2 && visible.numel() == scores.size(0) && block_size > 0 && max_blocks > 0,
      "candidate_blocks: scores [T, N], visible [T], positive sizes expected, found ",
      scores.sizes(), ", ", visible.sizes(), ", ", block_size, ", ", max_blocks);
  check_no_nan("candidate_blocks", scores);
  const int64_t blocks = (scores.size(1) + block_size - 1) / block_size;
  const Tensor padded =
      at::constant_pad_nd(scores, {0, blocks * block_size - scores.size(1)}, kMinusInfinity);
  Tensor best = padded.view({scores.size(0), blocks, block_size}).amax({2});
  if (!fault("newest_candidate_block_not_pinned")) {
    // The block of the newest visible entry is kept whatever its score, so it lies above all
    // others, infinite ones too; a row that sees nothing pins none.
    best = widen(best).clamp_max(std::numeric_limits<double>::max());
    const Tensor newest = at::floor_divide(visible - 1, block_size);
    const Tensor block = at::arange(blocks, visible.options());
    const Tensor pinned =
        block.unsqueeze(0).eq(newest.unsqueeze(1)).logical_and(visible.gt(0).unsqueeze(1));
    best = best.masked_fill(pinned, std::numeric_limits<double>::infinity());
  }
  return select_largest(best, max_blocks);
}

Tensor candidate_mask(const Tensor& scores, const Tensor& blocks, const Tensor& column_blocks) {
  TORCH_CHECK(scores.dim() == 2 && blocks.dim() == 2 && blocks.size(0) == scores.size(0) &&
                  column_blocks.dim() == 1 && column_blocks.size(0) == scores.size(1),
              "candidate_mask: scores [T, N], blocks [T, B] and column_blocks [N] expected, found ",
              scores.sizes(), ", ", blocks.sizes(), " and ", column_blocks.sizes());
  if (scores.size(1) == 0) return scores.clone();
  check_blocks("candidate_mask", column_blocks, std::numeric_limits<int32_t>::max());
  const int64_t count = column_blocks.max().item<int64_t>() + 1;
  // One more column takes the -1 padding, and blocks past those of the columns.
  const Tensor listed = blocks.to(at::kLong);
  const Tensor target = at::where(listed.ge(0).logical_and(listed.lt(count)), listed,
                                  at::full({}, count, listed.options()));
  Tensor keep = at::zeros({scores.size(0), count + 1}, scores.options().dtype(at::kBool));
  keep.scatter_(1, target, true);
  return scores.masked_fill(keep.index_select(1, column_blocks).logical_not(), kMinusInfinity);
}

Tensor block_maxima(const Tensor& scores, const Tensor& blocks, int64_t count) {
  TORCH_CHECK(scores.dim() == 2 && blocks.dim() == 1 && blocks.size(0) == scores.size(1) &&
                  blocks.scalar_type() == at::kLong && count >= 0,
              "block_maxima: scores [T, N], int64 blocks [N] and count >= 0 expected, found ",
              scores.sizes(), ", ", blocks.sizes(), ", ", count);
  check_blocks("block_maxima", blocks, count);
  check_no_nan("block_maxima", scores);
  const int64_t width = scores.size(1);
  if (width == 0) return at::full({scores.size(0), count}, kMinusInfinity, scores.options());
  // The columns of each block, side by side: [count, longest], filled up with one of -inf.
  const Tensor order =
      std::get<1>(at::sort(blocks, /*stable=*/true, /*dim=*/0, /*descending=*/false));
  const Tensor sizes = at::bincount(blocks, {}, count);
  const Tensor first = sizes.cumsum(0) - sizes;
  const Tensor slot = at::arange(sizes.max().item<int64_t>(), sizes.options()).unsqueeze(0);
  const Tensor place = (first.unsqueeze(1) + slot).clamp_max(width - 1);
  const Tensor column = at::where(slot.lt(sizes.unsqueeze(1)),
                                  order.index_select(0, place.reshape({-1})).view(place.sizes()),
                                  at::full({}, width, order.options()));
  const Tensor best = at::constant_pad_nd(scores, {0, 1}, kMinusInfinity)
                          .index_select(1, column.reshape({-1}))
                          .view({scores.size(0), count, slot.size(1)})
                          .amax({2});
  return best.masked_fill(best.eq(0), 0.0);
}

Tensor greedy_sample(const Tensor& logits) {
  TORCH_CHECK(logits.dim() == 2 && logits.size(1) > 0,
              "greedy_sample: logits must be [T, V], found ", logits.sizes());
  check_no_nan("greedy_sample", logits);
  // argmax does not promise which of several equal values it returns; the first place of the
  // maximum does.
  const Tensor at_maximum = logits.eq(logits.amax({1}, /*keepdim=*/true));
  const Tensor index =
      at::arange(logits.size(1), logits.options().dtype(at::kLong)).expand_as(logits);
  return at::where(at_maximum, index, at::full({}, logits.size(1), index.options())).amin({1});
}

}  // namespace deepinfer::reference
