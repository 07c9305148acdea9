// What ranks compute from their shares, put together, is what one rank computes from the whole: bit
// for bit, through the ops, on every kernel target.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "golden/conformance/case_values.h"
#include "platform/formats.h"
#include "platform/ops.h"
#include "platform/shard_map.h"
#include "sim/kernels/float_scope.h"
#include "sim/kernels/target.h"
#include "sim/ops/host_ops.h"
#include "tests/random_seed.h"

namespace deepinfer::conformance {
namespace {

using at::Tensor;

constexpr int64_t kRankCounts[] = {1, 2, 3, 5, 7, 18, 63, 64};

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         std::memcmp(a.contiguous().data_ptr(), b.contiguous().data_ptr(), a.nbytes()) == 0;
}

// to += from, in canonical arithmetic (CANONICAL.md C1.2).
[[gnu::noinline]] void add_values(float* to, const float* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = to[i] + from[i];
}
void add_to(const Tensor& to, const Tensor& from) {
  const FloatScope scope;
  add_values(to.data_ptr<float>(), from.data_ptr<float>(), to.numel());
}

// Partials of all ranks, combined by the tree.
class Tree {
 public:
  // partials [S, ...] of the positions; those of subtrees that `is_absent` are left out.
  template <class IsAbsent>
  void take(IndexRange positions, const Tensor& partials, const IsAbsent& is_absent) {
    const std::vector<Subtree> subtrees = maximal_subtrees(positions);
    REQUIRE(partials.size(0) == static_cast<int64_t>(subtrees.size()));
    for (size_t i = 0; i < subtrees.size(); ++i) {
      if (is_absent(subtrees[i])) continue;
      present_.push_back(subtrees[i]);
      sums_.push_back(partials[static_cast<int64_t>(i)].contiguous().clone());
    }
  }
  Tensor root() const {
    const int64_t root =
        reduce_tree(present_, kCanonicalLeaves, [this](int64_t into, int64_t from) {
          add_to(sums_[static_cast<size_t>(into)], sums_[static_cast<size_t>(from)]);
        });
    REQUIRE(root >= 0);
    return sums_[static_cast<size_t>(root)];
  }

