// The reference ops: golden units, definitions, the plain codecs, slow loops, shapes on meta
// tensors.
#include "platform/reference/reference.h"

#include <cmath>
#include <cstring>
#include <random>

#include <doctest/doctest.h>

#include "platform/formats.h"
#include "platform/ops.h"
#include "tests/conformance/ranked_ops.h"
#include "tests/conformance/unit_goldens.h"
#include "tests/random_seed.h"

namespace deepinfer {
namespace {

void require_none(const std::vector<std::string>& failures) {
  for (const std::string& failure : failures) CHECK_MESSAGE(failure.empty(), failure);
}

TEST_CASE("golden units") { require_none(tests::failed_units()); }
TEST_CASE("definitions that no golden covers") { require_none(tests::failed_definitions()); }

// Values of every magnitude that a quantiser meets, zeros and powers of two among them.
std::vector<float> mixed_values(std::mt19937_64& random, size_t count) {
  std::uniform_int_distribution<int> exponent(-30, 12), kind(0, 19);
  std::uniform_real_distribution<float> mantissa(1.0f, 2.0f);
  std::vector<float> values(count);
  for (float& value : values) {
    const int which = kind(random);
    value = which == 0 ? 0.0f : std::ldexp(which == 1 ? 1.0f : mantissa(random), exponent(random));
    if (which % 2 == 0) value = -value;
  }
  return values;
}

TEST_CASE("quantisers agree with the plain codecs bit for bit") {
  std::mt19937_64 random(random_seed(20261130));
  constexpr int64_t kRows = 200, kColumns = 96;
  const std::vector<float> values = mixed_values(random, kRows * kColumns);
  const at::Tensor x = at::tensor(at::ArrayRef<float>(values)).view({kRows, kColumns});
  for (const double fp8_max : {448.0, 240.0, 224.0}) {
    CAPTURE(fp8_max);
    std::vector<uint8_t> codes(values.size()), scales(values.size() / 32);
    quantize_aq32(values, fp8_max, codes, scales);
    const auto [op_codes, op_scales] = ops::quantize_aq32(x, fp8_max);
    CHECK(std::memcmp(codes.data(), op_codes.contiguous().data_ptr(), codes.size()) == 0);
    CHECK(std::memcmp(scales.data(), op_scales.contiguous().data_ptr(), scales.size()) == 0);

    std::vector<float> row(values.size());
    dequantize_aq32(codes, scales, row);
    CHECK(std::memcmp(row.data(), ops::fake_quantize_aq32(x, fp8_max).data_ptr(), row.size() * 4) ==
          0);

    std::vector<uint8_t> scales16(values.size() / 16);
    quantize_fq4_16(values, fp8_max, codes, scales16);
    dequantize_fq4_16(codes, scales16, row);
    CHECK(std::memcmp(row.data(), ops::fake_quantize_fq4_16(x, fp8_max).data_ptr(),
                      row.size() * 4) == 0);
  }
  std::vector<uint8_t> codes(values.size()), scales(values.size() / 32);
  std::vector<float> row(values.size());
  quantize_fq4_32(values, codes, scales);
  dequantize_fq4_32(codes, scales, row);
  CHECK(std::memcmp(row.data(), ops::fake_quantize_fq4_32(x).data_ptr(), row.size() * 4) == 0);
}

TEST_CASE("quantising twice changes nothing, and bf16 holds the result") {
  std::mt19937_64 random(random_seed(4));
  const std::vector<float> values = mixed_values(random, 64 * 64);
  const at::Tensor x = at::tensor(at::ArrayRef<float>(values)).view({64, 64}).to(at::kBFloat16);
  const std::vector<std::pair<const char*, at::Tensor (*)(const at::Tensor&)>> quantisers = {
      {"AQ32", [](const at::Tensor& t) { return ops::fake_quantize_aq32(t, 448); }},
      {"FQ4-32", [](const at::Tensor& t) { return ops::fake_quantize_fq4_32(t); }},
      {"FQ4-16", [](const at::Tensor& t) { return ops::fake_quantize_fq4_16(t, 448); }}};
  for (const auto& [name, quantise] : quantisers) {
    CAPTURE(name);
    const at::Tensor wide = quantise(x.to(at::kFloat));
    const at::Tensor narrow = quantise(x);
    CHECK(at::equal(narrow.to(at::kFloat), wide));
    CHECK(at::equal(quantise(narrow), narrow));
  }
}

TEST_CASE("an all-zero block quantises to zero") {
  const at::Tensor zero = at::zeros({1, 32});
  CHECK(at::equal(ops::fake_quantize_aq32(zero, 448), zero));
  CHECK(at::equal(ops::fake_quantize_fq4_32(zero), zero));
  CHECK(at::equal(ops::fake_quantize_fq4_16(zero, 448),
                  zero));  // 0/0 without the floor (model.md 6 row 30)
}

// Weights on the formats' grids times small integers: every sum is exact in fp64, so equality is
// demanded.
TEST_CASE("fp8 and fp4 products agree with loops over the codes") {
  std::mt19937_64 random(random_seed(7));
  std::uniform_int_distribution<int> byte(0, 255), scale(120, 130), small(-8, 8);
  // Neither a multiple of the tile nor of the block in N; K of fp4 is a multiple of 32 by format.
  const int64_t rows = 3, outputs = 45, inputs = 72;
  at::Tensor x = at::empty({rows, inputs});
  for (int64_t i = 0; i < x.numel(); ++i)
    x.data_ptr<float>()[i] = static_cast<float>(small(random));
  at::Tensor codes = at::empty({outputs, inputs}, at::kByte);
  for (int64_t i = 0; i < codes.numel(); ++i) {
    const int code = byte(random);
    codes.data_ptr<uint8_t>()[i] = static_cast<uint8_t>((code & 0x7F) == 0x7F ? 0 : code);
  }
  at::Tensor scales = at::empty({2, 3}, at::kByte);
  for (int64_t i = 0; i < scales.numel(); ++i)
    scales.data_ptr<uint8_t>()[i] = static_cast<uint8_t>(scale(random));
  const at::Tensor found = ops::fp8_linear(x, codes, scales, at::kFloat);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t n = 0; n < outputs; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < inputs; ++k) {
        const double weight = decode(NumericFormat::kE4M3FN, codes[n][k].item<uint8_t>());
        const double tile = decode(NumericFormat::kE8M0, scales[n / 32][k / 32].item<uint8_t>());
        sum += x[t][k].item<double>() * weight * tile;
      }
      REQUIRE(found[t][n].item<float>() == static_cast<float>(sum));
    }
  }
  const at::Tensor packed = codes.slice(1, 0, 32).contiguous();
  const at::Tensor x64 = x.slice(1, 0, 64).contiguous();
  at::Tensor row_scales = at::empty({outputs, 2}, at::kByte);
  for (int64_t i = 0; i < row_scales.numel(); ++i) {
    row_scales.data_ptr<uint8_t>()[i] = static_cast<uint8_t>(scale(random));
  }
  const at::Tensor found4 = ops::fp4_linear(x64, packed, row_scales, at::kFloat);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t n = 0; n < outputs; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < 64; ++k) {
        const uint8_t pair = packed[n][k / 2].item<uint8_t>();
        const double weight = decode(NumericFormat::kE2M1, k % 2 == 0 ? pair & 0x0F : pair >> 4);
        sum += x64[t][k].item<double>() * weight *
               decode(NumericFormat::kE8M0, row_scales[n][k / 32].item<uint8_t>());
      }
      REQUIRE(found4[t][n].item<float>() == static_cast<float>(sum));
    }
  }
}

