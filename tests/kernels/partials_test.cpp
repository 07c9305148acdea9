// A rank's partial sums (CANONICAL.md C2.6, C8.4), combined by the tree, are the bits of the whole
// at every cut of the 64 tree positions, on every target.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "platform/shard_map.h"
#include "sim/kernels/gemm.h"
#include "sim/kernels/moe_combine.h"
#include "tests/kernels/random_operands.h"
#include "tests/random_seed.h"

namespace deepinfer {
namespace {

constexpr int64_t kPositions = kCanonicalLeaves;
constexpr int64_t kRankCounts[] = {1, 2, 3, 5, 7, 18, 63, 64};

// C1.2, and C2.7 for NaN.
float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
float add(float a, float b) { return flushed(flushed(a) + flushed(b)); }
uint32_t bits_of(float x) { return std::isnan(x) ? 0x7FC00000u : std::bit_cast<uint32_t>(x); }

std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(bits_of(value));
  return bits;
}

// The positions of `ranks` ranks: as a ShardMap cuts them, and anyhow, some of them empty.
std::vector<std::vector<IndexRange>> cuts_into(int64_t ranks, RandomStream& random) {
  const ShardMap map = ShardMap::interleaved("positions", ranks);
  std::vector<IndexRange> even, anyhow;
  std::vector<int64_t> borders = {0, kPositions};
  for (int64_t rank = 0; rank < ranks; ++rank) even.push_back(map.positions_of_rank(rank));
  for (int64_t i = 1; i < ranks; ++i) borders.push_back(random.below(kPositions + 1));
  std::sort(borders.begin(), borders.end());
  for (size_t i = 0; i + 1 < borders.size(); ++i) anyhow.push_back({borders[i], borders[i + 1]});
  return {even, anyhow};
}

// What ranks contribute: subtrees in tree order, and `values` of each.
struct Contributions {
  std::vector<Subtree> subtrees;
  std::vector<std::vector<float>> values;

  void take(IndexRange positions, const std::vector<float>& partials, size_t count) {
    auto from = partials.begin();
    for (const Subtree& subtree : maximal_subtrees(positions)) {
      subtrees.push_back(subtree);
      values.emplace_back(from, from + static_cast<int64_t>(count));
      from += static_cast<int64_t>(count);
    }
    REQUIRE(from == partials.end());
  }