 private:
  std::vector<Subtree> present_;
  std::vector<Tensor> sums_;
};

struct Weight {
  std::string name;
  Tensor values;
  ops::OptionalTensor scales;
};

std::vector<Weight> weights_of(RandomStream& random, int64_t n, int64_t k) {
  const int64_t tiles = (n + kScaleBlock - 1) / kScaleBlock,
                blocks = (k + kScaleBlock - 1) / kScaleBlock;
  return {{"bf16", random_tensor(random, {n, k}, at::kBFloat16), {}},
          {"fp32", random_tensor(random, {n, k}, at::kFloat), {}},
          {"fp8", random_e4m3(random, {n, k}),
           random_scales(random, {tiles, blocks}, Values::kOrdinary)},
          {"fp4", random_integers(random, {n, k / 2}, 256, at::kByte),
           random_scales(random, {n, blocks}, Values::kOrdinary)}};
}

TEST_CASE("linear_partials of any number of ranks") {
  install_host_kernels();
  RandomStream random(random_seed(0x5060), "linear_partials", 0);
  // 40 slices of 32 columns, the last shorter, on leaves as a contiguous axis has them.
  const int64_t slices = 40, k = slices * kScaleBlock - 6, n = 45;
  const ShardMap whole_map = ShardMap::contiguous("columns", slices, 1);
  std::vector<int64_t> bounds;
  for (int64_t position = 0, slice = 0; position <= kCanonicalLeaves; ++position) {
    while (slice < slices && whole_map.leaf_of_unit(slice) < position) ++slice;
    bounds.push_back(std::min(slice * kScaleBlock, k));
  }
  const auto none = [&](const Subtree& s) {
    return bounds[static_cast<size_t>(s.begin)] == bounds[static_cast<size_t>(s.begin + s.count)];
  };
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Tensor x = random_tensor(random, {4, k}, type, Values::kSpread);
    for (const Weight& weight : weights_of(random, n, k)) {
      for (const Target target : available_targets()) {
        const TargetScope scope(target);
        const Tensor whole = ops::linear_partials(x, weight.values, weight.scales, 0, 0, bounds);
        REQUIRE(whole.sizes() == at::IntArrayRef({1, 4, n}));
        for (const int64_t ranks : kRankCounts) {
          INFO(dtype_name(type) << " x " << weight.name << " on " << target_name(target) << ", "
                                << ranks << " ranks");
          Tree added, skipped;
          const ShardMap map = ShardMap::contiguous("columns", slices, ranks);
          for (int64_t rank = 0; rank < ranks; ++rank) {
            const IndexRange own = map.positions_of_rank(rank);
            const int64_t left = bounds[static_cast<size_t>(own.begin)],
                          right = bounds[static_cast<size_t>(own.end)];
            std::vector<int64_t> own_bounds(bounds.begin() + own.begin,
                                            bounds.begin() + own.end + 1);
            for (int64_t& bound : own_bounds) bound -= left;
            // Past the last column there is nothing to name.
            const Tensor partials =
                ops::linear_partials(x.slice(1, left, right), weight.values, weight.scales,
                                     left == right ? 0 : left, own.begin, own_bounds);
            added.take(own, partials, [](const Subtree&) { return false; });
            skipped.take(own, partials, none);
          }
          REQUIRE(same_bits(added.root(), whole[0]));
          REQUIRE(same_bits(skipped.root(), whole[0]));
        }
      }
    }
  }
}

TEST_CASE("moe_partials of any number of ranks, and the shared expert, are moe_combine") {
  install_host_kernels();
  const uint64_t seed = random_seed(0x5061);
  for (uint32_t number = 0; number < 12; ++number) {
    RandomStream random(seed, "moe_partials", number);
    constexpr int64_t kExperts[] = {9, 64, 384};
    const int64_t experts = kExperts[number % 3], tokens = 5, hidden = 33;
    const at::ScalarType type = number % 2 == 0 ? at::kFloat : at::kBFloat16;
    const Values values = number < 6 ? Values::kSpread : Values::kTiny;
    std::vector<int64_t> rows, offsets = {0};
    for (int64_t expert = 0; expert < experts; ++expert) {
      for (int64_t token = 1; token < tokens; ++token) {  // token 0 has none
        if (random.below(experts) < 6) rows.push_back(token);
      }
      offsets.push_back(static_cast<int64_t>(rows.size()));
    }
    const Tensor outputs = random_tensor(random, {offsets.back(), hidden}, type, values);
    const Tensor shared = random_tensor(random, {tokens, hidden}, type, values);
    const Tensor all_rows = long_tensor(rows);
    for (const int64_t ranks : kRankCounts) {
      INFO("case " << number << ", " << ranks << " ranks");
      const ShardMap map = ShardMap::contiguous("experts", experts, ranks);
      Tree tree;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const std::vector<int64_t> own = map.units_of_rank(rank);
        const IndexRange positions = map.positions_of_rank(rank);
        const int64_t first = own.empty() ? 0 : own.front();
        const auto begin = offsets.begin() + first;
        std::vector<int64_t> here(begin, begin + static_cast<int64_t>(own.size()) + 1);
        const int64_t first_row = here.front(), last_row = here.back();
        for (int64_t& offset : here) offset -= first_row;
        tree.take(positions,
                  ops::moe_partials(outputs.slice(0, first_row, last_row),
                                    all_rows.slice(0, first_row, last_row), long_tensor(here),
                                    tokens, first, experts, positions.begin, positions.count()),
                  [](const Subtree&) { return false; });
      }
      const Tensor routed = tree.root();
      for (const bool with_shared : {false, true}) {
        const Tensor sum = routed.clone();
        add_to(sum, with_shared ? shared.to(at::kFloat) : at::zeros_like(sum));
        const ops::OptionalTensor maybe = with_shared ? ops::OptionalTensor(shared) : c10::nullopt;
        REQUIRE(same_bits(sum.to(type), ops::moe_combine(outputs, all_rows, long_tensor(offsets),
                                                         maybe, tokens)));
      }
    }
  }
}

