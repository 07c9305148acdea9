// Attention of few heads, which has paths of its own, against calls of sixty-four.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "sim/kernels/attention.h"
#include "tests/kernels/effort.h"
#include "tests/kernels/rows/literal.h"
#include "tests/random_seed.h"

namespace deepinfer {
namespace {

using literal::Data;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What a call makes of some heads.
struct HeadResults {
  HeadResults(int64_t row_count, int64_t heads, int64_t channels)
      : out(static_cast<size_t>(row_count * heads * channels), -77.0f),
        partial_out(out),
        lse(static_cast<size_t>(row_count * heads), -77.0f),
        maximum(lse),
        partial_maximum(lse),
        partial_sum(lse) {}
  std::vector<float> out, partial_out, lse, maximum, partial_maximum, partial_sum;
};

// Lists of keys of every kind, for heads that are cut from sixty-four.
struct HeadInputs {
  static constexpr int64_t kHeads = 64, kQueries = 7, kWindowRows = 60, kEntries = 90;
  static constexpr int64_t kWindowCount = 24, kEntryCount = 12;
  static constexpr int64_t kFirstPosition = 1003;
  enum class Values { kOrdinary, kTiny, kSpecial };

  HeadInputs(int64_t channel_count, bool bf16_queries, bool bf16_keys, Values values,
             RandomData& random)
      : channels(channel_count),
        stride(channel_count + 5),
        q(random.uniforms(kQueries * kHeads * channels, 2), bf16_queries),
        // Rows have a gap between them, of NaN.
        window(std::vector<float>(static_cast<size_t>(kWindowRows * stride), kNan), bf16_keys),
        compressed(std::vector<float>(static_cast<size_t>(kEntries * stride), kNan), bf16_keys),
        positions(kWindowRows),
        entries(kEntries) {
    if (values == Values::kTiny) {
      std::vector<float> tiny = q.wide;
      for (float& value : tiny) value = std::fabs(value) * 0x1p-80f;
      q = Data(tiny, bf16_queries);
    }
    fill(window, positions, kFirstPosition, values, random);
    fill(compressed, entries, 0, values, random);
    for (int64_t t = 0; t < kQueries; ++t) {
      list(t, kWindowRows, kWindowCount, random, window_index);
      list(t, kEntries, kEntryCount, random, entry_index);
    }
  }

  HeadResults run(int64_t first, int64_t heads, bool narrow, const std::vector<float>& sink,
                  Target target) const {
    HeadResults results(kQueries, heads, channels);
    std::vector<float> part;
    for (int64_t t = 0; t < kQueries; ++t) {
      const auto begin = q.wide.begin() + (t * kHeads + first) * channels;
      part.insert(part.end(), begin, begin + heads * channels);
    }
    const Data queries(part, q.is_bf16);
    AttentionLists lists;
    lists.q = queries.rows(kQueries * heads);
    lists.heads = heads;
    lists.window = rows(window, kWindowRows);
    lists.window_index = window_index.data();
    lists.window_count = kWindowCount;
    lists.compressed = rows(compressed, kEntries);
    lists.compressed_index = entry_index.data();
    lists.compressed_count = kEntryCount;
    lists.scale = 0.3f;

    SparseAttention attention;
    static_cast<AttentionLists&>(attention) = lists;
    attention.window_first_position = kFirstPosition;
    attention.sink = sink.data() + first;
    attention.narrow = narrow;
    attention.out = view(results.out.data(), kQueries * heads, channels);
    attention.lse = results.lse.data();
    sparse_attention(attention, target);

    attention_maximum(lists, results.maximum.data(), target);

    AttentionPartials partials;
    static_cast<AttentionLists&>(partials) = lists;
    partials.window_positions = positions.data();
    partials.compressed_entries = entries.data();
    partials.positions = {0, kCanonicalLeaves};
    partials.list_maximum = narrow ? results.maximum.data() : nullptr;
    partials.maximum = results.partial_maximum.data();
    partials.sum = results.partial_sum.data();
    partials.out = results.partial_out.data();
    CHECK(!attention_partials(partials, target).has_value());
    return results;
  }

  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  int64_t channels, stride;
  Data q, window, compressed;
  std::vector<int64_t> positions, entries;
  std::vector<int32_t> window_index, entry_index;