  // All of them added, or without those that `is_absent`.
  template <class IsAbsent>
  std::vector<float> combined(size_t count, const IsAbsent& is_absent) const {
    std::vector<Subtree> present;
    std::vector<std::vector<float>> sums;
    for (size_t i = 0; i < subtrees.size(); ++i) {
      if (is_absent(subtrees[i])) continue;
      present.push_back(subtrees[i]);
      sums.push_back(values[i]);
    }
    const int64_t root = reduce_tree(present, kPositions, [&](int64_t into, int64_t from) {
      for (size_t i = 0; i < count; ++i) {
        float& sum = sums[static_cast<size_t>(into)][i];
        sum = add(sum, sums[static_cast<size_t>(from)][i]);
      }
    });
    return root < 0 ? std::vector<float>(count, -0.0f) : sums[static_cast<size_t>(root)];
  }
};

struct Kind {
  std::string name;
  GemmType a, w;
};
const Kind kKinds[] = {
    {"bf16 x bf16", GemmType::kBf16, GemmType::kBf16},
    {"bf16 x fp32", GemmType::kBf16, GemmType::kFp32},
    {"bf16 x fp8 tiles", GemmType::kBf16, GemmType::kFp8},
    {"bf16 x fp4", GemmType::kBf16, GemmType::kFp4},
    {"fp32 x bf16", GemmType::kFp32, GemmType::kBf16},
    {"fp32 x fp32", GemmType::kFp32, GemmType::kFp32},
    {"fp32 x fp8 tiles", GemmType::kFp32, GemmType::kFp8},
    {"fp32 x fp4", GemmType::kFp32, GemmType::kFp4},
};

// Where the 64 positions begin among the columns: 65 bounds.
std::vector<int64_t> random_bounds(RandomStream& random, uint32_t number) {
  std::vector<int64_t> bounds = {0};
  for (int64_t position = 0; position < kPositions; ++position) {
    int64_t blocks = 0;
    switch (number % 4) {
      case 0:  // slices on the first leaves
        blocks = position < 18 ? 1 : 0;
        break;
      case 1:  // here and there
        blocks = random.one_in(3) ? 1 + random.below(2) : 0;
        break;
      case 2:  // one leaf
        blocks = position == 37 ? 3 : 0;
        break;
      default:  // all
        blocks = 1;
    }
    bounds.push_back(bounds.back() + 32 * blocks);
  }
  // The last block is not whole.
  if (number % 3 == 1 && bounds.back() > 0) {
    const int64_t last = bounds.back();
    std::replace(bounds.begin(), bounds.end(), last, last - 14);
  }
  return bounds;
}

TEST_CASE("a row-parallel product is the same at every cut of its positions") {
  const uint64_t seed = random_seed(0x4060);
  int64_t negative_zeros = 0, empty_subtrees = 0, nans = 0;
  for (const Kind& kind : kKinds) {
    for (uint32_t number = 0; number < 4; ++number) {
      RandomStream random(seed, static_cast<uint64_t>(&kind - kKinds), number);
      const std::vector<int64_t> bounds = random_bounds(random, number);
      const int64_t m = 3, n = 37, k = bounds.back();
      const size_t count = static_cast<size_t>(m * n);
      const Values values = static_cast<Values>((number + (&kind - kKinds)) % kValueKinds);
      const RandomOperand a = random_operand(random, kind.a, false, m, k, values);
      const RandomOperand w =
          random_operand(random, kind.w, kind.w == GemmType::kFp8, n, k, values);
      INFO(kind.name << " case " << number << ", K " << k << ", values " << static_cast<int>(values)
                     << ", seed " << seed);
      const auto has_no_columns = [&](const Subtree& subtree) {
        return bounds[static_cast<size_t>(subtree.begin)] ==
               bounds[static_cast<size_t>(subtree.begin + subtree.count)];
      };
      for (const Target target : available_targets()) {
        INFO(target_name(target));
        std::vector<float> whole(count), parallel(count);
        gemm_subtree_partials(m, n, 0, bounds, a.operand, w.operand, whole.data(), {target, 1});
        gemm_row_parallel(m, n, bounds, a.operand, w.operand, fp32_output(parallel.data(), n),
                          {target, 1});
        REQUIRE(bits_of(whole) == bits_of(parallel));
        for (const int64_t ranks : kRankCounts) {
          RandomStream cut_random(seed, 1000 + ranks, number);
          for (const std::vector<IndexRange>& cut : cuts_into(ranks, cut_random)) {
            Contributions all;
            for (const IndexRange& own : cut) {
              const auto first = static_cast<size_t>(own.begin),
                         last = static_cast<size_t>(own.end);
              const int64_t column = bounds[first];
              std::vector<int64_t> offsets(bounds.begin() + own.begin,
                                           bounds.begin() + own.end + 1);
              for (int64_t& offset : offsets) offset -= column;
              const bool empty = bounds[first] == bounds[last];
              std::vector<float> partials(maximal_subtrees(own).size() * count, -1.0f);
              gemm_subtree_partials(m, n, own.begin, offsets,
                                    empty ? a.operand : a.operand.from_column(column),
                                    empty ? w.operand : w.operand.from_column(column),
                                    partials.data(), {target, 1 + static_cast<int>(ranks % 2)});
              all.take(own, partials, count);
            }
            INFO(ranks << " ranks");
            REQUIRE(bits_of(all.combined(count, has_no_columns)) == bits_of(whole));
            REQUIRE(bits_of(all.combined(count, [](const Subtree&) { return false; })) ==
                    bits_of(whole));
            for (size_t i = 0; i < all.subtrees.size(); ++i) {
              if (!has_no_columns(all.subtrees[i])) continue;
              ++empty_subtrees;
              REQUIRE(bits_of(all.values[i]) ==
                      std::vector<uint32_t>(count, std::bit_cast<uint32_t>(-0.0f)));
            }
          }
        }
        for (const float value : whole) {
          negative_zeros += std::bit_cast<uint32_t>(value) == std::bit_cast<uint32_t>(-0.0f);
          nans += std::isnan(value);
        }
      }
    }
  }
  std::cout << empty_subtrees << " subtrees without columns, " << negative_zeros << " sums of -0, "
            << nans << " NaN\n";
  CHECK(empty_subtrees > 1000);
  CHECK(nans > 0);
}

TEST_CASE("partials of no positions, rows or columns") {
  const float x = 1;
  float partial = -1;
  for (const Target target : available_targets()) {
    gemm_subtree_partials(1, 1, 64, std::vector<int64_t>{0}, fp32_operand(&x, 1),
                          fp32_operand(&x, 1), &partial, {target, 1});
    gemm_subtree_partials(0, 1, 0, std::vector<int64_t>{0, 1}, fp32_operand(&x, 1),
                          fp32_operand(&x, 1), &partial, {target, 1});
    CHECK(partial == -1);
    float two[2] = {-1, -1};
    gemm_subtree_partials(1, 1, 1, std::vector<int64_t>{0, 0, 0}, fp32_operand(&x, 0),
                          fp32_operand(&x, 0), two, {target, 1});
    for (const float found : two) CHECK(bits_of(found) == std::bit_cast<uint32_t>(-0.0f));
  }
}

// --- Sums of experts.

// The outputs of some experts in a row, and where the tokens are.
struct Routed {
  RandomOperand outputs;
  std::vector<int64_t> rows, offsets = {0};
};

ExpertOutputs view_of(const Routed& routed, int64_t tokens, int64_t columns, int64_t experts) {
  const GemmOperand& y = routed.outputs.operand;
  ExpertOutputs from;
  from.outputs = {y.type == GemmType::kFp32 ? ElementType::kFp32 : ElementType::kBf16, y.data,
                  static_cast<int64_t>(routed.rows.size()), columns, y.row_stride};
  from.rows = routed.rows.data();
  from.offsets = routed.offsets;
  from.tokens = tokens;
  from.experts = experts;
  return from;
}

float element(const RowView& view, int64_t row, int64_t column) {
  return view.type == ElementType::kFp32
             ? view.row<float>(row)[column]
             : std::bit_cast<float>(static_cast<uint32_t>(view.row<uint16_t>(row)[column]) << 16);
}

// An output's bits: fp32, or bf16 in the lower half (C1.4).
uint32_t rounded(float x, ElementType type) {
  const uint32_t bits = bits_of(x);
  if (type == ElementType::kFp32) return bits;
  return std::isnan(x) ? 0x7FC0 : (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
}

// C8.4 literally: the routed sum of one element, level by level.
float literal_routed(const ExpertOutputs& from, int64_t token, int64_t column) {
  std::vector<std::optional<float>> level(kPositions);
  for (size_t e = 0; e + 1 < from.offsets.size(); ++e) {
    auto& leaf = level[e * kPositions / static_cast<size_t>(from.experts)];
    for (int64_t row = from.offsets[e]; row < from.offsets[e + 1]; ++row) {
      if (from.rows[row] != token) continue;
      const float y = element(from.outputs, row, column);
      leaf = leaf ? add(*leaf, y) : y;
    }
  }
  while (level.size() > 1) {
    std::vector<std::optional<float>> next;
    for (size_t i = 0; i < level.size(); i += 2) {
      next.push_back(level[i] && level[i + 1] ? add(*level[i], *level[i + 1])
                     : level[i]               ? level[i]
                                              : level[i + 1]);
    }
    level = next;
  }
  return level[0].value_or(-0.0f);
}

TEST_CASE("sums of experts: as C8.4 says, and the same at every cut of the positions") {
  const uint64_t seed = random_seed(0x4061);
  int64_t subnormal = 0, negative_zeros = 0, nans = 0;
  for (uint32_t number = 0; number < 300; ++number) {
    RandomStream random(seed, 7, number);
    constexpr int64_t kExperts[] = {1, 8, 9, 64, 100, 384};
    const int64_t experts = kExperts[number % std::size(kExperts)];
    const int64_t tokens = 1 + random.below(6), columns = 1 + random.below(40);
    const bool bf16 = number % 2 == 0;
    const Values values = static_cast<Values>(number / 12 % kValueKinds);
    Routed routed;
    for (int64_t e = 0; e < experts; ++e) {
      for (int64_t token = 1; token < tokens; ++token) {  // token 0 has none
        if (random.below(experts) < 6) routed.rows.push_back(token);
      }
      routed.offsets.push_back(static_cast<int64_t>(routed.rows.size()));
    }
    const GemmType gemm_type = bf16 ? GemmType::kBf16 : GemmType::kFp32;
    routed.outputs = random_operand(random, gemm_type, false,
                                    static_cast<int64_t>(routed.rows.size()), columns, values);
    if (values == Values::kSpecial && !routed.rows.empty()) {  // a NaN that is not canonical
      if (bf16) routed.outputs.bf16[0] = 0xFFC1;
      if (!bf16) routed.outputs.fp32[0] = std::bit_cast<float>(0xFFC00001u);
    }
    const RandomOperand shared_rows =
        random_operand(random, gemm_type, false, tokens, columns, values);
    const ExpertOutputs from = view_of(routed, tokens, columns, experts);
    const ElementType type = from.outputs.type;
    const RowView shared = {type, shared_rows.operand.data, tokens, columns,
                            shared_rows.operand.row_stride};
    INFO("case " << number << ": " << experts << " experts, " << tokens << " tokens, " << columns
                 << " columns, values " << static_cast<int>(values) << ", seed " << seed);

    // [with the shared expert or without][token, column]
    std::vector<uint32_t> expected[2], found[2];
    for (const bool with_shared : {false, true}) {
      std::vector<float> wide(static_cast<size_t>(tokens * columns));
      std::vector<uint16_t> narrow(wide.size());
      const MutableRowView out =
          bf16 ? view(narrow.data(), tokens, columns) : view(wide.data(), tokens, columns);
      moe_combine(from, with_shared ? std::optional(shared) : std::nullopt, out);
      for (int64_t token = 0; token < tokens; ++token) {
        for (int64_t column = 0; column < columns; ++column) {
          const float sum = add(literal_routed(from, token, column),
                                with_shared ? element(shared, token, column) : 0.0f);
          expected[with_shared].push_back(rounded(sum, type));
          const size_t at = static_cast<size_t>(token * columns + column);
          found[with_shared].push_back(bf16 ? narrow[at] : std::bit_cast<uint32_t>(wide[at]));
          nans += std::isnan(sum);
          negative_zeros += with_shared && bits_of(sum) == std::bit_cast<uint32_t>(-0.0f);
        }
      }
      REQUIRE(found[with_shared] == expected[with_shared]);
    }

    const size_t count = static_cast<size_t>(tokens * columns);
    for (const int64_t ranks : kRankCounts) {
      for (const std::vector<IndexRange>& cut : cuts_into(ranks, random)) {
        Contributions all;
        std::vector<bool> has_expert(static_cast<size_t>(kPositions));
        for (const IndexRange& own : cut) {
          ExpertOutputs here = from;
          std::vector<int64_t> offsets;
          for (int64_t e = 0; e < experts; ++e) {
            const int64_t leaf = e * kPositions / experts;
            if (!own.contains(leaf)) continue;
            has_expert[static_cast<size_t>(leaf)] = true;
            if (offsets.empty()) {
              here.first_expert = e;
              offsets.push_back(from.offsets[static_cast<size_t>(e)]);
            }
            offsets.push_back(from.offsets[static_cast<size_t>(e) + 1]);
          }
          if (offsets.empty()) offsets.push_back(0);
          const int64_t first_row = offsets.front();
          for (int64_t& offset : offsets) offset -= first_row;
          here.offsets = offsets;
          here.rows += first_row;
          here.outputs.rows = offsets.back();
          if (offsets.back() > 0) {
            here.outputs.data =
                bf16 ? static_cast<const void*>(from.outputs.row<uint16_t>(first_row))
                     : from.outputs.row<float>(first_row);
          }
          std::vector<float> partials(maximal_subtrees(own).size() * count, -1.0f);
          moe_partials(here, own, partials.data());
          for (const float partial : partials) {
            subnormal += partial != 0 && std::fabs(partial) < 0x1p-126f;
          }
          all.take(own, partials, count);
        }
        const auto without_experts = [&](const Subtree& subtree) {
          const auto begin = has_expert.begin() + subtree.begin;
          return std::find(begin, begin + subtree.count, true) == begin + subtree.count;
        };
        for (size_t i = 0; i < all.subtrees.size(); ++i) {
          if (!without_experts(all.subtrees[i])) continue;
          REQUIRE(bits_of(all.values[i]) ==
                  std::vector<uint32_t>(count, std::bit_cast<uint32_t>(-0.0f)));
        }
        INFO(ranks << " ranks");
        for (const bool skip : {false, true}) {
          const std::vector<float> sum = all.combined(
              count, [&](const Subtree& subtree) { return skip && without_experts(subtree); });
          for (const bool with_shared : {false, true}) {
            std::vector<uint32_t> finished;
            for (int64_t i = 0; i < static_cast<int64_t>(count); ++i) {
              const float other = with_shared ? element(shared, i / columns, i % columns) : 0.0f;
              finished.push_back(rounded(add(sum[static_cast<size_t>(i)], other), type));
            }
            REQUIRE(finished == expected[with_shared]);
          }
        }
      }
    }
  }
  std::cout << subnormal << " subnormal partials, " << negative_zeros << " sums of -0, " << nans
            << " NaN\n";
  CHECK(subnormal > 0);
  CHECK(negative_zeros > 0);
  CHECK(nans > 0);
}

TEST_CASE("experts beside their positions are an assertion") {
  const std::vector<float> y(4);
  const int64_t rows[] = {0, 1};
  const std::vector<int64_t> offsets = {0, 1, 2};
  ExpertOutputs from;
  from.outputs = view(y.data(), 2, 2);
  from.rows = rows;
  from.offsets = offsets;
  from.tokens = 2;
  from.first_expert = 3;
  from.experts = 8;  // experts 3 and 4 are on positions 24 and 32
  std::vector<float> partials(2 * 4);
  CHECK_NOTHROW(moe_partials(from, {24, 33}, partials.data()));
  CHECK_THROWS(moe_partials(from, {24, 32}, partials.data()));
  CHECK_THROWS(moe_partials(from, {25, 33}, partials.data()));
}

}  // namespace
}  // namespace deepinfer
