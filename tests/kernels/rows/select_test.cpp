// Index scores and selections against their paragraphs (CANONICAL.md C7.2, C8), on every target.
#include "sim/kernels/select.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/kernels/rows/literal.h"
#include "tests/random_seed.h"

namespace deepinfer {
namespace {

using literal::Data;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// C8.1 by a stable sort.
std::vector<int32_t> literal_topk(std::span<const float> scores, int64_t k) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  std::erase_if(order, [&](int32_t i) { return scores[static_cast<size_t>(i)] == -kInfinity; });
  order.resize(std::min(order.size(), static_cast<size_t>(k)));
  std::sort(order.begin(), order.end());
  order.resize(static_cast<size_t>(k), -1);
  return order;
}

TEST_CASE("top-k with few distinct scores, both zeros, subnormals and -inf") {
  const uint64_t seed = random_seed(0x3050);
  const float few[] = {1, 0.0f,      -0.0f,      -1,        -kInfinity,
                       2, 0x1p-149f, -0x1p-149f, kInfinity, 1.0000001f};
  int64_t cut_ties = 0;
  for (uint32_t i = 0; i < 2000; ++i) {
    CAPTURE(i);
    RandomData random(seed, 50, i);
    const int64_t columns = random.below(70) + (i % 50 == 0 ? 5000 : 0), k = random.below(40);
    const int64_t distinct = 1 + random.below(10);
    std::vector<float> scores;
    for (int64_t j = 0; j < columns; ++j) {
      scores.push_back(i % 3 == 0 ? random.spread(8)
                                  : few[static_cast<size_t>(random.below(distinct))]);
    }
    const std::vector<int32_t> expected = literal_topk(scores, k);
    std::vector<int32_t> found(static_cast<size_t>(k) + 1, -9);
    CHECK(topk_select(view(scores.data(), 1, columns), k, found.data()) == -1);
    CHECK(found.back() == -9);
    found.pop_back();
    CHECK(found == expected);
    // A tie was cut if an entry left out equals one that was taken.
    for (int64_t j = 0; j < columns && k > 0; ++j) {
      const int32_t last = expected.back();
      if (last >= 0 && j > last &&
          scores[static_cast<size_t>(j)] == scores[static_cast<size_t>(last)]) {
        ++cut_ties;
        break;
      }
    }
  }
  CHECK(cut_ties > 100);
}

TEST_CASE("top-k and greedy among every bf16 number but NaN") {
  // Out of order, and each once but for the zeros, which tie.
  std::vector<float> scores;
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const float value = from_bf16(static_cast<uint16_t>(i * 40503u));
    if (!std::isnan(value)) scores.push_back(value);
  }
  const int64_t columns = static_cast<int64_t>(scores.size());
  const RowView row = view(scores.data(), 1, columns);
  // The last two cut between the zeros, and leave out -inf alone.
  const int64_t positive =
      std::count_if(scores.begin(), scores.end(), [](float x) { return x > 0; });
  for (const int64_t k : {int64_t{1}, int64_t{1000}, positive + 1, columns}) {
    CAPTURE(k);
    std::vector<int32_t> found(static_cast<size_t>(k));
    CHECK(topk_select(row, k, found.data()) == -1);
    CHECK(found == literal_topk(scores, k));
  }
  int64_t id = -1;
  CHECK(greedy_sample(row, &id) == -1);
  CHECK(scores[static_cast<size_t>(id)] == kInfinity);
}

TEST_CASE("a NaN is reported by its row") {
  std::vector<float> scores(4 * 20, 1.0f);
  std::vector<int32_t> indices(4 * 8);
  std::vector<int64_t> ids(4), visible(4, 20);
  CHECK(topk_select(view(scores.data(), 4, 20), 8, indices.data()) == -1);
  scores[2 * 20 + 19] = -kNan;
  const RowView rows = view(scores.data(), 4, 20);
  CHECK(topk_select(rows, 8, indices.data()) == 2);
  CHECK(candidate_blocks(rows, visible.data(), 4, 8, indices.data()) == 2);
  std::vector<float> maxima(4);
  const std::vector<int64_t> one_block(20);
  CHECK(block_maxima(rows, one_block.data(), view(maxima.data(), 4, 1)) == 2);
  CHECK(greedy_sample(rows, ids.data()) == 2);
}

