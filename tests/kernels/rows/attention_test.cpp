// Attention and pooling against their paragraphs (CANONICAL.md C7), on every target.
#include "sim/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/kernels/rows/literal.h"
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

TEST_CASE("sparse attention") {
  const uint64_t seed = random_seed(0x3061);
  const Case cases[] = {
      {1, 16, 8, 4, 0, false, false, false},         {3, 20, 20, 30, 3, false, false, true},
      {16, 32, 130, 0, 1000, true, false, true},     {17, 40, 128, 600, 77, true, true, true},
      {5, 64, 0, 64, 0, true, true, false},          {33, 48, 40, 700, 505, false, true, true},
      {2, 33, 128, 520, 300, false, false, false},   {5, 40, 128, 600, 77, true, true, true, 3},
      {3, 33, 130, 520, 300, false, false, true, 2}, {17, 16, 64, 64, 5, true, false, false, 1}};
  uint32_t case_number = 0;
  for (const Case& c : cases) {
    CAPTURE(case_number);
    RandomData random(seed, 61, case_number++);
    const int64_t window_count = c.window_rows * 3 / 4 + (c.window_rows == 0 ? 0 : 3);
    const int64_t compressed_count = c.compressed_rows * 3 / 4 + 2;
    const Inputs in = make_inputs(c, random, window_count, compressed_count);
    const float scale = 0.3f;
    std::vector<float> expected, expected_lse;
    int64_t merges = 0;
    int64_t ties = 0;  // of leaf maxima that merge
    double squared_error = 0, squared = 0;
    for (int64_t t = 0; t < kRows; ++t) {
      std::vector<std::vector<Key>> leaves(64);
      std::vector<Key> all;
      for (int64_t i = 0; i < window_count; ++i) {
        const int32_t index = in.window_index[static_cast<size_t>(t * window_count + i)];
        if (index < 0) continue;
        all.push_back({in.window.row(index, c.channels)});
        leaves[static_cast<size_t>((c.first_position + index) / 8 % 64)].push_back(all.back());
      }
      for (int64_t i = 0; i < compressed_count; ++i) {
        const int32_t index = in.compressed_index[static_cast<size_t>(t * compressed_count + i)];
        if (index < 0) continue;
        all.push_back({in.compressed.row(index, c.channels)});
        leaves[static_cast<size_t>(index / 8 % 64)].push_back(all.back());
      }
      for (int64_t h = 0; h < c.heads; ++h) {
        const auto q = in.q.row(t * c.heads + h, c.channels);
        std::vector<MaybePartial> partials;
        for (const std::vector<Key>& keys : leaves) {
          partials.push_back(leaf_partial(q, keys, all, scale, c.bf16, c.narrow));
        }
        for (size_t half = 32; half > 0; half /= 2) {
          for (size_t i = 0; i < half; ++i) {
            const bool both = partials[i] && partials[i + half];
            merges += both ? 1 : 0;
            ties += both && partials[i]->maximum == partials[i + half]->maximum ? 1 : 0;
            partials[i] = merged(partials[i], partials[i + half]);
          }
        }
        const MaybePartial& total = partials[0];
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
        for (const Key& key : all) {
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
    if (c.compressed_rows + c.window_rows > 64) CHECK(merges > 10);
    if (c.distinct_keys > 0) CHECK(ties > 10);
    for (const Target target : available_targets()) {
      CAPTURE(std::string(target_name(target)));
      Result out(kRows * c.heads, c.channels, c.bf16);
      std::vector<float> lse(static_cast<size_t>(kRows * c.heads));
      SparseAttention args;
      args.q = in.q.rows(kRows * c.heads);
      args.heads = c.heads;
      args.window = in.window.rows(c.window_rows);
      args.window_first_position = c.first_position;
      args.window_index = in.window_index.data();
      args.window_count = window_count;
      args.compressed = in.compressed.rows(c.compressed_rows);
      args.compressed_index = in.compressed_index.data();
      args.compressed_count = compressed_count;
      if (c.compressed_rows == 0) args.compressed_count = 0;
      args.sink = c.sink ? in.sink.data() : nullptr;
      args.scale = scale;
      args.narrow = c.narrow;
      args.out = out.out();
      args.lse = lse.data();
      sparse_attention(args, target);
      CHECK(out.wrong(expected) == 0);
      CHECK(literal::different(lse, expected_lse) == 0);
    }
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