TEST_CASE("grouped products are the single ones") {
  at::manual_seed(random_seed(11));
  const at::Tensor x = at::randn({5, 64});
  const std::vector<at::Tensor> weights = {at::randn({16, 64}), at::randn({16, 64}),
                                           at::randn({16, 64})};
  const at::Tensor offsets = at::tensor(std::vector<int64_t>{0, 2, 2, 5}, at::kLong);
  const at::Tensor grouped = ops::grouped_linear(x, offsets, weights, {}, at::kFloat);
  CHECK(at::equal(grouped.slice(0, 0, 2), ops::linear(x.slice(0, 0, 2), weights[0], at::kFloat)));
  CHECK(at::equal(grouped.slice(0, 2, 5), ops::linear(x.slice(0, 2, 5), weights[2], at::kFloat)));
  CHECK_THROWS_AS(ops::grouped_linear(x, offsets.slice(0, 0, 3), weights, {}, at::kFloat),
                  c10::Error);
}

// On one tree position a partial is the product of some columns.
TEST_CASE("partials are the products of their columns, in every form of weight") {
  at::manual_seed(random_seed(12));
  const at::Tensor x = at::randn({5, 64});
  const auto partial = [&](const at::Tensor& rows, const at::Tensor& weight,
                           const ops::OptionalTensor& scales, int64_t first_column) {
    return ops::linear_partials(rows, weight, scales, first_column, 7, {0, rows.size(1)})[0];
  };
  const auto bytes = [](int64_t below, at::IntArrayRef shape) {
    return at::randint(0, below, shape, at::kByte);
  };
  const at::Tensor plain = at::randn({40, 128});
  CHECK(at::equal(partial(x, plain, {}, 32), ops::linear(x, plain.slice(1, 32, 96), at::kFloat)));
  const at::Tensor fp8 = bytes(0x7F, {40, 128}), tiles = bytes(8, {2, 4}) + 120;
  CHECK(at::equal(partial(x, fp8, tiles, 32),
                  ops::fp8_linear(x, fp8.slice(1, 32, 96), tiles.slice(1, 1, 3), at::kFloat)));
  const at::Tensor fp4 = bytes(256, {40, 64}), by_row = bytes(8, {40, 4}) + 120;
  CHECK(at::equal(partial(x, fp4, by_row, 32),
                  ops::fp4_linear(x, fp4.slice(1, 16, 48), by_row.slice(1, 1, 3), at::kFloat)));
  // One row of 16 bytes has one scale in both forms; x says which.
  const at::Tensor short_row = bytes(0x7F, {1, 16}), scale = at::full({1, 1}, 125, at::kByte);
  const at::Tensor narrow = x.slice(1, 0, 16), wide = x.slice(1, 0, 32);
  CHECK(at::equal(partial(narrow, short_row, scale, 0),
                  ops::fp8_linear(narrow, short_row, scale, at::kFloat)));
  CHECK(at::equal(partial(wide, short_row, scale, 0),
                  ops::fp4_linear(wide, short_row, scale, at::kFloat)));
}