TEST_CASE("candidate blocks keep the newest visible block, and the mask keeps their entries only") {
  const uint64_t seed = random_seed(0x3051);
  int64_t pinned = 0;
  for (uint32_t i = 0; i < 500; ++i) {
    CAPTURE(i);
    RandomData random(seed, 51, i);
    const int64_t columns = 1 + random.below(200), block = 1 + random.below(12),
                  kept = 1 + random.below(10);
    const int64_t visible = random.below(columns + 1);
    std::vector<float> scores;
    for (int64_t j = 0; j < columns; ++j) {
      scores.push_back(j < visible ? static_cast<float>(random.below(6)) - 3.0f : -kInfinity);
    }
    const int64_t count = (columns + block - 1) / block;
    std::vector<float> best(static_cast<size_t>(count), -kInfinity);
    for (int64_t j = 0; j < columns; ++j) {
      float& of_block = best[static_cast<size_t>(j / block)];
      of_block = std::max(of_block, scores[static_cast<size_t>(j)]);
    }
    const std::vector<int32_t> unpinned = literal_topk(best, kept);
    if (visible > 0) best[static_cast<size_t>((visible - 1) / block)] = kInfinity;
    const std::vector<int32_t> expected = literal_topk(best, kept);
    pinned += expected != unpinned ? 1 : 0;
    std::vector<int32_t> blocks(static_cast<size_t>(kept));
    const RowView rows = view(scores.data(), 1, columns);
    CHECK(candidate_blocks(rows, &visible, block, kept, blocks.data()) == -1);
    CHECK(blocks == expected);
    std::vector<float> masked(scores.size());
    std::vector<int64_t> block_of;
    for (int64_t j = 0; j < columns; ++j) block_of.push_back(j / block);
    candidate_mask(rows, blocks.data(), kept, block_of.data(), view(masked.data(), 1, columns));
    for (int64_t j = 0; j < columns; ++j) {
      const bool keep =
          std::find(blocks.begin(), blocks.end(), static_cast<int32_t>(j / block)) != blocks.end();
      CHECK(masked[static_cast<size_t>(j)] == (keep ? scores[static_cast<size_t>(j)] : -kInfinity));
    }
  }
  CHECK(pinned > 50);
}

// How columns are dealt to ranks: here a random rank for each tile of a few columns.
std::vector<std::vector<int64_t>> random_shares(RandomData& random, int64_t columns,
                                                int64_t ranks) {
  std::vector<std::vector<int64_t>> shares(static_cast<size_t>(ranks));
  const int64_t tile = 1 + random.below(9);
  int64_t rank = 0;
  for (int64_t j = 0; j < columns; ++j) {
    if (j % tile == 0) rank = random.below(ranks);
    shares[static_cast<size_t>(rank)].push_back(j);
  }
  return shares;
}

template <class T>
std::vector<T> gathered(const std::vector<T>& values, const std::vector<int64_t>& places) {
  std::vector<T> found;
  for (const int64_t place : places) found.push_back(values[static_cast<size_t>(place)]);
  return found;
}