// Columns of each rank: tiles of 8 on interleaved leaves.
std::vector<Tensor> columns_of_ranks(int64_t columns, int64_t ranks) {
  constexpr int64_t kTile = 8;
  const ShardMap map = ShardMap::interleaved("entries", ranks);
  std::vector<std::vector<int64_t>> own(static_cast<size_t>(ranks));
  for (int64_t j = 0; j < columns; ++j) {
    own[static_cast<size_t>(map.rank_of_unit(j / kTile))].push_back(j);
  }
  std::vector<Tensor> made;
  for (const std::vector<int64_t>& places : own) made.push_back(long_tensor(places));
  return made;
}

TEST_CASE("an indexer's row in parts: candidate blocks, mask and top-k are those of the whole") {
  install_host_kernels();
  const uint64_t seed = random_seed(0x5062);
  uint32_t number = 0;
  for (const int64_t columns : {1, 70, 1000}) {
    for (const int64_t ranks : kRankCounts) {
      INFO(columns << " columns, " << ranks << " ranks");
      RandomStream random(seed, "selection", number++);
      const int64_t rows = 5, block = 4, kept = 12, k = 24;
      const Tensor entry = at::arange(columns, at::kLong),
                   block_of = at::floor_divide(entry, block);
      const Tensor visible = random_integers(random, {rows}, columns + 1);
      const Tensor scores = random_tensor(random, {rows, columns}, at::kFloat, Values::kIntegers)
                                .masked_fill(entry.unsqueeze(0).ge(visible.unsqueeze(1)),
                                             -std::numeric_limits<double>::infinity());
      const Tensor blocks = ops::candidate_blocks(scores, visible, block, kept);
      const Tensor chosen = ops::topk_select(ops::candidate_mask(scores, blocks, block_of), k);

      const std::vector<Tensor> shares = columns_of_ranks(columns, ranks);
      const int64_t count = (columns + block - 1) / block;
      Tensor maxima = at::full({rows, count}, -std::numeric_limits<double>::infinity(), at::kFloat);
      for (const Tensor& own : shares) {
        maxima = at::maximum(maxima, ops::block_maxima(scores.index_select(1, own),
                                                       block_of.index_select(0, own), count));
      }
      const Tensor visible_blocks = at::floor_divide(visible + (block - 1), block);
      const Tensor together = ops::candidate_blocks(maxima, visible_blocks, 1, kept);
      REQUIRE(same_bits(together, blocks));

      std::vector<Tensor> pair_scores, pair_indices;
      for (const Tensor& own : shares) {
        const Tensor masked = ops::candidate_mask(scores.index_select(1, own), together,
                                                  block_of.index_select(0, own));
        const Tensor best = ops::topk_select(masked, k).to(at::kLong);
        if (own.numel() == 0) {
          CHECK(best.eq(-1).all().item<bool>());
          continue;
        }
        const Tensor place = best.clamp_min(0);
        const Tensor index = own.index_select(0, place.reshape({-1})).view(place.sizes());
        pair_scores.push_back(masked.gather(1, place));
        pair_indices.push_back(at::where(best.ge(0), index, best).to(at::kInt));
      }
      REQUIRE(
          same_bits(ops::topk_merge(at::cat(pair_scores, 1), at::cat(pair_indices, 1), k), chosen));
    }
  }
}

}  // namespace
}  // namespace deepinfer::conformance
