// Attention and pooling against their paragraphs (CANONICAL.md C7), on every target.
#include "sim/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/kernels/effort.h"
#include "tests/kernels/rows/literal.h"
#include "tests/kernels/rows/ranked_attention.h"
#include "tests/random_seed.h"

namespace deepinfer {
namespace {

using literal::Data;
using literal::Result;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST_CASE("compress_pool") {
  const uint64_t seed = random_seed(0x3060);
  uint32_t case_number = 0;
  for (const int64_t tokens : {1, 2, 3, 4}) {
    for (const int64_t channels : {1, 16, 37, 512}) {
      CAPTURE(tokens);
      CAPTURE(channels);
      RandomData random(seed, 60, case_number++);
      const int64_t groups = 3;
      const std::vector<float> values = random.uniforms(groups * tokens * channels, 3),
                               gates = random.uniforms(groups * tokens * channels, 5);
      std::vector<float> expected;
      for (int64_t g = 0; g < groups; ++g) {
        for (int64_t c = 0; c < channels; ++c) {
          const auto at = [&](const std::vector<float>& from, int64_t t) {
            return from[static_cast<size_t>((g * tokens + t) * channels + c)];
          };
          float largest = at(gates, 0);
          for (int64_t t = 1; t < tokens; ++t) largest = std::max(largest, at(gates, t));
          float sum = literal::exp(at(gates, 0) - largest);
          for (int64_t t = 1; t < tokens; ++t) sum = sum + literal::exp(at(gates, t) - largest);
          float acc = literal::exp(at(gates, 0) - largest) / sum * at(values, 0);
          for (int64_t t = 1; t < tokens; ++t) {
            acc = std::fma(literal::exp(at(gates, t) - largest) / sum, at(values, t), acc);
          }
          expected.push_back(acc);
        }
      }
      for (const Target target : available_targets()) {
        CAPTURE(std::string(target_name(target)));
        std::vector<float> pooled(expected.size());
        compress_pool(values.data(), gates.data(), groups, tokens, channels, pooled.data(), target);
        CHECK(literal::different(pooled, expected) == 0);
      }
    }
  }
}

// C7.4 and C7.5 for one head.
struct Partial {
  float maximum, sum;
  std::vector<float> out;
};
using MaybePartial = std::optional<Partial>;

struct Key {
  std::span<const float> values;
};

std::vector<float> dots_of(std::span<const float> q, const std::vector<Key>& keys, bool bf16) {
  std::vector<float> dots;
  for (const Key& key : keys) {
    dots.push_back(bf16 ? literal::dot_bf16(q, key.values) : literal::dot_fp32(q, key.values));
  }
  return dots;
}

// `all` are the keys of all leaves.
MaybePartial leaf_partial(std::span<const float> q, const std::vector<Key>& keys,
                          const std::vector<Key>& all, float scale, bool bf16, bool narrow) {
  if (keys.empty()) return {};
  Partial partial{-kInfinity, 0, std::vector<float>(q.size(), 0.0f)};
  for (const float dot : dots_of(q, narrow ? all : keys, bf16)) {
    partial.maximum = std::max(partial.maximum, dot * scale);
  }
  const std::vector<float> dots = dots_of(q, keys, bf16);
  for (size_t i = 0; i < keys.size(); ++i) {
    const float p = literal::exp(std::fma(dots[i], scale, -partial.maximum));
    partial.sum = partial.sum + p;
    const float weight = narrow ? literal::round_bf16(p) : p;
    for (size_t c = 0; c < q.size(); ++c) {
      partial.out[c] = std::fma(weight, keys[i].values[c], partial.out[c]);
    }
  }
  return partial;
}

MaybePartial merged(const MaybePartial& a, const MaybePartial& b) {
  if (!a || !b) return a ? a : b;
  Partial result{std::max(a->maximum, b->maximum), 0, a->out};
  const float x = literal::exp(a->maximum - result.maximum),
              y = literal::exp(b->maximum - result.maximum);
  result.sum = std::fma(a->sum, x, b->sum * y);
  for (size_t c = 0; c < result.out.size(); ++c) {
    result.out[c] = std::fma(a->out[c], x, b->out[c] * y);
  }
  return result;
}

// The leaf at a tree position: its six bits in reverse (C2.5, interleaved).
int64_t leaf_at(int64_t position) {
  int64_t leaf = 0;
  for (int bit = 0; bit < 6; ++bit) leaf |= (position >> bit & 1) << (5 - bit);
  return leaf;
}

// The keys of one query row, by leaf.
struct KeysByLeaf {
  std::vector<std::vector<Key>> leaves = std::vector<std::vector<Key>>(64);
  std::vector<Key> all;