TEST_CASE("top-k of parts merges to top-k of the whole") {
  const uint64_t seed = random_seed(0x3054);
  const float few[] = {1, 0.0f, -0.0f, -1, -kInfinity, 2, 0x1p-149f, -0x1p-149f, kInfinity};
  int64_t cut_ties = 0, unused = 0;
  for (uint32_t i = 0; i < 3000; ++i) {
    CAPTURE(i);
    RandomData random(seed, 54, i);
    const int64_t columns = random.below(90) + (i % 50 == 0 ? 3000 : 0), k = random.below(40);
    const int64_t ranks = 1 + random.below(9), distinct = 1 + random.below(9);
    std::vector<float> scores;
    for (int64_t j = 0; j < columns; ++j) {
      scores.push_back(i % 3 == 0 ? random.spread(8)
                                  : few[static_cast<size_t>(random.below(distinct))]);
    }
    std::vector<float> pair_scores;
    std::vector<int32_t> pair_indices;
    for (const std::vector<int64_t>& share : random_shares(random, columns, ranks)) {
      const std::vector<float> own = gathered(scores, share);
      std::vector<int32_t> best(static_cast<size_t>(k));
      CHECK(topk_select(view(own.data(), 1, static_cast<int64_t>(own.size())), k, best.data()) ==
            -1);
      for (const int32_t place : best) {
        const size_t at = static_cast<size_t>(std::max(place, 0));
        pair_scores.push_back(place < 0 ? (random.one_in(2) ? kNan : kInfinity) : own[at]);
        pair_indices.push_back(place < 0 ? -1 : static_cast<int32_t>(share[at]));
        unused += place < 0;
      }
    }
    // In any order.
    for (size_t j = pair_scores.size(); j > 1 && i % 2 == 0; --j) {
      const auto other = static_cast<size_t>(random.below(static_cast<int64_t>(j)));
      std::swap(pair_scores[j - 1], pair_scores[other]);
      std::swap(pair_indices[j - 1], pair_indices[other]);
    }
    std::vector<int32_t> whole(static_cast<size_t>(k)), merged(static_cast<size_t>(k) + 1, -9);
    CHECK(topk_select(view(scores.data(), 1, columns), k, whole.data()) == -1);
    const MergeStatus status =
        topk_merge(view(pair_scores.data(), 1, static_cast<int64_t>(pair_scores.size())),
                   pair_indices.data(), k, merged.data());
    CHECK(status.fault == MergeFault::kNone);
    CHECK(merged.back() == -9);
    merged.pop_back();
    CHECK(merged == whole);
    // A tie was cut if a pair left out equals the worst that was taken.
    float worst = kInfinity;
    for (const int32_t index : whole) {
      if (index >= 0) worst = std::min(worst, scores[static_cast<size_t>(index)]);
    }
    for (size_t j = 0; j < pair_indices.size() && k > 0 && whole.back() >= 0; ++j) {
      if (pair_indices[j] < 0 || pair_scores[j] != worst) continue;
      if (std::find(whole.begin(), whole.end(), pair_indices[j]) != whole.end()) continue;
      ++cut_ties;
      break;
    }
  }
  CHECK(cut_ties > 100);
  CHECK(unused > 1000);
}

TEST_CASE("top-k of pairs: rows, the largest index, and what is wrong with a row") {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  const std::vector<float> scores = {1, 2, 3, 4, /**/ 4, kNan, -kInfinity, 4, /**/ 7, 7, 7, 7};
  const std::vector<int32_t> indices = {9, 3, 70, 1, /**/ kMost, -1, 5, 64, /**/ 8, 0, 3, 2};
  const auto merge = [](const std::vector<float>& s, const std::vector<int32_t>& i, int64_t k,
                        std::vector<int32_t>& to) {
    to.assign(static_cast<size_t>(3 * k), -9);
    return topk_merge(view(s.data(), 3, 4), i.data(), k, to.data());
  };
  std::vector<int32_t> found;
  CHECK(merge(scores, indices, 3, found).fault == MergeFault::kNone);
  CHECK(found == std::vector<int32_t>{1, 3, 70, 64, kMost, -1, 0, 2, 3});
  CHECK(merge(scores, indices, 1, found).fault == MergeFault::kNone);
  CHECK(found == std::vector<int32_t>{1, 64, 0});

  const auto fault_of = [&](size_t place, float score, int32_t index) {
    std::vector<float> s = scores;
    std::vector<int32_t> i = indices;
    s[place] = score, i[place] = index;
    return merge(s, i, 2, found);
  };
  MergeStatus status = fault_of(7, -kNan, 64);
  CHECK(status.fault == MergeFault::kNan);
  CHECK(status.row == 1);
  status = fault_of(11, 1, 8);
  CHECK(status.fault == MergeFault::kRepeatedIndex);
  CHECK(status.row == 2);
  // -inf, which is never chosen, is no unused place.
  status = fault_of(6, -kInfinity, 64);
  CHECK(status.fault == MergeFault::kRepeatedIndex);
  CHECK(status.row == 1);
  status = fault_of(0, 1, -2);
  CHECK(status.fault == MergeFault::kNegativeIndex);
  CHECK(status.row == 0);
  // The index of another row is no repetition.
  CHECK(fault_of(0, 1, 8).fault == MergeFault::kNone);
}