// Parts of a key list attended alone, without the sink, merge by their log-sum-exp to the whole;
// the sink is added once (model.md 5.3).
TEST_CASE("attention over parts merges to attention over the whole") {
  at::manual_seed(random_seed(13));
  const int64_t rows = 3, heads = 4, channels = 32, entries = 20;
  const at::Tensor q = at::randn({rows, heads, channels});
  const at::Tensor keys = at::randn({entries, channels});
  const at::Tensor sink = at::randn({heads});
  const at::Tensor all = at::arange(entries, at::kInt).expand({rows, entries});
  const at::Tensor none = at::empty({rows, 0}, at::kInt);
  const double scale = 1 / std::sqrt(32.0);
  const auto [whole, whole_lse] =
      ops::sparse_attention(q, keys, 0, all, keys, none, sink, scale, false);
  const auto [left, left_lse] =
      ops::sparse_attention(q, keys, 0, all.slice(1, 0, 7), keys, none, {}, scale, false);
  const auto [right, right_lse] =
      ops::sparse_attention(q, keys, 0, none, keys, all.slice(1, 7), {}, scale, false);
  const at::Tensor m = at::maximum(left_lse, right_lse);
  const at::Tensor wl = (left_lse - m).exp().unsqueeze(-1),
                   wr = (right_lse - m).exp().unsqueeze(-1);
  const at::Tensor merged = (wl * left + wr * right) / (wl + wr + (sink - m).exp().unsqueeze(-1));
  // Three fp32 roundings of values below 4: 3 * 2^-22.
  CHECK((merged - whole).abs().max().item<double>() < 3 * std::ldexp(1.0, -22));
}

