// Norm, rotation and activation against their paragraphs (CANONICAL.md C6.1 to C6.3), on every
// target.
#include "sim/kernels/rows.h"

#include <cmath>
#include <cstdint>
#include <limits>
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
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Runs `check(target)` for every target with its name in the message.
template <typename Check>
void on_all_targets(Check check) {
  for (const Target target : available_targets()) {
    CAPTURE(std::string(target_name(target)));
    check(target);
  }
}

TEST_CASE("rms_norm") {
  const uint64_t seed = random_seed(0x3030);
  uint32_t case_number = 0;
  for (const int64_t columns : {1, 2, 15, 16, 17, 33, 64, 100, 512, 1000}) {
    for (const int64_t rows : {0, 1, 3, 4, 9}) {
      for (const int types : {0, 1, 2, 3}) {
        CAPTURE(columns);
        CAPTURE(rows);
        CAPTURE(types);
        RandomData random(seed, 30, case_number++);
        const Data x(random.spreads(rows * columns, 3), (types & 1) != 0);
        const Data weight(random.uniforms(columns), (types & 2) != 0);
        const float eps = types == 0 ? 1e-20f : 1e-6f;
        std::vector<float> expected;
        for (int64_t r = 0; r < rows; ++r) {
          const float inverse = literal::inverse_rms(x.row(r, columns), eps);
          for (int64_t c = 0; c < columns; ++c) {
            expected.push_back(weight.wide[static_cast<size_t>(c)] *
                               (x.row(r, columns)[static_cast<size_t>(c)] * inverse));
          }
        }
        RowView x_rows = x.rows(rows);
        x_rows.columns = x_rows.row_stride = columns;
        on_all_targets([&](Target target) {
          Result y(rows, columns, x.is_bf16);
          rms_norm(x_rows, weight.rows(1), eps, y.out(), target);
          CHECK(y.wrong(expected) == 0);
        });
      }
    }
  }
}

TEST_CASE("rms_norm of every bf16 number, subnormals and NaN among them, is one on all targets") {
  std::vector<uint16_t> x, weight(16, 0x3F80);
  // Rows of sixteen neighbours; a row with a NaN or an infinity is NaN or 0 as a whole.
  for (uint32_t bits = 0; bits < 0x10000; ++bits) x.push_back(static_cast<uint16_t>(bits));
  std::vector<uint16_t> scalar(x.size()), other(x.size());
  rms_norm(view(x.data(), 4096, 16), view(weight.data(), 1, 16), 1e-6f,
           view(scalar.data(), 4096, 16), Target::kScalar);
  on_all_targets([&](Target target) {
    rms_norm(view(x.data(), 4096, 16), view(weight.data(), 1, 16), 1e-6f,
             view(other.data(), 4096, 16), target);
    CHECK(other == scalar);
  });
}

TEST_CASE("rope_table and rope, forward and inverse, in place and not") {
  const uint64_t seed = random_seed(0x3031);
  uint32_t case_number = 0;
  for (const int64_t pairs : {0, 1, 3, 8, 9, 32}) {
    for (const int64_t kept : {0, 1, 448}) {
      for (const int64_t heads : {1, 3}) {
        for (const bool bf16 : {false, true}) {
          CAPTURE(pairs);
          CAPTURE(kept);
          CAPTURE(heads);
          CAPTURE(bf16);
          RandomData random(seed, 31, case_number++);
          const int64_t tokens = 4, columns = kept + 2 * pairs, rows = tokens * heads;
          std::vector<int64_t> positions;
          for (int64_t t = 0; t < tokens; ++t) positions.push_back(random.below(1 << 20));
          std::vector<float> frequencies;
          for (int64_t i = 0; i < pairs; ++i) {
            frequencies.push_back(
                std::pow(10000.0f, -static_cast<float>(i) / static_cast<float>(pairs)));
          }
          std::vector<float> cosines, sines;
          for (const int64_t position : positions) {
            for (const float frequency : frequencies) {
              const float angle = static_cast<float>(position) * frequency;
              cosines.push_back(static_cast<float>(std::cos(static_cast<double>(angle))));
              sines.push_back(static_cast<float>(std::sin(static_cast<double>(angle))));
            }
          }
          const Data x(random.spreads(rows * columns, 3), bf16);
          RowView x_rows = x.rows(rows);
          x_rows.columns = x_rows.row_stride = columns;
          for (const bool inverse : {false, true}) {
            std::vector<float> expected = x.wide;
            for (int64_t r = 0; r < rows; ++r) {
              for (int64_t i = 0; i < pairs; ++i) {
                const size_t angle = static_cast<size_t>(r / heads * pairs + i);
                const size_t at = static_cast<size_t>(r * columns + kept + 2 * i);
                const float c = cosines[angle], s = inverse ? -sines[angle] : sines[angle];
                const float e = x.wide[at], o = x.wide[at + 1];
                expected[at] = std::fma(e, c, -(o * s));
                expected[at + 1] = std::fma(e, s, o * c);
              }
            }
            on_all_targets([&](Target target) {
              std::vector<float> table_cos(cosines.size()), table_sin(sines.size());
              rope_table(positions.data(), tokens, frequencies.data(), pairs, table_cos.data(),
                         table_sin.data(), target);
              // Rounded from fp64, whose last bit decides in fewer than one case of 2^28.
              CHECK(literal::different(table_cos, cosines) == 0);
              CHECK(literal::different(table_sin, sines) == 0);
              Result y(rows, columns, bf16);
              rope(x_rows, heads, cosines.data(), sines.data(), pairs, inverse, y.out(), target);
              CHECK(y.wrong(expected) == 0);
              Result in_place(rows, columns, bf16);
              std::copy(x.wide.begin(), x.wide.end(), in_place.wide.begin());
              std::copy(x.narrow.begin(), x.narrow.end(), in_place.narrow.begin());
              rope(in_place.out(), heads, cosines.data(), sines.data(), pairs, inverse,
                   in_place.out(), target);
              CHECK(in_place.wrong(expected) == 0);
            });
          }
        }
      }
    }
  }
}

TEST_CASE("swiglu with clamps that bind and row weights") {
  const uint64_t seed = random_seed(0x3032);
  uint32_t case_number = 0;
  for (const int64_t columns : {1, 16, 31, 100}) {
    for (const bool weighted : {false, true}) {
      for (const bool bf16 : {false, true}) {
        CAPTURE(columns);
        CAPTURE(weighted);
        CAPTURE(bf16);
        RandomData random(seed, 32, case_number++);
        const int64_t rows = 5;
        const float limit = 2;
        const Data gate(random.uniforms(rows * columns, 8), bf16),
            up(random.uniforms(rows * columns, 8), bf16);
        const std::vector<float> weights = random.uniforms(rows);
        std::vector<float> expected;
        int64_t clamped = 0;
        for (size_t i = 0; i < gate.wide.size(); ++i) {
          const float g = std::min(gate.wide[i], limit);
          const float u = std::min(std::max(up.wide[i], -limit), limit);
          clamped += (g != gate.wide[i] ? 1 : 0) + (u != up.wide[i] ? 1 : 0);
          float a = literal::function(MathFunction::kSilu, g) * u;
          if (weighted) a = a * weights[i / static_cast<size_t>(columns)];
          expected.push_back(a);
        }
        CHECK(clamped > 0);
        on_all_targets([&](Target target) {
          Result y(rows, columns, bf16);
          swiglu(gate.rows(rows), up.rows(rows), weighted ? weights.data() : nullptr, limit,
                 y.out(), target);
          CHECK(y.wrong(expected) == 0);
        });
      }
    }
  }
}

TEST_CASE("swiglu of every bf16 gate is one on all targets; a NaN stays") {
  std::vector<uint16_t> gate, up;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    gate.push_back(static_cast<uint16_t>(bits));
    up.push_back(static_cast<uint16_t>(bits * 40503u));
  }
  std::vector<uint16_t> scalar(gate.size()), other(gate.size());
  swiglu(view(gate.data(), 256, 256), view(up.data(), 256, 256), nullptr, 10,
         view(scalar.data(), 256, 256), Target::kScalar);
  on_all_targets([&](Target target) {
    swiglu(view(gate.data(), 256, 256), view(up.data(), 256, 256), nullptr, 10,
           view(other.data(), 256, 256), target);
    CHECK(other == scalar);
    const float inputs[] = {kNan, 1, kInfinity, -kInfinity}, ones[] = {1, kNan, 1, 1};
    float y[4];
    swiglu(view(inputs, 1, 4), view(ones, 1, 4), nullptr, 10, view(y, 1, 4), target);
    CHECK(std::isnan(y[0]));
    CHECK(std::isnan(y[1]));
    CHECK(y[2] > 9.9f);
    CHECK(std::isnan(y[3]));  // -inf * sigmoid(-inf) = -inf * 0
  });
}

TEST_CASE("store_rows") {
  const std::vector<float> rows = {1, 2, 3, 4, 5, 6};
  std::vector<float> pool(5 * 4, 0);
  MutableRowView strided = view(pool.data(), 5, 2);
  strided.row_stride = 4;
  const int64_t slots[] = {4, 0, 2};
  CHECK(store_rows(strided, view(rows.data(), 3, 2), slots) == -1);
  CHECK(pool == std::vector<float>{3, 4, 0, 0, 0, 0, 0, 0, 5, 6, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0});
  const int64_t outside[] = {1, 5, -1};
  const std::vector<float> before = pool;
  CHECK(store_rows(strided, view(rows.data(), 3, 2), outside) == 1);
  CHECK(pool == before);
}

}  // namespace
}  // namespace deepinfer