 private:
  RowView rows(const Data& keys, int64_t count) const {
    RowView all = keys.rows(count);
    all.columns = channels;
    return all;
  }
  void fill(Data& keys, std::vector<int64_t>& global, int64_t first, Values values,
            RandomData& random) const {
    std::vector<float> wide = keys.wide;
    for (size_t row = 0; row < global.size(); ++row) {
      global[row] = first + static_cast<int64_t>(row);
      float* key = wide.data() + static_cast<int64_t>(row) * stride;
      // Products that are flushed to zeros of either sign, and negative ones: which of equal maxima
      // is taken shows.
      constexpr float kTinyValues[] = {-0x1p-80f, 0x1p-80f, -0x1p60f};
      const float tiny = kTinyValues[random.below(3)];
      for (int64_t c = 0; c < channels; ++c) {
        key[c] = values == Values::kTiny ? tiny : random.uniform() * 2;
      }
      if (values == Values::kSpecial && random.below(12) == 0) {
        const float special[] = {kNan, kInfinity, -kInfinity};
        key[random.below(channels)] = special[random.below(3)];
      }
    }
    keys = Data(wide, keys.is_bf16);
  }
  // Ascending; nothing; any order with unused places; one; any order with a key twice; a few; any
  // order.
  static void list(int64_t t, int64_t row_count, int64_t count, RandomData& random,
                   std::vector<int32_t>& to) {
    std::vector<int32_t> index;
    const int64_t first = random.below(row_count - count + 1);
    for (int64_t i = 0; i < count; ++i) index.push_back(static_cast<int32_t>(first + i));
    if (t == 2 || t == 4 || t == 6) {
      for (int64_t i = count - 1; i > 0; --i) {
        std::swap(index[static_cast<size_t>(i)], index[static_cast<size_t>(random.below(i + 1))]);
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      int32_t& place = index[static_cast<size_t>(i)];
      if (t == 1 || (t == 2 && i % 3 == 0) || (t == 3 && i > 0) || (t == 5 && i < count - 2)) {
        place = -1;
      }
    }
    if (t == 4) index[2] = index[5];
    to.insert(to.end(), index.begin(), index.end());
  }
};

TEST_CASE("a head's bits do not depend on the heads beside it") {
  const uint64_t seed = random_seed(0x3067);
  constexpr int64_t kHeadCounts[] = {1, 2, 3, 4, 5, 8, 9, 15, 16, 17};
  constexpr int64_t kChannels[] = {16, 32, 36, 96, 7};
  constexpr int64_t kCases = 5 * 2 * 2 * 2 * 3;
  for (int64_t n = 0; n < effort(kCases); ++n) {
    // Any part of the cases is spread over all of them: 49 and their number have no common factor.
    const int64_t which = n * 49 % kCases;
    const int64_t channels = kChannels[which / 24];
    const bool bf16_queries = which % 2 != 0, bf16_keys = which / 2 % 2 != 0,
               narrow = which / 4 % 2 != 0;
    const auto values = static_cast<HeadInputs::Values>(which / 8 % 3);
    CAPTURE(channels);
    CAPTURE(bf16_queries);
    CAPTURE(bf16_keys);
    CAPTURE(narrow);
    CAPTURE(static_cast<int>(values));
    RandomData random(seed, 67, static_cast<uint32_t>(n));
    const HeadInputs in(channels, bf16_queries, bf16_keys, values, random);
    const std::vector<float> sink = random.uniforms(HeadInputs::kHeads, 3);
    const HeadResults whole = in.run(0, HeadInputs::kHeads, narrow, sink, Target::kScalar);
    for (const Target target : available_targets()) {
      CAPTURE(std::string(target_name(target)));
      for (const int64_t heads : kHeadCounts) {
        if (target == Target::kScalar && heads > 5) continue;
        CAPTURE(heads);
        const int64_t first = random.below(HeadInputs::kHeads - heads + 1);
        const HeadResults found = in.run(first, heads, narrow, sink, target);
        const auto wrong = [&](const std::vector<float>& part, const std::vector<float>& all,
                               int64_t width) {
          int64_t count = 0;
          for (int64_t t = 0; t < HeadInputs::kQueries; ++t) {
            const auto take = [&](const std::vector<float>& from, int64_t head) {
              return std::span(from).subspan(static_cast<size_t>(head * width),
                                             static_cast<size_t>(heads * width));
            };
            count += literal::different(take(part, t * heads),
                                        take(all, t * HeadInputs::kHeads + first));
          }
          return count;
        };
        CHECK(wrong(found.out, whole.out, channels) == 0);
        CHECK(wrong(found.lse, whole.lse, 1) == 0);
        CHECK(wrong(found.maximum, whole.maximum, 1) == 0);
        CHECK(wrong(found.partial_maximum, whole.partial_maximum, 1) == 0);
        CHECK(wrong(found.partial_sum, whole.partial_sum, 1) == 0);
        CHECK(wrong(found.partial_out, whole.partial_out, channels) == 0);
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer
