#include "tests/conformance/unit_goldens.h"

#include <cstring>
#include <fstream>
#include <limits>

#include <nlohmann/json.hpp>

#include "model/rope.h"
#include "model/safetensors.h"
#include "platform/ops.h"

namespace deepinfer::tests {

namespace {

const std::string kUnits = DEEPINFER_SIM_SOURCE_DIR "/golden/data/units/units";
constexpr float kInfinity = std::numeric_limits<float>::infinity();

const nlohmann::json& unit_json() {
  static const nlohmann::json json = nlohmann::json::parse(std::ifstream(kUnits + ".json"));
  return json;
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

// Gathers sentences.
class Judge {
 public:
  void within(const std::string& what, const at::Tensor& found, const at::Tensor& expected,
              double bound) {
    const double difference = largest_difference(found, expected);
    if (!(difference <= bound)) {
      failures_.push_back(what + " is off by " + std::to_string(difference));
    }
  }
  void equal(const std::string& what, const at::Tensor& found, const at::Tensor& expected) {
    const bool same = found.scalar_type() == expected.scalar_type() &&
                      found.sizes() == expected.sizes() &&
                      std::memcmp(found.contiguous().data_ptr(), expected.contiguous().data_ptr(),
                                  found.nbytes()) == 0;
    if (!same) failures_.push_back(what + " is not bit-equal");
  }
  void holds(const std::string& what, bool condition) {
    if (!condition) failures_.push_back(what);
  }
  std::vector<std::string> failures() { return failures_; }

 private:
  std::vector<std::string> failures_;
};

void check_quantisers(Judge& judge) {
  const at::Tensor rows = unit_tensor("block.in");
  judge.equal("AQ32", ops::fake_quantize_aq32(rows, 448), unit_tensor("block.fp8_32"));
  judge.equal("FQ4-32", ops::fake_quantize_fq4_32(rows), unit_tensor("block.fp4_32_ue8m0"));
  judge.equal("FQ4-16", ops::fake_quantize_fq4_16(rows, 448), unit_tensor("block.fp4_16_e4m3"));
  const auto [codes, scales] = ops::quantize_aq32(rows, 448);
  judge.equal("AQ32 codes and scales", ops::dequantize_aq32(codes, scales),
              unit_tensor("block.fp8_32"));
}

void check_rope(Judge& judge) {
  std::vector<int64_t> positions = unit_json()["rope_positions"];
  const at::Tensor position = at::tensor(positions, at::kLong);
  const RopeScaling released;
  const std::vector<std::pair<std::string, RopeFrequencies>> tables = {
      {"rope.main", plain_frequencies(10000, 64)},
      {"rope.compress", yarn_frequencies(160000, 64, released)}};
  for (const auto& [name, frequencies] : tables) {
    judge.equal(name + " frequencies", frequencies.values, unit_tensor(name + ".inv_freq"));
    const auto [cos, sin] = ops::rope_table(position, frequencies.values);
    // One ulp of a value below 1: the golden took fp32 cosines (model-verified.md 7).
    judge.within(name + " cos", cos, unit_tensor(name + ".cos"), 6e-8);
    judge.within(name + " sin", sin, unit_tensor(name + ".sin"), 6e-8);
  }
}

void check_hyper_connections(Judge& judge) {
  const at::Tensor streams = unit_tensor("hc.streams");
  const auto [pre, post, comb] = ops::hc_mix(streams, unit_tensor("hc.fn"), unit_tensor("hc.scale"),
                                             unit_tensor("hc.base"), 20, 1e-6, 1e-20);
  judge.within("hc pre", pre, unit_tensor("hc.pre"), 1e-6);
  judge.within("hc post", post, unit_tensor("hc.post"), 1e-6);
  judge.within("hc comb", comb, unit_tensor("hc.comb"), 1e-6);
  judge.within("hc collapse", ops::hc_collapse(streams, unit_tensor("hc.pre")),
               unit_tensor("hc.collapse_with_pre"), 1e-6);
  judge.within(
      "hc expand",
      ops::hc_expand(unit_tensor("hc.y"), streams, unit_tensor("hc.post"), unit_tensor("hc.comb")),
      unit_tensor("hc.expand"), 4e-6);
}

void check_engram(Judge& judge) {
  const auto& real = unit_json()["engram_real"];
  const std::vector<int64_t> ids = real["compressed_ids"];
  const std::vector<int64_t> dead = real["dead"];
  std::vector<int64_t> with_dead = ids;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (dead[i] != 0) with_dead[i] = -1;
  }
  const int64_t rows = static_cast<int64_t>(ids.size());
  for (size_t slot = 0; slot < real["primes"].size(); ++slot) {
    std::vector<int64_t> primes, offsets, multipliers;
    int64_t sum = 0;
    for (const auto& order : real["primes"][slot]) {
      for (const int64_t prime : order) {
        primes.push_back(prime);
        offsets.push_back(sum);
        sum += prime;
      }
    }
    for (const std::string multiplier : real["multipliers"][slot])
      multipliers.push_back(std::stoll(multiplier));
    const auto expected = [&](const char* key) {
      std::vector<int64_t> flat;
      for (const auto& row : real[key][slot]) {
        for (const int64_t value : row) flat.push_back(value);
      }
      return at::tensor(flat, at::kLong).view({rows, -1});
    };
    const auto hash = [&](const std::vector<int64_t>& sequence) {
      return ops::engram_hash(at::tensor(sequence, at::kLong), rows,
                              at::tensor(multipliers, at::kLong), at::tensor(primes, at::kLong),
                              at::tensor(offsets, at::kLong), 2);
    };
    const std::string where = " of released Engram slot " + std::to_string(slot);
    judge.holds("primes do not sum to the table" + where,
                sum == real["engram_num_embeddings"][slot].get<int64_t>());
    judge.equal("rows" + where, hash(ids), expected("rows"));
    judge.equal("rows with image tokens" + where, hash(with_dead), expected("rows_with_dead"));
  }
}

// Bytes published from the released checkpoint (model.md 2.7).
void check_published_bytes(Judge& judge) {
  const at::Tensor identity = at::eye(32, at::kFloat);
  at::Tensor fp8 = at::zeros({1, 32}, at::kByte);
  const std::vector<int64_t> fp8_bytes = {0xd8, 0x71, 0xf2, 0x79, 0x70, 0x69, 0xf0, 0xe5};
  fp8.slice(1, 0, 8).copy_(at::tensor(fp8_bytes, at::kByte).unsqueeze(0));
  const at::Tensor wkv =
      ops::fp8_linear(identity, fp8, at::full({1, 1}, 0x73, at::kByte), at::kFloat);
  const std::vector<double> wkv_values = {-0.00390625, 0.03515625,  -0.0390625, 0.0703125,
                                          0.03125,     0.017578125, -0.03125,   -0.0126953125};
  judge.equal("layers.0.attn.wkv", wkv.slice(0, 0, 8).squeeze(1),
              at::tensor(wkv_values, at::kFloat));

  at::Tensor fp4 = at::zeros({1, 16}, at::kByte);
  const std::vector<int64_t> fp4_bytes = {0xa0, 0xa8, 0xec, 0x4a, 0xad, 0xaf, 0x42, 0xaa};
  fp4.slice(1, 0, 8).copy_(at::tensor(fp4_bytes, at::kByte).unsqueeze(0));
  const at::Tensor w1 =
      ops::fp4_linear(identity, fp4, at::full({1, 1}, 0x78, at::kByte), at::kFloat);
  const std::vector<double> w1_values = {
      0,         -.0078125, 0,        -.0078125, -.015625, -.03125, -.0078125, .015625,
      -.0234375, -.0078125, -.046875, -.0078125, .0078125, .015625, -.0078125, -.0078125};
  judge.within("layers.0.ffn.experts.0.w1", w1.slice(0, 0, 16).squeeze(1),
               at::tensor(w1_values, at::kFloat), 0);
}

// A block whose largest value is the format's own keeps scale 1; the next larger one takes the next
// octave.
void check_scales(Judge& judge) {
  at::Tensor rows = at::zeros({2, 32});
  rows.select(0, 0).select(0, 3).fill_(448);
  rows.select(0, 1).select(0, 3).fill_(450);
  const auto [codes, scales] = ops::quantize_aq32(rows, 448);
  judge.equal("AQ32 scales", scales,
              at::tensor(std::vector<int64_t>{127, 128}, at::kByte).unsqueeze(1));
  judge.equal("AQ32 codes", codes.select(1, 3),
              at::tensor(std::vector<int64_t>{0x7E, 0x76}, at::kByte));
}

void check_selection(Judge& judge) {
  const std::vector<double> values = {1, 3, 3, -kInfinity, 3, 2, 3, 0};
  const at::Tensor scores = at::tensor(values, at::kFloat).unsqueeze(0);
  const auto top = [&](int64_t k) { return ops::topk_select(scores, k); };
  const auto row = [](std::vector<int64_t> ids) { return at::tensor(ids, at::kInt).unsqueeze(0); };
  judge.equal("top-2 of equal scores", top(2), row({1, 2}));
  judge.equal("top-3 of equal scores", top(3), row({1, 2, 4}));
  judge.equal("top-9 skips -inf and pads", top(9), row({0, 1, 2, 4, 5, 6, 7, -1, -1}));
  judge.equal("top-k of nothing", ops::topk_select(at::zeros({1, 0}), 2), row({-1, -1}));
  const std::vector<double> equal_logits = {0, 5, 1, 5};
  judge.equal("greedy choice of equal logits",
              ops::greedy_sample(at::tensor(equal_logits, at::kFloat).unsqueeze(0)),
              at::tensor(std::vector<int64_t>{1}, at::kLong));
  // Blocks of 2: maxima 3, 3, 3, 3; entry 7 is the newest, so block 3 is pinned; then the smaller
  // blocks.
  const at::Tensor visible = at::tensor(std::vector<int64_t>{8}, at::kLong);
  judge.equal("candidate blocks", ops::candidate_blocks(scores, visible, 2, 2), row({0, 3}));
  const at::Tensor block = at::tensor(std::vector<int64_t>{0, 0, 1, 1, 2, 2, 3, 3}, at::kLong);
  const at::Tensor masked = ops::candidate_mask(scores, row({0, 3}), block);
  judge.equal("candidate mask", ops::topk_select(masked, 8), row({0, 1, 6, 7, -1, -1, -1, -1}));
  // The same in two parts: maxima of the even and of the odd entries, and top-3 of each half.
  const auto every_other = [](const at::Tensor& x, int64_t first) {
    return x.slice(-1, first, 8, 2).contiguous();
  };
  const at::Tensor maxima =
      at::maximum(ops::block_maxima(every_other(scores, 0), every_other(block, 0), 4),
                  ops::block_maxima(every_other(scores, 1), every_other(block, 1), 4));
  const at::Tensor visible_blocks = at::tensor(std::vector<int64_t>{4}, at::kLong);
  judge.equal("candidate blocks of parts", ops::candidate_blocks(maxima, visible_blocks, 1, 2),
              row({0, 3}));
  const at::Tensor halves = at::cat({scores.slice(1, 4), scores.slice(1, 0, 4)}, 1);
  judge.equal("top-3 of two halves", ops::topk_merge(halves, row({4, 5, 6, 7, 0, 1, 2, 3}), 3),
              row({1, 2, 4}));
}

// One query over two keys against the closed formula, and its invariants.
void check_attention(Judge& judge) {
  const at::Tensor q = at::full({1, 1, 32}, 0.25);
  const at::Tensor keys =
      at::cat({at::full({1, 32}, 0.5), at::full({1, 32}, -0.25), at::full({1, 32}, 1.0)}, 0);
  const at::Tensor window = keys.slice(0, 0, 2), compressed = keys.slice(0, 2, 3);
  const auto index = [](std::vector<int64_t> ids) {
    const int64_t count = static_cast<int64_t>(ids.size());
    return at::tensor(ids, at::kInt).view({1, count});
  };
  const at::Tensor sink = at::full({1}, 0.75);
  const double scale = 0.5;
  const double scores[3] = {0.25 * 0.5 * 32 * scale, 0.25 * -0.25 * 32 * scale,
                            0.25 * 1.0 * 32 * scale};
  const double e0 = std::exp(scores[0]), e1 = std::exp(scores[1]), e2 = std::exp(scores[2]);
  const double sum = e0 + e1 + e2 + std::exp(0.75);
  const double value = (0.5 * e0 - 0.25 * e1 + 1.0 * e2) / sum;
  const auto [out, lse] = ops::sparse_attention(q, window, 0, index({0, 1, -1}), compressed,
                                                index({0, -1}), sink, scale, false);
  judge.within("attention with a sink", out, at::full({1, 1, 32}, value), 1e-6);
  judge.within("log-sum-exp is without the sink", lse, at::full({1, 1}, std::log(e0 + e1 + e2)),
               1e-6);
  // A row twice in the list counts twice (model-verified.md 7).
  const auto [twice, twice_lse] =
      ops::sparse_attention(q, window, 0, index({0, 0}), compressed, index({-1}), {}, scale, false);
  judge.within("a row listed twice", twice_lse, at::full({1, 1}, std::log(2 * e0)), 1e-6);
  const auto [empty, empty_lse] = ops::sparse_attention(q, window, 0, index({-1, -1}), compressed,
                                                        index({-1}), sink, scale, true);
  judge.within("an empty row gives 0", empty, at::zeros({1, 1, 32}), 0);
  judge.holds("an empty row has log-sum-exp -inf", empty_lse.item<float>() == -kInfinity);
  // Rounded probabilities stand against the largest score, never against the sink (model.md 3.3):
  // with a sink above the scores and one key, the probability is exactly 1.
  const auto [alone, alone_lse] = ops::sparse_attention(
      q, window, 0, index({0}), compressed, index({-1}), at::full({1}, 3.1), scale, true);
  const double share = e0 / (e0 + std::exp(3.1f));
  judge.within("narrow probabilities ignore the sink", alone, at::full({1, 1, 32}, 0.5 * share),
               1e-7);
}

void check_router(Judge& judge) {
  // Strongly negative logits keep positive weights: log1p form, 1e-20 in the sum (model.md 7 row
  // 18).
  const at::Tensor x = at::full({1, 1}, -40.0);
  const std::vector<double> gate = {1, 1.01, 1.02, 0.99};
  const auto [ids, weights] =
      ops::moe_gate(x, at::tensor(gate, at::kFloat).unsqueeze(1), at::zeros({4}), 2, 1.0, 1.5);
  judge.equal("router choice", ids, at::tensor(std::vector<int64_t>{3, 0}, at::kInt).unsqueeze(0));
  const double s3 = std::exp(-0.5 * 39.6), s0 = std::exp(-0.5 * 40);
  judge.within("router weights", weights.select(1, 0), at::full({1}, 1.5 * s3 / (s3 + s0)), 1e-5);
  // Equal scores choose the smaller expert.
  const auto [tie, tie_weights] = ops::moe_gate(x, at::ones({4, 1}), at::zeros({4}), 2, 1.0, 1.5);
  judge.equal("router ties", tie, at::tensor(std::vector<int64_t>{0, 1}, at::kInt).unsqueeze(0));
}

void check_engram_gate(Judge& judge) {
  // Dot products of +0 and -0 open the gate by sigmoid(+-0.001) (model.md 6 row 11); an image
  // token's gate is 0.
  const at::Tensor streams = at::zeros({2, 1, 32});
  const at::Tensor key_value = at::cat({at::ones({2, 32}), at::full({2, 32}, 2.0)}, 1);
  const at::Tensor text = at::tensor(std::vector<int64_t>{1, 0}, at::kLong).to(at::kBool);
  const at::Tensor weight = at::ones({1, 32});
  const auto [out, gate] = ops::engram_gate(streams, key_value, weight, weight, text, 1e-20);
  const double open = 1 / (1 + std::exp(-0.001));
  judge.within("Engram gate at +0", gate.select(0, 0), at::full({1}, open), 1e-7);
  judge.within("Engram value", out.select(0, 0), at::full({1, 32}, 2 * open), 1e-6);
  judge.within("Engram on an image token", out.select(0, 1), at::zeros({1, 32}), 0);
  // Below 1e-6 the magnitude of the dot product is floored, its sign is kept.
  const at::Tensor faint = at::full({2, 1, 32}, 1e-9);
  const at::Tensor minus_key = at::cat({at::full({2, 32}, -1e-9), at::full({2, 32}, 2.0)}, 1);
  const auto [minus, minus_gate] =
      ops::engram_gate(faint, minus_key, at::full({1, 32}, 1e-9), weight, text, 1.0);
  judge.within("Engram gate below 0", minus_gate.select(0, 0), at::full({1}, 1 - open), 1e-7);
}

}  // namespace

at::Tensor unit_tensor(const std::string& name) {
  static const SafetensorsFile file(kUnits + ".safetensors");
  const TensorInfo* info = file.find(name);
  TORCH_CHECK(info != nullptr && info->type == StoredType::kF32, "no fp32 golden unit ", name);
  const std::span<const std::byte> bytes = file.view(*info);
  at::Tensor tensor = at::empty(info->shape, at::kFloat);
  std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::vector<std::string> failed_units() {
  Judge judge;
  check_quantisers(judge);
  check_rope(judge);
  check_hyper_connections(judge);
  check_engram(judge);
  return judge.failures();
}

std::vector<std::string> failed_definitions() {
  Judge judge;
  check_published_bytes(judge);
  check_scales(judge);
  check_selection(judge);
  check_attention(judge);
  check_router(judge);
  check_engram_gate(judge);
  return judge.failures();
}

}  // namespace deepinfer::tests