TEST_CASE("block maxima of parts give the candidate blocks and the mask of the whole") {
  const uint64_t seed = random_seed(0x3055);
  int64_t zeros = 0, none = 0;
  for (uint32_t i = 0; i < 1000; ++i) {
    CAPTURE(i);
    RandomData random(seed, 55, i);
    const int64_t columns = 1 + random.below(200), block = 1 + random.below(12),
                  kept = 1 + random.below(10), ranks = 1 + random.below(9);
    const int64_t visible = random.below(columns + 1);
    const float few[] = {1, 0.0f, -0.0f, -1, 2, 0x1p-149f, -0x1p-149f, kInfinity, -kInfinity};
    std::vector<float> scores;
    std::vector<int64_t> block_of;
    for (int64_t j = 0; j < columns; ++j) {
      const float score = i % 3 == 0 ? random.spread(8) : few[static_cast<size_t>(random.below(9))];
      scores.push_back(j < visible ? score : -kInfinity);
      block_of.push_back(j / block);
    }
    const int64_t count = (columns + block - 1) / block;
    auto shares = random_shares(random, columns, ranks);
    for (std::vector<int64_t>& share : shares) {  // in any order
      for (size_t j = share.size(); j > 1 && i % 2 == 0; --j) {
        std::swap(share[j - 1], share[static_cast<size_t>(random.below(static_cast<int64_t>(j)))]);
      }
    }
    std::vector<float> maxima(static_cast<size_t>(count), -kInfinity);
    for (const std::vector<int64_t>& share : shares) {
      const std::vector<float> own = gathered(scores, share);
      const std::vector<int64_t> own_blocks = gathered(block_of, share);
      std::vector<float> found(static_cast<size_t>(count) + 1, -9);
      CHECK(block_maxima(view(own.data(), 1, static_cast<int64_t>(own.size())), own_blocks.data(),
                         view(found.data(), 1, count)) == -1);
      CHECK(found.back() == -9);
      found.pop_back();
      std::vector<float> expected(static_cast<size_t>(count), -kInfinity);
      for (size_t j = 0; j < own.size(); ++j) {
        float& largest = expected[static_cast<size_t>(own_blocks[j])];
        if (own[j] > largest) largest = own[j] == 0 ? 0.0f : own[j];
      }
      CHECK(literal::different(found, expected) == 0);
      for (size_t b = 0; b < maxima.size(); ++b) {
        maxima[b] = std::max(maxima[b], found[b]);
        zeros += found[b] == 0;
        none += found[b] == -kInfinity;
      }
    }
    std::vector<int32_t> whole(static_cast<size_t>(kept)), parts(static_cast<size_t>(kept));
    const RowView rows = view(scores.data(), 1, columns);
    CHECK(candidate_blocks(rows, &visible, block, kept, whole.data()) == -1);
    const int64_t visible_blocks = (visible + block - 1) / block;
    CHECK(candidate_blocks(view(maxima.data(), 1, count), &visible_blocks, 1, kept, parts.data()) ==
          -1);
    CHECK(parts == whole);
    // Each rank masks its own columns as the whole row is masked.
    std::vector<float> masked(scores.size());
    candidate_mask(rows, whole.data(), kept, block_of.data(), view(masked.data(), 1, columns));
    for (const std::vector<int64_t>& share : shares) {
      std::vector<float> own = gathered(scores, share);
      const std::vector<int64_t> own_blocks = gathered(block_of, share);
      const MutableRowView in_place = view(own.data(), 1, static_cast<int64_t>(own.size()));
      candidate_mask(in_place, whole.data(), kept, own_blocks.data(), in_place);
      CHECK(literal::different(own, gathered(masked, share)) == 0);
    }
  }
  CHECK(zeros > 100);
  CHECK(none > 100);
}

