// Hyper-connections against their paragraphs (CANONICAL.md C6.4, C6.5), on every target.
#include "sim/kernels/hyper_connection.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/kernels/rows/literal.h"
#include "tests/random_seed.h"

namespace deepinfer {
namespace {

using literal::Data;
using literal::Result;

struct Coefficients {
  std::vector<float> pre, post, comb;
};

// C6.4 for one row of s streams. `streams_bf16`: the product with the fp32 fn is C2.2 all the same.
void append_coefficients(std::span<const float> x, const std::vector<float>& fn,
                         const std::vector<float>& scale, const std::vector<float>& base, size_t s,
                         int64_t iterations, float hc_eps, float norm_eps, Coefficients& to) {
  const float r = literal::inverse_rms(x, norm_eps);
  const auto linear = [&](size_t q, size_t part) {
    const float m = literal::dot_fp32(std::span(fn).subspan(q * x.size(), x.size()), x) * r;
    return std::fma(m, scale[part], base[q]);
  };
  for (size_t i = 0; i < s; ++i) to.pre.push_back(literal::sigmoid(linear(i, 0)) + hc_eps);
  for (size_t i = 0; i < s; ++i) to.post.push_back(2.0f * literal::sigmoid(linear(s + i, 1)));
  std::vector<std::vector<float>> c(s, std::vector<float>(s));
  for (size_t j = 0; j < s; ++j) {
    for (size_t k = 0; k < s; ++k) c[j][k] = linear(2 * s + j * s + k, 2);
    const float largest = *std::max_element(c[j].begin(), c[j].end());
    for (float& value : c[j]) value = literal::exp(value - largest);
    float sum = c[j][0];
    for (size_t k = 1; k < s; ++k) sum = sum + c[j][k];
    for (float& value : c[j]) value = value / sum + hc_eps;
  }
  const auto column_step = [&] {
    for (size_t k = 0; k < s; ++k) {
      float sum = c[0][k];
      for (size_t j = 1; j < s; ++j) sum = sum + c[j][k];
      for (size_t j = 0; j < s; ++j) c[j][k] = c[j][k] / (sum + hc_eps);
    }
  };
  const auto row_step = [&] {
    for (size_t j = 0; j < s; ++j) {
      float sum = c[j][0];
      for (size_t k = 1; k < s; ++k) sum = sum + c[j][k];
      for (size_t k = 0; k < s; ++k) c[j][k] = c[j][k] / (sum + hc_eps);
    }
  };
  column_step();
  for (int64_t i = 1; i < iterations; ++i) row_step(), column_step();
  for (const std::vector<float>& row : c) to.comb.insert(to.comb.end(), row.begin(), row.end());
}

TEST_CASE("hc_mix") {
  const uint64_t seed = random_seed(0x3040);
  uint32_t case_number = 0;
  for (const int64_t s : {1, 2, 4}) {
    for (const int64_t hidden : {5, 16, 40, 256}) {
      for (const int64_t rows : {0, 1, 16, 19}) {
        for (const bool bf16 : {false, true}) {
          CAPTURE(s);
          CAPTURE(hidden);
          CAPTURE(rows);
          CAPTURE(bf16);
          RandomData random(seed, 40, case_number++);
          const int64_t n = s * hidden, total = 2 * s + s * s, iterations = 1 + random.below(20);
          const Data x(random.uniforms(rows * n, 3), bf16);
          const std::vector<float> fn = random.uniforms(total * n), scale = random.uniforms(3, 2),
                                   base = random.uniforms(total, 2);
          Coefficients expected;
          for (int64_t t = 0; t < rows; ++t) {
            append_coefficients(x.row(t, n), fn, scale, base, static_cast<size_t>(s), iterations,
                                1e-6f, 1e-20f, expected);
          }
          for (const Target target : available_targets()) {
            CAPTURE(std::string(target_name(target)));
            Coefficients found{std::vector<float>(static_cast<size_t>(rows * s)),
                               std::vector<float>(static_cast<size_t>(rows * s)),
                               std::vector<float>(static_cast<size_t>(rows * s * s))};
            RowView streams = x.rows(rows);
            streams.columns = streams.row_stride = n;
            hc_mix({streams, s, fn.data(), scale.data(), base.data(), iterations, 1e-6f, 1e-20f,
                    found.pre.data(), found.post.data(), found.comb.data()},
                   target);
            CHECK(literal::different(found.pre, expected.pre) == 0);
            CHECK(literal::different(found.post, expected.post) == 0);
            CHECK(literal::different(found.comb, expected.comb) == 0);
          }
          // Sinkhorn's purpose: the columns sum to one, less what hc_eps in the divisor takes.
          for (int64_t t = 0; t < rows; ++t) {
            for (int64_t k = 0; k < s; ++k) {
              float sum = 0;
              for (int64_t j = 0; j < s; ++j)
                sum += expected.comb[static_cast<size_t>((t * s + j) * s + k)];
              CHECK(sum > 0);
              CHECK(sum < 1 + 1e-5f);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("collapse and expand") {
  const uint64_t seed = random_seed(0x3041);
  uint32_t case_number = 0;
  for (const size_t s : {1, 2, 4}) {
    for (const size_t hidden : {1, 15, 16, 50, 128}) {
      for (const bool bf16 : {false, true}) {
        CAPTURE(s);
        CAPTURE(hidden);
        CAPTURE(bf16);
        RandomData random(seed, 41, case_number++);
        const size_t rows = 3;
        const Data streams(random.spreads(static_cast<int64_t>(rows * s * hidden), 3), bf16);
        const Data y(random.spreads(static_cast<int64_t>(rows * hidden), 3), bf16);
        const std::vector<float> pre = random.uniforms(static_cast<int64_t>(rows * s)),
                                 post = random.uniforms(static_cast<int64_t>(rows * s)),
                                 comb = random.uniforms(static_cast<int64_t>(rows * s * s));
        const auto stream = [&](size_t t, size_t j, size_t c) {
          return streams.wide[(t * s + j) * hidden + c];
        };
        std::vector<float> collapsed, expanded;
        for (size_t t = 0; t < rows; ++t) {
          for (size_t c = 0; c < hidden; ++c) {
            float acc = pre[t * s] * stream(t, 0, c);
            for (size_t i = 1; i < s; ++i) acc = std::fma(pre[t * s + i], stream(t, i, c), acc);
            collapsed.push_back(acc);
          }
          for (size_t k = 0; k < s; ++k) {
            for (size_t c = 0; c < hidden; ++c) {
              float acc = post[t * s + k] * y.wide[t * hidden + c];
              for (size_t j = 0; j < s; ++j)
                acc = std::fma(comb[(t * s + j) * s + k], stream(t, j, c), acc);
              expanded.push_back(acc);
            }
          }
        }
        for (const Target target : available_targets()) {
          CAPTURE(std::string(target_name(target)));
          const int64_t count = static_cast<int64_t>(rows), width = static_cast<int64_t>(hidden);
          const int64_t number = static_cast<int64_t>(s);
          Result narrow(count, width, bf16);
          hc_collapse(streams.rows(count), number, pre.data(), narrow.out(), target);
          CHECK(narrow.wrong(collapsed) == 0);
          Result wide(count, number * width, bf16);
          hc_expand(y.rows(count), streams.rows(count), number, post.data(), comb.data(),
                    wide.out(), target);
          CHECK(wide.wrong(expanded) == 0);
          // In place.
          Result same(count, number * width, bf16);
          std::copy(streams.wide.begin(), streams.wide.end(), same.wide.begin());
          std::copy(streams.narrow.begin(), streams.narrow.end(), same.narrow.begin());
          hc_expand(y.rows(count), same.out(), number, post.data(), comb.data(), same.out(),
                    target);
          CHECK(same.wrong(expanded) == 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer
