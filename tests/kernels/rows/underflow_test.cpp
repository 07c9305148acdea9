// Results just below 2^-126 that rounding brings up to it, in every kernel that can have one, on
// every target (CANONICAL.md C1.2). A processor that flushes before it rounds, as AArch64 does,
// makes zeros of them.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "sim/kernels/attention.h"
#include "sim/kernels/engram.h"
#include "sim/kernels/hyper_connection.h"
#include "sim/kernels/rows.h"
#include "sim/kernels/select.h"
#include "tests/kernels/rows/literal.h"
#include "tests/random_seed.h"

namespace deepinfer {
namespace {

constexpr float kSmallest = 0x1p-126f;
constexpr int64_t kColumns = 50;  // whole lane groups and a rest

// exact rounds up to 2^-126 in 24 bits, from below.
bool is_reached(double exact) { return exact < 0x1p-126 && exact >= 0x1p-126 * (1 - 0x1p-25); }

// A normal number whose exact product with `factor` is_reached(), if there is one: about every
// third factor has.
std::optional<float> partner(float factor) {
  const float near = static_cast<float>(0x1p-126 / static_cast<double>(factor));
  for (const float value : {near, std::nextafter(near, 0.0f), std::nextafter(near, 1.0f)}) {
    if (value >= kSmallest && is_reached(static_cast<double>(factor) * value)) return value;
  }
  return {};
}

struct Factors {
  std::vector<float> a, b;  // a[i] * b[i] is_reached()
};
Factors factors(RandomData& random, int64_t count) {
  Factors made;
  while (static_cast<int64_t>(made.a.size()) < count) {
    const float a = (1.0f + std::fabs(random.uniform())) * 0x1p-62f;
    const std::optional<float> b = partner(a);
    if (b) made.a.push_back(a), made.b.push_back(*b);
  }
  return made;
}

template <typename Check>
void on_all_targets(Check check) {
  for (const Target target : available_targets()) {
    CAPTURE(std::string(target_name(target)));
    check(target);
  }
}

const std::vector<float> kReached(kColumns, kSmallest);

TEST_CASE("rms_norm, in place and not") {
  RandomData random(random_seed(0x30A0), 0xA0, 0);
  const Factors f = factors(random, kColumns);
  on_all_targets([&](Target target) {
    // The squares vanish beside an eps of 1, so the norm is 1.
    std::vector<float> y(kColumns), in_place = f.a;
    rms_norm(view(f.a.data(), 1, kColumns), view(f.b.data(), 1, kColumns), 1,
             view(y.data(), 1, kColumns), target);
    CHECK(y == kReached);
    rms_norm(view(in_place.data(), 1, kColumns), view(f.b.data(), 1, kColumns), 1,
             view(in_place.data(), 1, kColumns), target);
    CHECK(in_place == kReached);
  });
}

TEST_CASE("rope, in place and not") {
  RandomData random(random_seed(0x30A1), 0xA1, 0);
  const int64_t pairs = 20, kept = kColumns - 2 * pairs, stride = kColumns + 3;
  const Factors f = factors(random, pairs);
  const std::vector<float> sines(pairs, 0.0f);
  // Two heads, rows apart: what lies between them is not touched.
  std::vector<float> x(2 * stride, 7.0f), expected;
  for (int64_t head = 0; head < 2; ++head) {
    for (size_t i = 0; i < pairs; ++i) {
      const size_t at = static_cast<size_t>(head * stride + kept) + 2 * i;
      x[at] = f.a[i], x[at + 1] = 0;
    }
  }
  expected = x;
  for (float& value : expected) value = value != 7 && value != 0 ? kSmallest : value;
  on_all_targets([&](Target target) {
    std::vector<float> y(x.size(), 7.0f), in_place = x;
    const RowView from{ElementType::kFp32, x.data(), 2, kColumns, stride};
    const MutableRowView to{ElementType::kFp32, y.data(), 2, kColumns, stride},
        same{ElementType::kFp32, in_place.data(), 2, kColumns, stride};
    rope(from, 2, f.b.data(), sines.data(), pairs, false, to, target);
    CHECK(y == expected);
    rope(same, 2, f.b.data(), sines.data(), pairs, false, same, target);
    CHECK(in_place == expected);
  });
}

TEST_CASE("swiglu, in place of the gate, of the other operand, and not") {
  RandomData random(random_seed(0x30A2), 0xA2, 0);
  // sigmoid(64) is 1. One column: the row's weight is the other factor.
  const Factors f = factors(random, kColumns);
  const std::vector<float> gate(kColumns, 64.0f);
  std::vector<float> up = f.a;
  for (float& value : up) value /= 64;
  on_all_targets([&](Target target) {
    std::vector<float> y(kColumns), as_gate = gate, as_up = up;
    const auto column = [](std::vector<float>& values) { return view(values.data(), kColumns, 1); };
    std::vector<float> g = gate, u = up;
    swiglu(column(g), column(u), f.b.data(), 100, column(y), target);
    CHECK(y == kReached);
    swiglu(column(as_gate), column(u), f.b.data(), 100, column(as_gate), target);
    CHECK(as_gate == kReached);
    swiglu(column(g), column(as_up), f.b.data(), 100, column(as_up), target);
    CHECK(as_up == kReached);
  });
}

TEST_CASE("hc_collapse, and hc_expand in place and not") {
  RandomData random(random_seed(0x30A3), 0xA3, 0);
  const Factors f = factors(random, kColumns);
  // One column a row: pre, post and comb are a row's.
  const std::vector<float> zeros(kColumns, 0.0f);
  on_all_targets([&](Target target) {
    std::vector<float> y(kColumns), out(kColumns), in_place = f.a;
    hc_collapse(view(f.a.data(), kColumns, 1), 1, f.b.data(), view(y.data(), kColumns, 1), target);
    CHECK(y == kReached);
    hc_expand(view(f.a.data(), kColumns, 1), view(zeros.data(), kColumns, 1), 1, f.b.data(),
              zeros.data(), view(out.data(), kColumns, 1), target);
    CHECK(out == kReached);
    hc_expand(view(zeros.data(), kColumns, 1), view(in_place.data(), kColumns, 1), 1, zeros.data(),
              f.b.data(), view(in_place.data(), kColumns, 1), target);
    CHECK(in_place == kReached);
  });
}

TEST_CASE("engram_gate, in place and not") {
  // Keys of zero give d = 0, so all gates are one number.
  const float gate = literal::sigmoid(std::sqrt(1e-6f));
  RandomData random(random_seed(0x30A4), 0xA4, 0);
  std::vector<float> x, keys_and_values(kColumns, 0.0f), expected;
  while (static_cast<int64_t>(x.size()) < kColumns) {
    const float value = (1.0f + std::fabs(random.uniform())) * 0x1p-122f;
    const float stream = static_cast<float>(0x1p-126 - static_cast<double>(gate) * value);
    if (!is_reached(static_cast<double>(gate) * value + static_cast<double>(stream))) continue;
    x.push_back(stream), keys_and_values.push_back(value);
  }
  const std::vector<float> ones(kColumns, 1.0f);
  const uint8_t text = 1;
  const auto row = [](std::vector<float>& values) { return view(values.data(), 1, kColumns); };
  const RowView key_value = view(keys_and_values.data(), 1, 2 * kColumns),
                weight = view(ones.data(), 1, kColumns);
  on_all_targets([&](Target target) {
    std::vector<float> y(kColumns), in_place = x;
    float found;
    engram_gate(row(x), 1, key_value, weight, weight, &text, 1, row(y), &found, target);
    CHECK(found == gate);
    CHECK(y == kReached);
    engram_gate(row(in_place), 1, key_value, weight, weight, &text, 1, row(in_place), &found,
                target);
    CHECK(found == gate);
    CHECK(in_place == kReached);
  });
}

TEST_CASE("compress_pool") {
  RandomData random(random_seed(0x30A5), 0xA5, 0);
  std::vector<float> gates, values;
  while (static_cast<int64_t>(gates.size()) < kColumns) {
    const float gate = random.uniform() * 8;
    const float e = literal::exp(gate - std::max(gate, 0.0f)),
                other = literal::exp(0.0f - std::max(gate, 0.0f));
    const std::optional<float> value = partner(e / (e + other));
    if (value) gates.push_back(gate), values.push_back(*value);
  }
  gates.resize(2 * kColumns, 0.0f);  // of the second token, whose values are 0
  values.resize(2 * kColumns, 0.0f);
  on_all_targets([&](Target target) {
    std::vector<float> pooled(kColumns);
    compress_pool(values.data(), gates.data(), 1, 2, kColumns, pooled.data(), target);
    CHECK(pooled == kReached);
  });
}

TEST_CASE("sparse_attention") {
  // Channel 0 makes the scores 0, -1, 0. Elsewhere the sum reaches 2^-126 with the second key,
  // which shows in the bits of the third's value.
  RandomData random(random_seed(0x30A6), 0xA6, 0);
  const float p = literal::exp(-1.0f);
  std::vector<float> keys(3 * kColumns), q(kColumns, 0.0f);
  q[0] = 1, keys[kColumns] = -1;
  std::vector<float> expected = {p * -1.0f};
  constexpr float kThird = 0x1.000002p-122f;
  for (size_t c = 1; c < kColumns;) {
    const float second = (1.0f + std::fabs(random.uniform())) * 0x1p-120f;
    const float first = static_cast<float>(0x1p-126 - static_cast<double>(p) * second);
    if (!is_reached(static_cast<double>(p) * second + static_cast<double>(first))) continue;
    keys[c] = first, keys[kColumns + c] = second, keys[2 * kColumns + c] = kThird;
    expected.push_back(kSmallest + kThird);
    ++c;
  }
  const float sum = 1.0f + p + 1.0f;
  for (float& value : expected) value = value / sum;
  CHECK(expected[1] != kThird / sum);
  const std::vector<int32_t> index = {0, 1, 2};
  on_all_targets([&](Target target) {
    std::vector<float> out(kColumns);
    float lse;
    SparseAttention args;
    args.q = view(q.data(), 1, kColumns);
    args.heads = 1;
    args.window = view(keys.data(), 3, kColumns);
    args.window_index = index.data();
    args.window_count = 3;
    args.out = view(out.data(), 1, kColumns);
    args.lse = &lse;
    sparse_attention(args, target);
    CHECK(literal::different(out, expected) == 0);
  });
}

TEST_CASE("attention_maximum") {
  // The product with the scale reaches 2^-126; other keys score less.
  RandomData random(random_seed(0x30A9), 0xA9, 0);
  const float scale = factors(random, 1).a[0];
  const std::optional<float> reached = partner(scale);
  REQUIRE(reached);
  const std::vector<float> q = {1, -1}, keys = {0, *reached};
  const std::vector<int32_t> index = {0, 1};
  on_all_targets([&](Target target) {
    std::vector<float> found(2);
    AttentionLists args;
    args.q = view(q.data(), 2, 1);
    args.heads = 2;
    args.window = view(keys.data(), 2, 1);
    args.window_index = index.data();
    args.window_count = 2;
    args.scale = scale;
    attention_maximum(args, found.data(), target);
    CHECK(found == std::vector<float>{kSmallest, 0});
  });
}

TEST_CASE("attention_partials") {
  // Scores 0, -1, 0 by channel 0, in one leaf; elsewhere as in sparse_attention's test.
  RandomData random(random_seed(0x30AA), 0xAA, 0);
  const float p = literal::exp(-1.0f);
  std::vector<float> keys(2 * kColumns), q(kColumns, 0.0f), expected = {p * -1.0f};
  q[0] = 1, keys[kColumns] = -1;
  for (size_t c = 1; c < kColumns;) {
    const float second = (1.0f + std::fabs(random.uniform())) * 0x1p-120f;
    const float first = static_cast<float>(0x1p-126 - static_cast<double>(p) * second);
    if (!is_reached(static_cast<double>(p) * second + static_cast<double>(first))) continue;
    keys[c] = first, keys[kColumns + c] = second;
    expected.push_back(kSmallest);
    ++c;
  }
  const std::vector<int32_t> index = {0, 1};
  const std::vector<int64_t> positions = {0, 1};
  on_all_targets([&](Target target) {
    std::vector<float> out(kColumns);
    float maximum, sum;
    AttentionPartials args;
    args.q = view(q.data(), 1, kColumns);
    args.heads = 1;
    args.window = view(keys.data(), 2, kColumns);
    args.window_index = index.data();
    args.window_count = 2;
    args.window_positions = positions.data();
    args.positions = {0, 1};
    args.maximum = &maximum;
    args.sum = &sum;
    args.out = out.data();
    CHECK(!attention_partials(args, target));
    CHECK(maximum == 0);
    CHECK(sum == 1.0f + p);
    CHECK(literal::different(out, expected) == 0);
  });
}

TEST_CASE("attention_merge") {
  // The first partial's outputs times exp(-1) reach 2^-126; its sum, and the second's outputs, are
  // 0.
  const std::optional<float> first = partner(literal::exp(-1.0f));
  REQUIRE(first);
  const std::vector<float> maximum = {-1, 0}, sum = {0, 1};
  std::vector<float> partial_out(kColumns, *first);
  partial_out.resize(2 * kColumns, 0.0f);
  const std::vector<int64_t> partial_rows = {0, 0};
  on_all_targets([&](Target target) {
    std::vector<float> out(kColumns);
    float lse;
    attention_merge({1,
                     1,
                     kColumns,
                     {{0, 1}, {1, 1}},
                     {1, 1},
                     partial_rows.data(),
                     maximum.data(),
                     sum.data(),
                     partial_out.data(),
                     kColumns,
                     nullptr,
                     view(out.data(), 1, kColumns),
                     &lse},
                    target);
    CHECK(out == kReached);
    CHECK(lse == 0);
  });
}

TEST_CASE("index_score") {
  RandomData random(random_seed(0x30A7), 0xA7, 0);
  const Factors f = factors(random, kColumns);
  const float one = 1;
  const std::vector<int64_t> visible(kColumns, 1);
  on_all_targets([&](Target target) {
    std::vector<float> scores(kColumns);
    index_score({view(f.a.data(), kColumns, 1), view(f.b.data(), kColumns, 1), view(&one, 1, 1),
                 visible.data(), false, scores.data(), 1},
                target);
    CHECK(scores == kReached);
  });
}

TEST_CASE("moe_gate") {
  // Two experts of two; the smaller weight times a tiny scaling.
  RandomData random(random_seed(0x30A8), 0xA8, 0);
  const std::vector<float> weight = {1, 0}, bias = {0, 0};
  int64_t tried = 0;
  while (tried < kColumns) {
    const float x = std::fabs(random.uniform()) * 4;
    const float large = std::sqrt(literal::function(MathFunction::kSoftplus, x)),
                small = std::sqrt(literal::function(MathFunction::kSoftplus, 0.0f));
    const std::optional<float> scaling = partner(small / (large + small));
    if (!scaling) continue;
    ++tried;
    on_all_targets([&](Target target) {
      int32_t experts[2];
      float weights[2];
      CHECK(moe_gate({view(&x, 1, 1), view(weight.data(), 2, 1), bias.data(), 0, 2, 1, *scaling,
                      experts, weights},
                     target) == -1);
      CHECK(experts[1] == 1);
      CHECK(weights[1] == kSmallest);
    });
  }
}

}  // namespace
}  // namespace deepinfer