TEST_CASE("attention by ranks merges to attention over the whole") {
  at::manual_seed(random_seed(14));
  const int64_t rows = 3, heads = 4, channels = 32, entries = 600, positions = 40, first = 300;
  const at::Tensor q = at::randn({rows, heads, channels});
  const at::Tensor window = at::randn({positions, channels}),
                   compressed = at::randn({entries, channels});
  const at::Tensor sink = at::randn({heads});
  at::Tensor window_index = at::arange(positions, at::kInt).repeat({rows, 1}),
             compressed_index = at::arange(entries, at::kInt).repeat({rows, 1});
  // The second query sees nothing, the third a part.
  window_index[1].fill_(-1), compressed_index[1].fill_(-1);
  window_index[2].slice(0, 0, 30).fill_(-1), compressed_index[2].slice(0, 5).fill_(-1);
  const at::Tensor seeing = at::tensor(std::vector<int64_t>{0, 2}, at::kLong);
  const double scale = 1 / std::sqrt(32.0);
  // Without rounded probabilities: sparse_attention's are rounded against other maxima.
  const auto [whole, whole_lse] = ops::sparse_attention(q, window, first, window_index, compressed,
                                                        compressed_index, sink, scale, false);
  const double largest = at::maximum(window.abs().max(), compressed.abs().max()).item<double>();
  for (const int64_t ranks : {1, 3, 64}) {
    for (const bool narrow : {false, true}) {
      CAPTURE(ranks);
      CAPTURE(narrow);
      const auto [out, lse] = tests::attention_by_ranks(
          ranks, q, window, first, window_index, compressed, compressed_index, sink, scale, narrow);
      // fp32 roundings of a partial's sum and outputs and of two results, 4 * 2^-24 of the largest
      // value; a probability that is rounded to bf16 is off by 2^-8 of itself.
      CHECK((out - whole).abs().max().item<double>() <
            largest * (narrow ? 0x1p-8 : std::ldexp(4.0, -24)));
      CHECK(at::equal(out[1], at::zeros({heads, channels})));
      CHECK(at::equal(lse[1], whole_lse[1]));
      // Results are below 16, so rounded to 2^-21 each; sums to 2^-24 of themselves.
      CHECK((lse - whole_lse).index_select(0, seeing).abs().max().item<double>() <
            std::ldexp(3.0, -21));
      CHECK(whole_lse.index_select(0, seeing).abs().max().item<double>() < 16);
    }
  }
}

TEST_CASE("NaN is an error, never a choice") {
  const at::Tensor nan = at::full({1, 4}, std::nan(""));
  CHECK_THROWS_AS(ops::topk_select(nan, 2), c10::Error);
  CHECK_THROWS_AS(ops::greedy_sample(nan), c10::Error);
  const at::Tensor four = at::arange(4, at::kLong);
  CHECK_THROWS_AS(ops::block_maxima(nan, four, 4), c10::Error);
  CHECK_THROWS_AS(ops::topk_merge(nan, four.to(at::kInt).unsqueeze(0), 2), c10::Error);
  CHECK_THROWS_AS(ops::moe_gate(nan, at::ones({4, 4}), at::zeros({4}), 2, 1.0, 1.5), c10::Error);
}

TEST_CASE("a wrong shape is an error that names the op and what it found") {
  std::string text;
  try {
    ops::fp8_linear(at::zeros({1, 64}), at::zeros({8, 32}, at::kByte), at::zeros({1, 1}, at::kByte),
                    at::kFloat);
  } catch (const c10::Error& error) {
    text = error.what_without_backtrace();
  }
  CHECK(text.find("fp8_linear") != std::string::npos);
  CHECK(text.find("[8, 32]") != std::string::npos);
}