  void add(int64_t global_index, Key key) {
    all.push_back(key);
    leaves[static_cast<size_t>(global_index / 8 % 64)].push_back(key);
  }
};

// How often partials were merged, and how often their maxima tied.
struct MergeCount {
  int64_t merges = 0, ties = 0;
};

MaybePartial subtree_partial(std::span<const float> q, const KeysByLeaf& keys, Subtree subtree,
                             float scale, bool bf16, bool narrow, MergeCount& count) {
  if (subtree.count == 1) {
    return leaf_partial(q, keys.leaves[static_cast<size_t>(leaf_at(subtree.begin))], keys.all,
                        scale, bf16, narrow);
  }
  const int64_t half = subtree.count / 2;
  const MaybePartial lower = subtree_partial(q, keys, {subtree.begin, half}, scale, bf16, narrow,
                                             count),
                     upper = subtree_partial(q, keys, {subtree.begin + half, half}, scale, bf16,
                                             narrow, count);
  const bool both = lower && upper;
  count.merges += both ? 1 : 0;
  count.ties += both && lower->maximum == upper->maximum ? 1 : 0;
  return merged(lower, upper);
}

struct Case {
  int64_t heads, channels, window_rows, compressed_rows, first_position;
  bool bf16, narrow, sink;
  int64_t distinct_keys = 0;  // so that scores tie, in a leaf and across leaves; 0: all differ
};

struct Inputs {
  Data q, window, compressed;
  std::vector<int32_t> window_index, compressed_index;
  std::vector<float> sink;
};

// Windows and choices that are full, partly unused and empty, one of each kind a row.
constexpr int64_t kRows = 4;

Inputs make_inputs(const Case& c, RandomData& random, int64_t window_count,
                   int64_t compressed_count) {
  Inputs in{Data(random.uniforms(kRows * c.heads * c.channels, 2), c.bf16),
            Data(random.uniforms(c.window_rows * c.channels, 2), c.bf16),
            Data(random.uniforms(c.compressed_rows * c.channels, 2), c.bf16),
            {},
            {},
            random.uniforms(c.heads, 3)};
  for (Data* keys : {&in.window, &in.compressed}) {
    if (c.distinct_keys == 0) break;
    const size_t repeat = static_cast<size_t>(c.distinct_keys * c.channels);
    for (size_t i = repeat; i < keys->wide.size(); ++i) {
      keys->wide[i] = keys->wide[i - repeat];
      if (c.bf16) keys->narrow[i] = keys->narrow[i - repeat];
    }
  }
  const auto choose = [&](int64_t count, int64_t rows, int64_t row, std::vector<int32_t>& to) {
    std::vector<int32_t> all(static_cast<size_t>(rows));
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
    while (static_cast<int64_t>(all.size()) > count)
      all.erase(all.begin() + random.below(static_cast<int64_t>(all.size())));
    all.resize(static_cast<size_t>(count), -1);
    if (row == 1) std::fill(all.begin(), all.end(), -1);              // nothing seen
    if (row == 2) std::fill(all.begin() + count / 2, all.end(), -1);  // a part
    to.insert(to.end(), all.begin(), all.end());
  };
  for (int64_t row = 0; row < kRows; ++row) {
    choose(window_count, c.window_rows, row, in.window_index);
    choose(compressed_count, c.compressed_rows, row, in.compressed_index);
  }
  return in;
}

KeysByLeaf keys_of(const Case& c, const Inputs& in, int64_t t, int64_t window_count,
                   int64_t compressed_count) {
  KeysByLeaf keys;
  for (int64_t i = 0; i < window_count; ++i) {
    const int32_t index = in.window_index[static_cast<size_t>(t * window_count + i)];
    if (index >= 0) keys.add(c.first_position + index, {in.window.row(index, c.channels)});
  }
  for (int64_t i = 0; i < compressed_count; ++i) {
    const int32_t index = in.compressed_index[static_cast<size_t>(t * compressed_count + i)];
    if (index >= 0) keys.add(index, {in.compressed.row(index, c.channels)});
  }
  return keys;
}
int64_t window_count_of(const Case& c) {
  return c.window_rows * 3 / 4 + (c.window_rows == 0 ? 0 : 3);
}
int64_t compressed_count_of(const Case& c) { return c.compressed_rows * 3 / 4 + 2; }

// Arguments of a case, but for the results.
SparseAttention arguments(const Case& c, const Inputs& in, float scale) {
  SparseAttention args;
  args.q = in.q.rows(kRows * c.heads);
  args.heads = c.heads;
  args.window = in.window.rows(c.window_rows);
  args.window.columns = c.channels;
  args.window_first_position = c.first_position;
  args.window_index = in.window_index.data();
  args.window_count = window_count_of(c);
  args.compressed = in.compressed.rows(c.compressed_rows);
  args.compressed.columns = c.channels;
  args.compressed_index = in.compressed_index.data();
  args.compressed_count = compressed_count_of(c);
  args.sink = c.sink ? in.sink.data() : nullptr;
  args.scale = scale;
  args.narrow = c.narrow;
  return args;
}

const Case kCases[] = {
    {1, 16, 8, 4, 0, false, false, false},         {3, 20, 20, 30, 3, false, false, true},
    {16, 32, 130, 0, 1000, true, false, true},     {17, 40, 128, 600, 77, true, true, true},
    {5, 64, 0, 64, 0, true, true, false},          {33, 48, 40, 700, 505, false, true, true},
    {2, 33, 128, 520, 300, false, false, false},   {5, 40, 128, 600, 77, true, true, true, 3},
    {3, 33, 130, 520, 300, false, false, true, 2}, {17, 16, 64, 64, 5, true, false, false, 1}};

TEST_CASE("sparse attention") {
  const uint64_t seed = random_seed(0x3061);
  uint32_t case_number = 0;
  for (const Case& c : kCases) {
    CAPTURE(case_number);
    RandomData random(seed, 61, case_number++);
    const int64_t window_count = window_count_of(c), compressed_count = compressed_count_of(c);
    const Inputs in = make_inputs(c, random, window_count, compressed_count);
    const float scale = 0.3f;
    std::vector<float> expected, expected_lse;
    MergeCount count;
    double squared_error = 0, squared = 0;
    for (int64_t t = 0; t < kRows; ++t) {
      const KeysByLeaf keys = keys_of(c, in, t, window_count, compressed_count);
      for (int64_t h = 0; h < c.heads; ++h) {
        const auto q = in.q.row(t * c.heads + h, c.channels);
        const MaybePartial total =
            subtree_partial(q, keys, {0, 64}, scale, c.bf16, c.narrow, count);
        if (!total) {
          expected.insert(expected.end(), q.size(), 0.0f);
          expected_lse.push_back(-kInfinity);
          continue;
        }
        float denominator = total->sum;
        if (c.sink)
          denominator =
              denominator + literal::exp(in.sink[static_cast<size_t>(h)] - total->maximum);
        expected_lse.push_back(total->maximum + literal::log(total->sum));
        // The formula of platform/ops.h in fp64, as a check of the transcription.
        double sum = c.sink ? std::exp(static_cast<double>(in.sink[static_cast<size_t>(h)])) : 0;
        std::vector<double> exact(q.size());
        for (const Key& key : keys.all) {
          double dot = 0;
          for (size_t i = 0; i < q.size(); ++i) dot += static_cast<double>(q[i]) * key.values[i];
          const double p = std::exp(dot * static_cast<double>(scale));
          sum += p;
          for (size_t i = 0; i < q.size(); ++i) exact[i] += p * key.values[i];
        }
        for (size_t i = 0; i < q.size(); ++i) {
          expected.push_back(total->out[i] / denominator);
          const double value = exact[i] / sum;
          squared += value * value;
          squared_error += (expected.back() - value) * (expected.back() - value);
        }
      }
    }
    // A relative error of 2^-9 for every rounded probability, else of fp32's order.
    CHECK(std::sqrt(squared_error / squared) < (c.narrow ? 0x1p-8 : 1e-5));
    if (c.compressed_rows + c.window_rows > 64) CHECK(count.merges > 10);
    if (c.distinct_keys > 0) CHECK(count.ties > 10);
    for (const Target target : available_targets()) {
      CAPTURE(std::string(target_name(target)));
      Result out(kRows * c.heads, c.channels, c.bf16);
      std::vector<float> lse(static_cast<size_t>(kRows * c.heads));
      SparseAttention args = arguments(c, in, scale);
      args.out = out.out();
      args.lse = lse.data();
      sparse_attention(args, target);
      CHECK(out.wrong(expected) == 0);
      CHECK(literal::different(lse, expected_lse) == 0);
    }
  }
}

TEST_CASE("the maximum of a list, and the partials of subtrees") {
  const uint64_t seed = random_seed(0x3063);
  uint32_t case_number = 0;
  MergeCount count;
  int64_t absent = 0;
  for (const Case& c : kCases) {
    CAPTURE(case_number);
    RandomData random(seed, 63, case_number++);
    const int64_t window_count = window_count_of(c), compressed_count = compressed_count_of(c);
    const Inputs in = make_inputs(c, random, window_count, compressed_count);
    const float scale = 0.3f;
    // The positions of all leaves, what a rank of three and one of five have of them.
    constexpr IndexRange kPositions[] = {{0, 64}, {21, 42}, {51, 64}};
    const IndexRange positions = kPositions[case_number % 3];
    const std::vector<Subtree> subtrees = maximal_subtrees(positions);
    const size_t rows = static_cast<size_t>(kRows * c.heads);
    const size_t channels = static_cast<size_t>(c.channels);
    std::vector<float> maximum(rows, -kInfinity), partial_maximum, partial_sum, partial_out;
    for (int64_t t = 0; t < kRows; ++t) {
      const KeysByLeaf keys = keys_of(c, in, t, window_count, compressed_count);
      for (int64_t h = 0; h < c.heads; ++h) {
        for (const float dot : dots_of(in.q.row(t * c.heads + h, c.channels), keys.all, c.bf16)) {
          float& largest = maximum[static_cast<size_t>(t * c.heads + h)];
          largest = std::max(largest, dot * scale);
        }
      }
    }
    for (const Subtree& subtree : subtrees) {
      for (int64_t t = 0; t < kRows; ++t) {
        const KeysByLeaf keys = keys_of(c, in, t, window_count, compressed_count);
        for (int64_t h = 0; h < c.heads; ++h) {
          const auto q = in.q.row(t * c.heads + h, c.channels);
          const MaybePartial partial =
              subtree_partial(q, keys, subtree, scale, c.bf16, c.narrow, count);
          absent += partial ? 0 : 1;
          partial_maximum.push_back(partial ? partial->maximum : -kInfinity);
          partial_sum.push_back(partial ? partial->sum : 0);
          const std::vector<float> zeros(channels, 0.0f);
          const std::vector<float>& out = partial ? partial->out : zeros;
          partial_out.insert(partial_out.end(), out.begin(), out.end());
        }
      }
    }
    // The rank lists its own keys among rows that it may hold without listing them.
    const ShardMap map = ShardMap::interleaved("KV tiles", 1);
    const auto is_mine = [&](int64_t global) {
      return positions.contains(map.position_of_leaf(map.leaf_of_unit(global / 8)));
    };
    std::vector<int32_t> window_index = in.window_index, compressed_index = in.compressed_index;
    for (int32_t& index : window_index) {
      if (!is_mine(c.first_position + std::max(index, 0))) index = -1;
    }
    for (int32_t& index : compressed_index) {
      if (!is_mine(std::max(index, 0))) index = -1;
    }
    std::vector<int64_t> window_positions, entries;
    for (int64_t i = 0; i < c.window_rows; ++i) window_positions.push_back(c.first_position + i);
    for (int64_t i = 0; i < c.compressed_rows; ++i) entries.push_back(i);
    for (const Target target : available_targets()) {
      CAPTURE(std::string(target_name(target)));
      std::vector<float> found(rows, -77.0f);
      AttentionPartials args;
      static_cast<AttentionLists&>(args) = arguments(c, in, scale);
      attention_maximum(args, found.data(), target);
      CHECK(literal::different(found, maximum) == 0);

      args.window_index = window_index.data();
      args.compressed_index = compressed_index.data();
      args.window_positions = window_positions.data();
      args.compressed_entries = entries.data();
      args.positions = positions;
      if (c.narrow) args.list_maximum = maximum.data();
      // A guard behind each result.
      std::vector<float> m(partial_maximum.size() + 1, -77.0f), sum(m),
          out(partial_out.size() + 1, -77.0f);
      args.maximum = m.data(), args.sum = sum.data(), args.out = out.data();
      CHECK(!attention_partials(args, target).has_value());
      for (std::vector<float>* result : {&m, &sum, &out}) {
        CHECK(result->back() == -77.0f);
        result->pop_back();
      }
      CHECK(literal::different(m, partial_maximum) == 0);
      CHECK(literal::different(sum, partial_sum) == 0);
      CHECK(literal::different(out, partial_out) == 0);
    }
  }
  CHECK(count.merges > 100);
  CHECK(absent > 100);
}

// C7.7: heads in and out of a block of sixteen, channels in and out of groups, ranks that own one
// subtree and several.
TEST_CASE("any number of ranks gives the bits of one") {
  const uint64_t seed = random_seed(0x3064);
  constexpr int64_t kHeads[] = {1, 4, 16, 17, 64}, kChannels[] = {32, 48, 64, 512},
                    kRankCounts[] = {1, 2, 3, 5, 7, 18, 63, 64};
  constexpr int64_t kQueries = 6, kWindowRows = 40, kEntries = 560;  // entries go round the leaves
  constexpr int64_t kWindowCount = 24, kEntryCount = 120;
  // Of the eight variants (types, narrow, sink) each combination has four, in turn.
  constexpr int64_t kCombinations = 5 * 4 * 8, kVariants = 4;
  constexpr int64_t kAll = kCombinations * kVariants;
  RandomData numbers(seed, 64, 0);
  const std::vector<float> q_numbers = numbers.uniforms(kQueries * 64 * 512, 2),
                           key_numbers = numbers.uniforms((kWindowRows + kEntries) * 512, 2),
                           sink = numbers.uniforms(64, 3);
  RankedRun seen;
  int64_t cases = 0;
  for (int64_t n = 0; n < effort(kAll); ++n) {
    // Any part of the cases is spread over all of them: 549 and their number have no common factor.
    const int64_t which = n * 549 % kAll, combination = which / kVariants;
    const int64_t ranks = kRankCounts[combination % 8], heads = kHeads[combination / 8 % 5],
                  channels = kChannels[combination / 40];
    const int64_t variant = (2 * which + combination + combination / 8) % 8;
    const bool bf16 = (variant & 1) != 0, narrow = (variant & 2) != 0, sinks = (variant & 4) != 0;
    CAPTURE(n);
    CAPTURE(ranks);
    CAPTURE(heads);
    CAPTURE(channels);
    CAPTURE(bf16);
    CAPTURE(narrow);
    CAPTURE(sinks);
    RandomData random(seed, 64, static_cast<uint32_t>(1 + n));
    const auto part = [](const std::vector<float>& from, int64_t count) {
      return std::vector<float>(from.begin(), from.begin() + count);
    };
    const Data q(part(q_numbers, kQueries * heads * channels), bf16),
        keys(part(key_numbers, (kWindowRows + kEntries) * channels), bf16);
    const auto key_rows = [&](int64_t first, int64_t count) {
      return bf16 ? view(keys.narrow.data() + first * channels, count, channels)
                  : view(keys.wide.data() + first * channels, count, channels);
    };
    // Queries: all places used; none; one; a few; only the window; keys of two leaves.
    std::vector<int32_t> window_index, entry_index;
    for (int64_t t = 0; t < kQueries; ++t) {
      const int64_t window = t == 0 || t == 4 ? kWindowCount : t == 3 ? 3 : 0;
      const int64_t entries = t == 0 ? kEntryCount : t == 2 ? 1 : t == 3 ? 5 : t == 5 ? 20 : 0;
      const int64_t first = random.below(kWindowRows - window + 1);
      for (int64_t i = 0; i < kWindowCount; ++i) {
        window_index.push_back(i < window ? static_cast<int32_t>(first + i) : -1);
      }
      // Distinct: a step without a factor in common with the number of entries.
      const int64_t start = random.below(kEntries);
      for (int64_t i = 0; i < kEntryCount; ++i) {
        const int64_t entry = t == 5 ? 96 + i : (start + i * 39) % kEntries;
        entry_index.push_back(i < entries ? static_cast<int32_t>(entry) : -1);
      }
    }
    SparseAttention args;
    args.q = q.rows(kQueries * heads);
    args.heads = heads;
    args.window = key_rows(0, kWindowRows);
    args.window_first_position = 4000 + random.below(1000);
    args.window_index = window_index.data();
    args.window_count = kWindowCount;
    args.compressed = key_rows(kWindowRows, kEntries);
    args.compressed_index = entry_index.data();
    args.compressed_count = kEntryCount;
    args.sink = sinks ? sink.data() : nullptr;
    args.scale = 0.2f;
    args.narrow = narrow;
    for (const Target target : available_targets()) {
      // Software lanes: each combination once, with one variant or another.
      if (target == Target::kScalar && which % kVariants != 0) continue;
      CAPTURE(std::string(target_name(target)));
      ++cases;
      Result whole(kQueries * heads, channels, bf16), ranked(kQueries * heads, channels, bf16);
      std::vector<float> whole_lse(static_cast<size_t>(kQueries * heads), -77.0f),
          ranked_lse(whole_lse);
      args.out = whole.out(), args.lse = whole_lse.data();
      sparse_attention(args, target);
      args.out = ranked.out(), args.lse = ranked_lse.data();
      const RankedRun run = ranked_attention(args, ranks, target);
      CHECK(literal::different(ranked.wide, whole.wide) == 0);
      CHECK(ranked.narrow == whole.narrow);
      CHECK(literal::different(ranked_lse, whole_lse) == 0);
      seen.absent += run.absent;
      seen.present += run.present;
      seen.ranks_without_rows += run.ranks_without_rows;
      seen.most_subtrees = std::max(seen.most_subtrees, run.most_subtrees);
    }
  }
  CHECK(cases >= effort(kAll));
  CHECK(seen.absent > cases);
  CHECK(seen.present > cases);
  CHECK(seen.most_subtrees >= 5);
}

// What AttentionMerge takes.
struct ListedPartials {
  explicit ListedPartials(int64_t out_stride) : stride(out_stride) {}
  std::vector<int64_t> counts, rows;
  std::vector<float> maximum, sum, out;
  int64_t stride;
};

// Partials that no rank makes: heads of a block that have different ones, subtrees of any size,
// outputs of an absent one that are no numbers.
TEST_CASE("merge, head by head") {
  const uint64_t seed = random_seed(0x3065);
  const std::vector<std::vector<Subtree>> forests = {
      {},
      {{0, 64}},
      {{5, 1}},
      {{0, 32}, {32, 32}},
      {{0, 16}, {16, 4}, {21, 1}, {22, 2}, {40, 8}},
      {{0, 1}, {2, 2}, {4, 4}, {8, 8}, {16, 16}, {32, 16}, {48, 8}, {56, 4}, {60, 2}, {63, 1}}};
  uint32_t case_number = 0;
  int64_t found_heads = 0, empty_heads = 0, unlisted = 0;
  for (const std::vector<Subtree>& subtrees : forests) {
    for (const int64_t heads : {1, 5, 16, 35}) {
      for (const int64_t channels : {16, 37}) {
        for (const bool bf16 : {false, true}) {
          CAPTURE(case_number);
          RandomData random(seed, 65, case_number++);
          const int64_t rows = 4;
          const size_t count = subtrees.size();
          const std::vector<float> sink = random.uniforms(heads, 3);
          std::vector<float> maximum =
                                 random.uniforms(static_cast<int64_t>(count) * rows * heads, 8),
                             sum = random.uniforms(static_cast<int64_t>(maximum.size()), 0.5f),
                             out = random.uniforms(static_cast<int64_t>(maximum.size()) * channels);
          for (size_t i = 0; i < maximum.size(); ++i) {
            sum[i] += 1;
            // Of a quarter of the rows all heads, of the others a third.
            const bool whole_row = i / static_cast<size_t>(heads) % 4 == 1;
            if (!whole_row && random.below(3) != 0) continue;
            maximum[i] = -kInfinity, sum[i] = 0;
            std::fill_n(out.begin() + static_cast<int64_t>(i) * channels, channels,
                        std::numeric_limits<float>::quiet_NaN());
          }
          std::vector<float> expected, expected_lse;
          for (int64_t i = 0; i < rows * heads; ++i) {
            const auto partial_at = [&](size_t s) -> MaybePartial {
              const size_t at = s * static_cast<size_t>(rows * heads) + static_cast<size_t>(i);
              if (maximum[at] == -kInfinity) return {};
              const auto begin = out.begin() + static_cast<int64_t>(at) * channels;
              return Partial{maximum[at], sum[at], std::vector<float>(begin, begin + channels)};
            };
            const auto node = [&](const auto& self, Subtree subtree) -> MaybePartial {
              for (size_t s = 0; s < count; ++s) {
                if (subtrees[s] == subtree) return partial_at(s);
              }
              if (subtree.count == 1) return {};
              const int64_t half = subtree.count / 2;
              return merged(self(self, {subtree.begin, half}),
                            self(self, {subtree.begin + half, half}));
            };
            const MaybePartial total = node(node, {0, 64});
            ++(total ? found_heads : empty_heads);
            expected_lse.push_back(total ? total->maximum + literal::log(total->sum) : -kInfinity);
            for (int64_t c = 0; c < channels; ++c) {
              const size_t head = static_cast<size_t>(i % heads), at = static_cast<size_t>(c);
              expected.push_back(
                  total ? total->out[at] / (total->sum + literal::exp(sink[head] - total->maximum))
                        : 0.0f);
            }
          }
          // Rows without a partial of a subtree are listed now and then only.
          ListedPartials listed(channels + case_number % 3);
          for (size_t s = 0; s < count; ++s) {
            int64_t& listed_rows = listed.counts.emplace_back(0);
            for (int64_t t = 0; t < rows; ++t) {
              const int64_t first = (static_cast<int64_t>(s) * rows + t) * heads;
              const auto of_row = maximum.begin() + first;
              const bool none = std::all_of(of_row, of_row + heads,
                                            [](float value) { return value == -kInfinity; });
              if (none && random.below(2) == 0) {
                ++unlisted;
                continue;
              }
              ++listed_rows;
              listed.rows.push_back(t);
              listed.maximum.insert(listed.maximum.end(), of_row, of_row + heads);
              listed.sum.insert(listed.sum.end(), sum.begin() + first, sum.begin() + first + heads);
              for (int64_t h = first; h < first + heads; ++h) {
                const auto channel = out.begin() + h * channels;
                listed.out.insert(listed.out.end(), channel, channel + channels);
                listed.out.resize(listed.out.size() + static_cast<size_t>(listed.stride - channels),
                                  std::numeric_limits<float>::quiet_NaN());
              }
            }
          }
          for (const Target target : available_targets()) {
            CAPTURE(std::string(target_name(target)));
            Result result(rows * heads, channels, bf16);
            std::vector<float> lse(expected_lse.size(), -77.0f);
            attention_merge({rows, heads, channels, subtrees, listed.counts, listed.rows.data(),
                             listed.maximum.data(), listed.sum.data(), listed.out.data(),
                             listed.stride, sink.data(), result.out(), lse.data()},
                            target);
            CHECK(result.wrong(expected) == 0);
            CHECK(literal::different(lse, expected_lse) == 0);
          }
        }
      }
    }
  }
  CHECK(found_heads > 100);
  CHECK(empty_heads > 100);
  CHECK(unlisted > 20);
}

TEST_CASE("a key of another rank is named") {
  const int64_t channels = 32, heads = 2, rows = 3;
  RandomData random(random_seed(0x3066), 66, 0);
  const std::vector<float> q = random.uniforms(rows * heads * channels),
                           keys = random.uniforms(2 * channels);
  // Entries 8 and 264 are of leaves 1 and 33, at positions 32 and 33.
  const std::vector<int64_t> window_positions = {8, 264}, entries = {9, 271};
  for (const Target target : available_targets()) {
    CAPTURE(std::string(target_name(target)));
    constexpr int64_t kMost = 5;  // subtrees, of positions 33 to 64
    std::vector<float> maximum(kMost * rows * heads), sum(maximum),
        out(kMost * rows * heads * channels);
    AttentionPartials args;
    args.q = view(q.data(), rows * heads, channels);
    args.heads = heads;
    args.window = args.compressed = view(keys.data(), 2, channels);
    args.window_positions = window_positions.data();
    args.compressed_entries = entries.data();
    args.window_count = args.compressed_count = 1;
    args.maximum = maximum.data(), args.sum = sum.data(), args.out = out.data();
    const auto run = [&](const std::vector<int32_t>& window_index,
                         const std::vector<int32_t>& compressed_index, IndexRange positions) {
      args.window_index = window_index.data();
      args.compressed_index = compressed_index.data();
      args.positions = positions;
      return attention_partials(args, target);
    };
    CHECK(!run({0, -1, 0}, {0, 0, -1}, {32, 33}));
    CHECK(!run({-1, -1, -1}, {-1, -1, -1}, {7, 7}));
    const auto compressed = run({0, -1, 0}, {0, 1, -1}, {32, 33});
    REQUIRE(compressed);
    CHECK(compressed->query_row == 1);
    CHECK(!compressed->in_window);
    CHECK(compressed->key_row == 1);
    CHECK(compressed->tree_position == 33);
    const auto window = run({1, -1, 0}, {1, 1, -1}, {33, 64});
    REQUIRE(window);
    CHECK(window->query_row == 2);
    CHECK(window->in_window);
    CHECK(window->key_row == 0);
    CHECK(window->tree_position == 32);
  }
}

TEST_CASE("equal scores, and a list that is given in any order") {
  // All keys are one vector: every probability is 1, and the result is that vector, to the last
  // bit.
  const int64_t channels = 32, heads = 2, rows = 100;
  std::vector<float> q(static_cast<size_t>(heads * channels), 0.5f),
      keys(static_cast<size_t>(rows * channels), 0.25f);
  std::vector<int32_t> ascending, shuffled;
  for (int32_t i = 0; i < 64; ++i) ascending.push_back(i), shuffled.push_back((i * 37) % 64);
  for (const Target target : available_targets()) {
    CAPTURE(std::string(target_name(target)));
    std::vector<float> out(q.size()), other(q.size()), lse(2), other_lse(2);
    SparseAttention args;
    args.q = view(q.data(), heads, channels);
    args.heads = heads;
    args.window = view(keys.data(), rows, channels);
    args.window_index = ascending.data();
    args.window_count = 64;
    args.out = view(out.data(), heads, channels);
    args.lse = lse.data();
    sparse_attention(args, target);
    for (const float value : out) CHECK(value == 0.25f);
    CHECK(std::fabs(lse[0] - (4.0f + std::log(64.0f))) < 1e-5f);
    RandomData random(1, 62, 0);
    keys = random.uniforms(rows * channels);
    args.window = view(keys.data(), rows, channels);
    sparse_attention(args, target);
    args.window_index = shuffled.data();
    args.out = view(other.data(), heads, channels);
    args.lse = other_lse.data();
    sparse_attention(args, target);
    CHECK(literal::different(out, other) == 0);
    CHECK(literal::different(lse, other_lse) == 0);
    keys.assign(keys.size(), 0.25f);
  }
}

}  // namespace
}  // namespace deepinfer