TEST_CASE("greedy takes the first of the largest") {
  const std::vector<float> logits = {-1, 3,     3,          2,          -0.0f,      0.0f,
                                     -5, -0.0f, -kInfinity, -kInfinity, -kInfinity, -kInfinity};
  std::vector<int64_t> ids(3);
  CHECK(greedy_sample(view(logits.data(), 3, 4), ids.data()) == -1);
  CHECK(ids == std::vector<int64_t>{1, 0, 0});
}

TEST_CASE("index_score, wide and narrow") {
  const uint64_t seed = random_seed(0x3052);
  uint32_t case_number = 0;
  for (const int64_t keys : {0, 1, 17, 100, 2100}) {
    for (const int64_t channels : {16, 40, 128}) {
      for (const int types : {0, 1, 2, 3}) {
        CAPTURE(keys);
        CAPTURE(channels);
        CAPTURE(types);
        if (keys > 1000 && channels > 40) continue;  // the scalar twin takes long
        RandomData random(seed, 52, case_number++);
        const int64_t rows = 3, heads = 4;
        const bool bf16 = (types & 1) != 0, narrow = (types & 2) != 0;
        const Data q(random.uniforms(rows * heads * channels), bf16),
            k(random.uniforms(keys * channels), bf16);
        const Data weights(random.uniforms(rows * heads), bf16);
        const std::vector<int64_t> visible = {keys, 0, keys / 2};
        std::vector<float> expected;
        for (int64_t t = 0; t < rows; ++t) {
          for (int64_t j = 0; j < keys; ++j) {
            float acc = 0;
            for (int64_t h = 0; h < heads; ++h) {
              const auto a = q.row(t * heads + h, channels), b = k.row(j, channels);
              float d = bf16 ? literal::dot_bf16(a, b) : literal::dot_fp32(a, b);
              const float w = weights.wide[static_cast<size_t>(t * heads + h)];
              if (narrow) {
                acc = acc + literal::round_bf16(w * std::max(literal::round_bf16(d), 0.0f));
              } else {
                acc = std::fma(w, std::max(d, 0.0f), acc);
              }
            }
            if (narrow) acc = literal::round_bf16(acc);
            expected.push_back(j < visible[static_cast<size_t>(t)] ? acc : -kInfinity);
          }
        }
        RowView key_rows = k.rows(keys);
        key_rows.columns = key_rows.row_stride = channels;
        for (const Target target : available_targets()) {
          CAPTURE(std::string(target_name(target)));
          std::vector<float> scores(static_cast<size_t>(rows * keys));
          index_score({q.rows(rows * heads), weights.rows(rows), key_rows, visible.data(), narrow,
                       scores.data(), keys},
                      target);
          CHECK(literal::different(scores, expected) == 0);
        }
      }
    }
  }
}