// Shapes without data, which `plan` will run the model on.
TEST_CASE("every op infers shapes on meta tensors") {
  const auto meta = [](std::vector<int64_t> shape, at::ScalarType type = at::kFloat) {
    return at::empty(shape, at::TensorOptions().device(at::kMeta).dtype(type));
  };
  const at::Tensor x = meta({6, 64}, at::kBFloat16);
  CHECK(ops::linear(x, meta({8, 64}), at::kFloat).sizes() == at::IntArrayRef({6, 8}));
  CHECK(ops::fp8_linear(x, meta({40, 64}, at::kByte), meta({2, 2}, at::kByte), at::kBFloat16)
            .sizes() == at::IntArrayRef({6, 40}));
  CHECK(ops::fp4_linear(x, meta({40, 32}, at::kByte), meta({40, 2}, at::kByte), at::kBFloat16)
            .sizes() == at::IntArrayRef({6, 40}));
  // Positions 3 .. 6 are the subtrees 3, 4 and 5, 6.
  CHECK(ops::linear_partials(x, meta({8, 96}), {}, 32, 3, {0, 32, 32, 64, 64}).sizes() ==
        at::IntArrayRef({3, 6, 8}));
  const at::Tensor packed =
      ops::linear_partials(x, meta({40, 48}, at::kByte), meta({40, 3}, at::kByte), 32, 0, {0, 64});
  CHECK(packed.sizes() == at::IntArrayRef({1, 6, 40}));
  CHECK((packed.scalar_type() == at::kFloat));
  CHECK(std::get<1>(ops::quantize_aq32(x, 448)).sizes() == at::IntArrayRef({6, 2}));
  CHECK(ops::fake_quantize_fq4_16(x, 448).sizes() == x.sizes());
  CHECK((ops::rms_norm(x, meta({64}), 1e-20).scalar_type() == at::kBFloat16));
  const auto [cos, sin] = ops::rope_table(meta({6}, at::kLong), meta({8}));
  CHECK(ops::rope(x, cos, sin, false).sizes() == x.sizes());
  const at::Tensor streams = meta({6, 4, 64}, at::kBFloat16);
  const auto [pre, post, comb] =
      ops::hc_mix(streams, meta({24, 256}), meta({3}), meta({24}), 20, 1e-6, 1e-20);
  CHECK(comb.sizes() == at::IntArrayRef({6, 4, 4}));
  CHECK(ops::hc_expand(ops::hc_collapse(streams, pre), streams, post, comb).sizes() ==
        streams.sizes());
  const at::Tensor visible = meta({6}, at::kLong);
  const at::Tensor scores =
      ops::index_score(meta({6, 2, 32}), meta({6, 2}), meta({9, 32}), visible, true);
  CHECK(ops::topk_select(scores, 12).sizes() == at::IntArrayRef({6, 12}));
  const at::Tensor blocks = ops::candidate_blocks(scores, visible, 4, 2);
  CHECK(blocks.sizes() == at::IntArrayRef({6, 2}));
  CHECK(ops::candidate_mask(scores, blocks, meta({9}, at::kLong)).sizes() == scores.sizes());
  CHECK(ops::block_maxima(scores, meta({9}, at::kLong), 3).sizes() == at::IntArrayRef({6, 3}));
  CHECK(ops::topk_merge(scores, meta({6, 9}, at::kInt), 5).sizes() == at::IntArrayRef({6, 5}));
  const auto [out, lse] =
      ops::sparse_attention(meta({6, 2, 32}), meta({9, 32}), 0, meta({6, 4}, at::kInt),
                            meta({5, 32}), meta({6, 3}, at::kInt), meta({2}), 0.1, true);
  CHECK(out.sizes() == at::IntArrayRef({6, 2, 32}));
  CHECK(lse.sizes() == at::IntArrayRef({6, 2}));
  CHECK(ops::attention_maximum(meta({6, 2, 32}, at::kBFloat16), meta({9, 32}),
                               meta({6, 4}, at::kInt), meta({5, 32}), meta({6, 3}, at::kInt), 0.1)
            .sizes() == at::IntArrayRef({6, 2}));
  // Positions 42 to 63 are the subtrees 42 + 2, 44 + 4, 48 + 16.
  const auto [maxima, sums, outs] = ops::attention_partials(
      meta({6, 2, 32}, at::kBFloat16), meta({9, 32}), meta({9}, at::kLong), meta({6, 4}, at::kInt),
      meta({5, 32}), meta({5}, at::kLong), meta({6, 3}, at::kInt), {}, 0.1, 42, 22);
  CHECK(maxima.sizes() == at::IntArrayRef({3, 6, 2}));
  CHECK(sums.sizes() == at::IntArrayRef({3, 6, 2}));
  CHECK(outs.sizes() == at::IntArrayRef({3, 6, 2, 32}));
  CHECK((outs.scalar_type() == at::kFloat));
  const auto [merged, merged_lse] = ops::attention_merge(
      maxima.flatten(0, 1), sums.flatten(0, 1), outs.flatten(0, 1), meta({18}, at::kLong), 6,
      {42, 44, 48}, {2, 4, 16}, {6, 6, 6}, meta({2}), at::kBFloat16);
  CHECK(merged.sizes() == at::IntArrayRef({6, 2, 32}));
  CHECK((merged.scalar_type() == at::kBFloat16));
  CHECK(merged_lse.sizes() == at::IntArrayRef({6, 2}));
  CHECK((merged_lse.scalar_type() == at::kFloat));
  CHECK(std::get<0>(ops::moe_gate(x, meta({16, 64}), meta({16}), 3, 1, 1.5)).sizes() ==
        at::IntArrayRef({6, 3}));
  CHECK(ops::swiglu(x, x, {}, 10).sizes() == x.sizes());
  CHECK(ops::moe_combine(x, meta({6}, at::kLong), meta({4}, at::kLong), {}, 3).sizes() ==
        at::IntArrayRef({3, 64}));
  CHECK(ops::moe_partials(x, meta({6}, at::kLong), meta({4}, at::kLong), 3, 4, 8, 32, 24).sizes() ==
        at::IntArrayRef({2, 3, 64}));
  CHECK(ops::compress_pool(meta({3, 2, 8}), meta({3, 2, 8})).sizes() == at::IntArrayRef({3, 8}));
}

}  // namespace
}  // namespace deepinfer
