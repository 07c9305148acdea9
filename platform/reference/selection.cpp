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

Tensor candidate_mask(const Tensor& scores, const Tensor& blocks, int64_t block_size) {
  TORCH_CHECK(
      scores.dim() == 2 && blocks.dim() == 2 && blocks.size(0) == scores.size(0) && block_size > 0,
      "candidate_mask: scores [T, N] and blocks [T, B] expected, found ", scores.sizes(), " and ",
      blocks.sizes());
  const int64_t count = (scores.size(1) + block_size - 1) / block_size;
  // One more column takes the -1 padding.
  const Tensor target =
      at::where(blocks.ge(0), blocks.to(at::kLong), at::full({}, count, at::kLong));
  Tensor keep = at::zeros({scores.size(0), count + 1}, scores.options().dtype(at::kBool));
  keep.scatter_(1, target, true);
  const Tensor by_entry =
      keep.slice(1, 0, count).repeat_interleave(block_size, 1).slice(1, 0, scores.size(1));
  return scores.masked_fill(by_entry.logical_not(), kMinusInfinity);
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