TEST_CASE("moe_gate with ties, one bias and a bias by row") {
  const uint64_t seed = random_seed(0x3053);
  int64_t ties = 0;
  for (uint32_t i = 0; i < 60; ++i) {
    CAPTURE(i);
    RandomData random(seed, 53, i);
    const int64_t rows = 3, columns = 1 + random.below(100), experts = 8 + random.below(60),
                  k = 1 + random.below(8);
    const bool x_bf16 = i % 2 == 0, w_bf16 = i % 3 != 0, bias_by_row = i % 5 == 0;
    Data weight(random.uniforms(experts * columns), w_bf16);
    const Data x(random.uniforms(rows * columns, 3), x_bf16);
    // Expert 3 is a copy of expert 5: their scores tie.
    for (int64_t c = 0; c < columns; ++c) {
      const size_t to = static_cast<size_t>(3 * columns + c),
                   from = static_cast<size_t>(5 * columns + c);
      weight.wide[to] = weight.wide[from];
      if (w_bf16) weight.narrow[to] = weight.narrow[from];
    }
    std::vector<float> bias = random.uniforms(experts * (bias_by_row ? rows : 1), 0.5f);
    for (int64_t t = 0; t < (bias_by_row ? rows : 1); ++t) {
      bias[static_cast<size_t>(t * experts + 3)] = bias[static_cast<size_t>(t * experts + 5)] = 1;
    }
    const float gate_temp = 1.5f, scaling = 2.5f;
    std::vector<int32_t> expected_experts;
    std::vector<float> expected_weights;
    for (int64_t t = 0; t < rows; ++t) {
      std::vector<float> scores, biased;
      for (int64_t e = 0; e < experts; ++e) {
        const float z = literal::dot_fp32(x.row(t, columns), weight.row(e, columns)) / gate_temp;
        scores.push_back(std::sqrt(literal::function(MathFunction::kSoftplus, z)));
        biased.push_back(scores.back() +
                         bias[static_cast<size_t>((bias_by_row ? t * experts : 0) + e)]);
      }
      std::vector<int32_t> order(static_cast<size_t>(experts));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return biased[static_cast<size_t>(a)] > biased[static_cast<size_t>(b)];
      });
      order.resize(static_cast<size_t>(k));
      const auto place = std::find(order.begin(), order.end(), 3);
      if (place != order.end() && place + 1 != order.end() && place[1] == 5) ++ties;
      float sum = scores[static_cast<size_t>(order[0])];
      for (size_t j = 1; j < order.size(); ++j) sum = sum + scores[static_cast<size_t>(order[j])];
      for (const int32_t e : order) {
        expected_experts.push_back(e);
        expected_weights.push_back(scores[static_cast<size_t>(e)] / (sum + 1e-20f) * scaling);
      }
    }
    for (const Target target : available_targets()) {
      CAPTURE(std::string(target_name(target)));
      std::vector<int32_t> found(static_cast<size_t>(rows * k));
      std::vector<float> weights(found.size());
      CHECK(moe_gate({x.rows(rows), weight.rows(experts), bias.data(), bias_by_row ? experts : 0, k,
                      gate_temp, scaling, found.data(), weights.data()},
                     target) == -1);
      CHECK(found == expected_experts);
      CHECK(literal::different(weights, expected_weights) == 0);
    }
  }
  CHECK(ties > 20);
}

TEST_CASE("moe_gate: a bias of -inf keeps an expert out, a NaN is reported") {
  const std::vector<float> x(2 * 8, 1.0f), weight(4 * 8, 0.25f);
  std::vector<float> bias = {-kInfinity, -kInfinity, 0, -kInfinity};
  for (const Target target : available_targets()) {
    std::vector<int32_t> experts(4);
    std::vector<float> weights(4);
    MoeGate gate{
        view(x.data(), 2, 8), view(weight.data(), 4, 8), bias.data(), 0, 2, 1, 1, experts.data(),
        weights.data()};
    CHECK(moe_gate(gate, target) == -1);
    CHECK(experts == std::vector<int32_t>{2, -1, 2, -1});
    CHECK(weights == std::vector<float>{1, 0, 1, 0});
    const std::vector<float> by_row = {0, 0, 0, 0, 0, kNan, 0, 0};
    gate.bias = by_row.data();
    gate.bias_stride = 4;
    CHECK(moe_gate(gate, target) == 1);
  }
}

}  // namespace
}  // namespace deepinfer
