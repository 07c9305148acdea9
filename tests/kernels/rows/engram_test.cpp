// Engram hash, fetch and gate against their paragraphs (CANONICAL.md C9), on every target.
#include "sim/kernels/engram.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "platform/formats.h"
#include "tests/kernels/rows/literal.h"
#include "tests/random_seed.h"

namespace deepinfer {
namespace {

using literal::Data;
using literal::Result;

TEST_CASE("the hash of a short text, by hand") {
  // model-verified.md 10: H_b = H_{b-1} xor c_b M_b; a dead look-back makes all longer ones pad
  // (9).
  const std::vector<int64_t> ids = {5, 6, -1, 7}, multipliers = {3, 5, 11},
                             primes = {101, 103, 107, 109}, offsets = {0, 101, 204, 311};
  const auto expected_row = [&](int64_t c0, int64_t c1, int64_t c2) {
    const int64_t h1 = (c0 * 3) ^ (c1 * 5), h2 = h1 ^ (c2 * 11);
    return std::vector<int64_t>{h1 % 101, h1 % 103 + 101, h2 % 107 + 204, h2 % 109 + 311};
  };
  std::vector<int64_t> expected;
  for (const std::vector<int64_t>& row : {expected_row(5, 9, 9), expected_row(6, 5, 9),
                                          expected_row(9, 9, 9), expected_row(7, 9, 9)}) {
    expected.insert(expected.end(), row.begin(), row.end());
  }
  std::vector<int64_t> found(16);
  engram_hash(ids, 4, multipliers, primes, offsets, 9, found.data());
  CHECK(found == expected);
  // The last row alone reads the rows before it.
  std::vector<int64_t> last(4);
  engram_hash(ids, 1, multipliers, primes, offsets, 9, last.data());
  CHECK(std::equal(last.begin(), last.end(), expected.begin() + 12));
  engram_hash(ids, 0, multipliers, primes, offsets, 9, nullptr);
}

TEST_CASE("fetch dequantises table rows exactly") {
  const uint64_t seed = random_seed(0x3070);
  RandomData random(seed, 70, 0);
  const int64_t rows = 50, columns = 96;
  std::vector<uint8_t> codes, scales;
  for (int64_t i = 0; i < rows * columns; ++i)
    codes.push_back(static_cast<uint8_t>(random.below(256)));
  for (int64_t i = 0; i < rows * columns / 32; ++i)
    scales.push_back(static_cast<uint8_t>(100 + random.below(50)));
  for (uint8_t& code : codes) code = (code & 0x7F) == 0x7F ? 0 : code;
  std::vector<int64_t> wanted;
  for (int64_t i = 0; i < 24; ++i) wanted.push_back(random.below(rows));
  std::vector<float> expected;
  for (const int64_t row : wanted) {
    for (int64_t c = 0; c < columns; ++c) {
      const size_t at = static_cast<size_t>(row * columns + c);
      expected.push_back(decode(NumericFormat::kE4M3FN, codes[at]) *
                         decode(NumericFormat::kE8M0, scales[at / 32]));
    }
  }
  for (const Target target : available_targets()) {
    for (const bool bf16 : {false, true}) {
      Result out(24, columns, bf16);
      CHECK(engram_fetch(codes.data(), scales.data(), rows, wanted.data(), out.out(), target) ==
            -1);
      CHECK(out.wrong(expected) == 0);
    }
    std::vector<int64_t> outside = wanted;
    outside[7] = rows;
    outside[9] = -1;
    Result out(24, columns, false);
    CHECK(engram_fetch(codes.data(), scales.data(), rows, outside.data(), out.out(), target) == 7);
    CHECK(out.wide[0] == -77.0f);
  }
}

TEST_CASE("gate") {
  const uint64_t seed = random_seed(0x3071);
  uint32_t case_number = 0;
  for (const int64_t hidden : {1, 16, 30, 256}) {
    for (const int64_t count : {1, 4}) {
      for (const int types : {0, 1, 2, 3}) {
        CAPTURE(hidden);
        CAPTURE(count);
        CAPTURE(types);
        RandomData random(seed, 71, case_number++);
        const int64_t rows = 3;
        const size_t n = static_cast<size_t>(hidden);
        const bool bf16 = (types & 1) != 0;
        const Data x(random.uniforms(rows * count * hidden, 2), bf16),
            key_value(random.uniforms(rows * (count + 1) * hidden, 2), bf16);
        Data q(random.uniforms(count * hidden), (types & 2) != 0),
            k(random.uniforms(count * hidden), (types & 2) != 0);
        const uint8_t text[] = {1, 0, 1};
        const float eps = 1e-20f;
        std::vector<float> expected, expected_gates;
        for (int64_t t = 0; t < rows; ++t) {
          const auto value = key_value.row(t * (count + 1) + count, hidden);
          for (int64_t i = 0; i < count; ++i) {
            const auto stream = x.row(t * count + i, hidden),
                       key = key_value.row(t * (count + 1) + i, hidden);
            std::vector<float> weighted(n);
            for (size_t c = 0; c < n; ++c) {
              weighted[c] = stream[c] * (q.row(i, hidden)[c] * k.row(i, hidden)[c]);
            }
            const float d =
                ((literal::dot_fp32(weighted, key) * literal::inverse_rms(stream, eps)) *
                 literal::inverse_rms(key, eps)) *
                (1.0f / std::sqrt(static_cast<float>(hidden)));
            float gate =
                literal::sigmoid(std::copysign(std::sqrt(std::max(std::fabs(d), 1e-6f)), d));
            if (text[t] == 0) gate = 0;
            expected_gates.push_back(gate);
            for (size_t c = 0; c < n; ++c) expected.push_back(std::fma(gate, value[c], stream[c]));
          }
        }
        for (const Target target : available_targets()) {
          CAPTURE(std::string(target_name(target)));
          Result out(rows, count * hidden, bf16);
          std::vector<float> gates(expected_gates.size());
          engram_gate(x.rows(rows), count, key_value.rows(rows), q.rows(count), k.rows(count), text,
                      eps, out.out(), gates.data(), target);
          CHECK(out.wrong(expected) == 0);
          CHECK(literal::different(gates, expected_gates) == 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer
