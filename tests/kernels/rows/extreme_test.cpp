// Every kernel on numbers that underflow, overflow and are no numbers: one result on all targets
// (CANONICAL.md C1.2, C1.3), whatever floating-point mode the caller has.
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "sim/kernels/attention.h"
#include "sim/kernels/engram.h"
#include "sim/kernels/hyper_connection.h"
#include "sim/kernels/rows.h"
#include "sim/kernels/select.h"
#include "tests/kernels/caller_mode.h"
#include "tests/kernels/rows/literal.h"
#include "tests/kernels/rows/ranked_attention.h"
#include "tests/random_seed.h"

namespace deepinfer {
namespace {

using literal::Data;

// Where the numbers lie.
enum class Range { kTiny, kAroundUnderflow, kWide, kHuge, kAnyBits };

std::vector<float> numbers(RandomData& random, int64_t count, Range range) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    const auto power = [&](int lowest, int highest) {
      return std::bit_cast<float>(
          static_cast<uint32_t>(127 + lowest + random.below(highest - lowest + 1)) << 23);
    };
    switch (range) {
      case Range::kTiny:
        values.push_back(random.uniform() * power(-126, -110));
        break;
      case Range::kAroundUnderflow:
        values.push_back(random.uniform() * power(-66, -58));
        break;
      case Range::kWide:
        values.push_back(random.uniform() * power(-126, 126));
        break;
      case Range::kHuge:
        values.push_back(random.uniform() * power(60, 127));
        break;
      case Range::kAnyBits:
        values.push_back(std::bit_cast<float>(random.bits()));
        break;
    }
    // Subnormals of all sizes among them.
    if (random.below(8) == 0) {
      values.back() = std::bit_cast<float>((random.bits() & 0x80000000) |
                                           (random.bits() & 0x7FFFFF) >> random.below(20));
    }
  }
  return values;
}

// Some numbers are negative zero or rounded to bf16's NaN; Data's rounding is for finite numbers,
// so round by bits.
Data data(RandomData& random, int64_t count, Range range, bool bf16) {
  Data made(numbers(random, count, range), false);
  if (bf16) {
    made.is_bf16 = true;
    for (float& value : made.wide) {
      made.narrow.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
      value = from_bf16(made.narrow.back());
    }
  }
  return made;
}

// Results of all kernels for one draw, as bytes.
std::vector<uint8_t> run_all(uint64_t seed, Range range, bool bf16, Target target) {
  RandomData random(seed, 80, static_cast<uint32_t>(range) * 2 + (bf16 ? 1 : 0));
  std::vector<uint8_t> bytes;
  const auto keep = [&bytes](const void* from, size_t size) {
    const uint8_t* begin = static_cast<const uint8_t*>(from);
    bytes.insert(bytes.end(), begin, begin + size);
  };
  const auto keep_result = [&](const literal::Result& result) {
    keep(result.wide.data(), result.wide.size() * sizeof(float));
    keep(result.narrow.data(), result.narrow.size() * sizeof(uint16_t));
  };
  const auto keep_floats = [&](const std::vector<float>& values) {
    keep(values.data(), values.size() * sizeof(float));
  };

  const int64_t rows = 6, columns = 77, streams = 3, heads = 5, keys = 90;
  const Data x = data(random, rows * streams * columns, range, bf16),
             y = data(random, rows * streams * columns, range, bf16);
  const RowView narrow_x{x.rows(rows).type, x.rows(rows).data, rows, columns, streams * columns};
  const RowView narrow_y{y.rows(rows).type, y.rows(rows).data, rows, columns, streams * columns};
  const std::vector<float> small = numbers(random, 200, range),
                           fn = numbers(random, 15 * streams * columns, range);

  literal::Result normed(rows, columns, bf16), turned(rows, columns, bf16),
      activated(rows, columns, bf16);
  rms_norm(narrow_x, {narrow_y.type, narrow_y.data, 1, columns, columns}, 1e-20f, normed.out(),
           target);
  keep_result(normed);
  const int64_t positions[] = {0, 1, 7, 1000, 65537, 1 << 20};
  std::vector<float> cosines(6 * 20), sines(6 * 20);
  rope_table(positions, 6, small.data(), 20, cosines.data(), sines.data(), target);
  if (range == Range::kTiny || range == Range::kAroundUnderflow)
    keep_floats(cosines), keep_floats(sines);
  rope(narrow_x, 1, small.data(), small.data() + 60, 10, false, turned.out(), target);
  keep_result(turned);
  swiglu(narrow_x, narrow_y, small.data(), 7, activated.out(), target);
  keep_result(activated);

  std::vector<float> pre(rows * streams), post(pre.size()), comb(pre.size() * streams);
  hc_mix({x.rows(rows), streams, fn.data(), small.data(), small.data() + 10, 5, 1e-6f, 1e-20f,
          pre.data(), post.data(), comb.data()},
         target);
  keep_floats(pre), keep_floats(post), keep_floats(comb);
  literal::Result collapsed(rows, columns, bf16), expanded(rows, streams * columns, bf16);
  hc_collapse(x.rows(rows), streams, small.data(), collapsed.out(), target);
  keep_result(collapsed);
  hc_expand(narrow_y, x.rows(rows), streams, small.data(), small.data() + 50, expanded.out(),
            target);
  keep_result(expanded);

  const Data key_value = data(random, rows * (streams + 1) * columns, range, bf16);
  const uint8_t text[] = {1, 1, 0, 1, 1, 1};
  literal::Result gated(rows, streams * columns, bf16);
  std::vector<float> gates(rows * streams);
  engram_gate(x.rows(rows), streams, key_value.rows(rows), view(fn.data(), streams, columns),
              view(fn.data() + streams * columns, streams, columns), text, 1e-20f, gated.out(),
              gates.data(), target);
  keep_result(gated), keep_floats(gates);

  std::vector<float> pooled(3 * columns);
  compress_pool(fn.data(), fn.data() + 400, 3, 4, columns / 2, pooled.data(), target);
  keep_floats(pooled);
  const Data q = data(random, rows * heads * columns, range, bf16),
             k = data(random, keys * columns, range, bf16);
  const std::vector<int64_t> visible(rows, keys);
  for (const bool rounded : {false, true}) {
    std::vector<float> scores(rows * keys);
    index_score({q.rows(rows * heads), view(small.data(), rows, heads), k.rows(keys),
                 visible.data(), rounded, scores.data(), keys},
                target);
    keep_floats(scores);
    std::vector<int32_t> index(static_cast<size_t>(rows * keys));
    for (size_t i = 0; i < index.size(); ++i) index[i] = static_cast<int32_t>(i % keys);
    literal::Result attended(rows * heads, columns, bf16);
    std::vector<float> lse(rows * heads);
    SparseAttention args;
    args.q = q.rows(rows * heads);
    args.heads = heads;
    args.window = k.rows(keys);
    args.window_first_position = 480;
    args.window_index = index.data();
    args.window_count = keys / 2;
    args.compressed = k.rows(keys);
    args.compressed_index = index.data();
    args.compressed_count = keys / 2;
    args.sink = small.data();
    args.narrow = rounded;
    args.out = attended.out();
    args.lse = lse.data();
    sparse_attention(args, target);
    keep_result(attended), keep_floats(lse);
    // Infinite scores are scores too: a leaf that has no other is there.
    literal::Result ranked(rows * heads, columns, bf16);
    std::vector<float> ranked_lse(lse.size());
    args.out = ranked.out();
    args.lse = ranked_lse.data();
    ranked_attention(args, rounded == bf16 ? 3 : 64, target);
    CHECK(literal::different(ranked.wide, attended.wide) == 0);
    CHECK(ranked.narrow == attended.narrow);
    CHECK(literal::different(ranked_lse, lse) == 0);
    AttentionPartials partials;
    static_cast<AttentionLists&>(partials) = args;
    std::vector<int64_t> entries(keys);
    for (size_t i = 0; i < entries.size(); ++i) entries[i] = static_cast<int64_t>(i);
    std::vector<float> maximum(rows * heads), sum(maximum), largest(maximum),
        out(maximum.size() * columns);
    attention_maximum(args, largest.data(), target);
    partials.window_positions = entries.data();
    partials.compressed_entries = entries.data();
    partials.positions = {0, kCanonicalLeaves};
    partials.list_maximum = rounded ? largest.data() : nullptr;
    partials.maximum = maximum.data();
    partials.sum = sum.data();
    partials.out = out.data();
    CHECK(!attention_partials(partials, target));
    keep_floats(largest), keep_floats(maximum), keep_floats(sum), keep_floats(out);
  }
  std::vector<int32_t> experts(rows * 4, -5);
  std::vector<float> weights(rows * 4);
  const int64_t bad = moe_gate({x.rows(rows), view(fn.data(), 15, streams * columns), small.data(),
                                0, 4, 1.5f, 2.5f, experts.data(), weights.data()},
                               target);
  keep(&bad, sizeof(bad));
  if (bad == -1) keep(experts.data(), experts.size() * sizeof(int32_t)), keep_floats(weights);
  return bytes;
}

constexpr Range kRanges[] = {Range::kTiny, Range::kAroundUnderflow, Range::kWide, Range::kHuge,
                             Range::kAnyBits};

TEST_CASE("one result on all targets") {
  const uint64_t seed = random_seed(0x3080);
  for (uint64_t draw = 0; draw < 8; ++draw) {
    for (const Range range : kRanges) {
      for (const bool bf16 : {false, true}) {
        CAPTURE(draw);
        CAPTURE(static_cast<int>(range));
        CAPTURE(bf16);
        const std::vector<uint8_t> scalar = run_all(seed + draw, range, bf16, Target::kScalar);
        for (const Target target : available_targets()) {
          CAPTURE(std::string(target_name(target)));
          const std::vector<uint8_t> found = run_all(seed + draw, range, bf16, target);
          size_t first = 0;
          while (first < scalar.size() && found[first] == scalar[first]) ++first;
          CHECK(first == scalar.size());
        }
      }
    }
  }
}

#ifdef DEEPINFER_SIM_HAVE_CALLER_MODE
TEST_CASE("the caller's floating-point mode does not matter, and comes back") {
  const uint64_t usual = caller_mode();
  for (const Target target : available_targets()) {
    CAPTURE(std::string(target_name(target)));
    const std::vector<uint8_t> expected = run_all(1, Range::kAroundUnderflow, false, target);
    // The inputs are made in the usual mode.
    for (const uint64_t mode : strange_modes()) {
      const std::vector<float> x(64, 0x1.8p-70f), weight(64, 1.0f);
      std::vector<float> y(64), other(64);
      rms_norm(view(x.data(), 1, 64), view(weight.data(), 1, 64), 1e-6f, view(y.data(), 1, 64),
               target);
      set_caller_mode(mode);
      rms_norm(view(x.data(), 1, 64), view(weight.data(), 1, 64), 1e-6f, view(other.data(), 1, 64),
               target);
      const uint64_t after = caller_mode();
      set_caller_mode(usual);
      CHECK(after == mode);
      CHECK(literal::different(y, other) == 0);
    }
    CHECK(run_all(1, Range::kAroundUnderflow, false, target) == expected);
  }
}
#endif

}  // namespace
}  // namespace deepinfer
