#include "model/config.h"

#include <initializer_list>
#include <limits>
#include <sstream>

#include "model/engram_meta.h"
#include "model/json_reader.h"
#include "model/layer_plan.h"
#include "platform/errors.h"

namespace deepinfer {
namespace {

// Upper limits, each at least 8 times the released value. They keep every product of two sizes
// below 2^63 and the list of expected tensors below a million entries, whatever the file says.
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxWidth = int64_t{1} << 17;  // hidden, ranks, expert width
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 8192;
constexpr int64_t kMaxPositions = int64_t{1} << 31;
constexpr int64_t kMaxExperts = 65536;
constexpr int64_t kMaxExpertsOfAllLayers = int64_t{1} << 17;  // 131072; the release has 15,744
constexpr int64_t kMaxStreams = 16;
constexpr int64_t kMaxNgram = 16;
constexpr int64_t kMaxEngramHeads = 256;
constexpr int64_t kMaxEngramColumns = 1024;  // of all layers: bounds the prime walk
constexpr int64_t kMaxEngramRows = int64_t{1} << 40;
constexpr int64_t kMaxEngramVocab = int64_t{1} << 31;
constexpr int64_t kMaxDrafts = 64;
constexpr int64_t kQuantTile = 32;

[[noreturn]] void breach(const JsonNode& node, std::string what, std::string expected,
                         std::string found, std::string remedy = "") {
  throw CheckpointError({.what = std::move(what),
                         .where = node.where(),
                         .expected = std::move(expected),
                         .found = std::move(found),
                         .remedy = std::move(remedy)});
}

double positive(const JsonNode& node, double low, double high) {
  const double value = node.number();
  if (!(value >= low && value <= high)) {
    std::ostringstream range;
    range << "a number from " << low << " to " << high;
    node.fail("value out of range", range.str());
  }
  return value;
}

void expect_string(const JsonNode& node, std::string_view wanted, const std::string& remedy = "") {
  if (node.string() != wanted) node.fail("unsupported value", quote_name(wanted), remedy);
}

void expect_boolean(const JsonNode& node, bool wanted) {
  if (node.boolean() != wanted) node.fail("unsupported value", wanted ? "true" : "false");
}

// Keys that Hugging Face writes beside the model's own. Each is checked to leave the arithmetic as
// it is.
void check_bookkeeping(const JsonNode& node) {
  if (auto key = node.find("attention_dropout")) {
    if (key->number() != 0) key->fail("unsupported value", "0", "dropout is for training");
  }
  if (auto key = node.find("initializer_range")) key->number();
  if (auto key = node.find("use_cache")) key->boolean();
  if (auto key = node.find("tie_word_embeddings")) expect_boolean(*key, false);
  for (const char* name : {"dtype", "torch_dtype"}) {
    if (auto key = node.find(name)) expect_string(*key, "bfloat16");
  }
  for (const char* name : {"_name_or_path", "transformers_version"}) {
    if (auto key = node.find(name)) key->string();
  }
}
const std::vector<std::string_view> kBookkeeping = {
    "attention_dropout", "initializer_range", "use_cache",           "tie_word_embeddings", "dtype",
    "torch_dtype",       "_name_or_path",     "transformers_version"};

std::vector<std::string_view> known_keys(std::initializer_list<std::string_view> own) {
  std::vector<std::string_view> keys(own);
  keys.insert(keys.end(), kBookkeeping.begin(), kBookkeeping.end());
  return keys;
}

// model_type and architectures are compared whole: "deepseek_v4" is a prefix of "deepseek_v41" and
// another model (model.md 1.1).
void check_model_type(const JsonNode& root) {
  const JsonNode type = root.at("model_type");
  const std::string& name = type.string();
  if (name == "deepseek_v4") {
    type.fail("this is DeepSeek-V4, not DeepSeek-V4.1", "\"deepseek_v41\"",
              "the two differ in tensors and arithmetic: take a V4.1 checkpoint");
  }
  if (name == "deepseek_v41_text") {
    type.fail("this is the text part of a config", "\"deepseek_v41\", with a text_config inside",
              "take the config.json of the released folder");
  }
  if (name != "deepseek_v41") {
    type.fail("unsupported model_type", "\"deepseek_v41\"", "only DeepSeek-V4.1 can be loaded");
  }
  const JsonNode architectures = root.at("architectures");
  const auto names = architectures.elements(16);
  if (names.size() != 1) architectures.fail("wrong number of architectures", "exactly one");
  if (names[0].string() == "DeepseekV4ForCausalLM") {
    names[0].fail("the architecture is that of DeepSeek-V4", "\"DeepseekV41ForCausalLM\"",
                  "take a V4.1 checkpoint");
  }
  if (names[0].string() != "DeepseekV41ForCausalLM") {
    names[0].fail("unsupported architecture", "\"DeepseekV41ForCausalLM\"",
                  "only DeepSeek-V4.1 can be loaded");
  }
}

QuantizationConfig read_quantization(const JsonNode& node) {
  node.expect_keys(
      {"quant_method", "activation_scheme", "weight_block_size", "scale_fmt", "expert_dtype"});
  QuantizationConfig out;
  expect_string(node.at("quant_method"), "fp8");
  expect_string(node.at("activation_scheme"), "dynamic");
  expect_string(node.at("scale_fmt"), "ue8m0");
  const JsonNode block = node.at("weight_block_size");
  const auto sides = block.integers(1, 65536, 2);
  if (sides.size() != 2) block.fail("wrong number of sides", "[32, 32]");
  out.tile_rows = sides[0];
  out.tile_columns = sides[1];
  // Activations and fp4 experts are scaled by 32 input channels, so other tiles are another model.
  if (sides[0] != kQuantTile || sides[1] != kQuantTile) {
    breach(block, "unsupported scale tile", "[32, 32], as released for DeepSeek-V4.1",
           "[" + std::to_string(sides[0]) + ", " + std::to_string(sides[1]) + "]",
           "[128, 128] is DeepSeek-V4's: take a V4.1 checkpoint");
  }
  const JsonNode experts = node.at("expert_dtype");
  if (experts.string() != "fp4" && experts.string() != "fp8") {
    experts.fail("unsupported value", "\"fp4\" or \"fp8\"");
  }
  out.fp4_experts = experts.string() == "fp4";
  return out;
}

VisionConfig read_vision(const JsonNode& node) {
  node.expect_keys(
      known_keys({"model_type", "num_hidden_layers", "hidden_size", "num_attention_heads",
                  "intermediate_size", "patch_size", "rope_theta", "downsample_ratio",
                  "max_image_tokens", "min_pixels", "max_wh_ratio"}));
  check_bookkeeping(node);
  VisionConfig out;
  expect_string(node.at("model_type"), "deepseek_v41_vision");
  out.num_hidden_layers = node.at("num_hidden_layers").integer(1, kMaxLayers);
  out.hidden_size = node.at("hidden_size").integer(1, kMaxWidth);
  const JsonNode heads = node.at("num_attention_heads");
  out.num_attention_heads = heads.integer(1, kMaxHeads);
  // 2-D rotation: two coordinates, pairs of channels.
  if (out.hidden_size % (out.num_attention_heads * 4) != 0) {
    heads.fail("vision heads do not divide the hidden size into multiples of 4",
               "a divisor of hidden_size / 4 = " + std::to_string(out.hidden_size) + " / 4");
  }
  out.intermediate_size = node.at("intermediate_size").integer(1, kMaxWidth);
  out.patch_size = node.at("patch_size").integer(1, 1024);
  out.rope_theta = positive(node.at("rope_theta"), 1, 1e12);
  out.downsample_ratio = node.at("downsample_ratio").integer(1, 64);
  out.max_image_tokens = node.at("max_image_tokens").integer(1, kMaxPositions);
  out.min_pixels = node.at("min_pixels").integer(0, kMaxPositions);
  if (auto ratio = node.find("max_wh_ratio")) {
    if (!ratio->is_null()) ratio->fail("unsupported value", "null");
  }
  return out;
}

RopeScaling read_rope_scaling(const JsonNode& node, int64_t max_positions) {
  node.expect_keys({"rope_type", "type", "factor", "beta_fast", "beta_slow",
                    "original_max_position_embeddings"});
  RopeScaling out;
  expect_string(node.at("rope_type"), "yarn");
  if (auto type = node.find("type")) expect_string(*type, "yarn");  // older spelling, kept beside
  out.factor = positive(node.at("factor"), 1, 1e6);
  out.beta_fast = positive(node.at("beta_fast"), 1e-6, 1e6);
  const JsonNode slow = node.at("beta_slow");
  out.beta_slow = positive(slow, 1e-6, 1e6);
  if (out.beta_slow > out.beta_fast) {
    slow.fail("beta_slow is above beta_fast",
              "at most beta_fast, " + std::to_string(out.beta_fast));
  }
  const JsonNode original = node.at("original_max_position_embeddings");
  out.original_max_position_embeddings = original.integer(1, kMaxPositions);
  if (out.original_max_position_embeddings > max_positions) {
    original.fail("YaRN's original length is above max_position_embeddings",
                  "at most " + std::to_string(max_positions));
  }
  return out;
}

// `text_config`, in the order of model.md 1.2.
class TextReader {
 public:
  TextReader(const JsonNode& text, ModelConfig& config) : text_(text), config_(config) {}

  void read() {
    check_keys();
    check_bookkeeping(text_);
    expect_string(text_.at("model_type"), "deepseek_v41_text");
    read_shapes();
    read_experts();
    read_sparse_attention();
    read_hyper_connections();
    read_engram();
    read_draft();
    check_quantised_widths();
  }

 private:
  void check_keys() const {
    if (auto key = text_.find("num_hash_layers")) {
      key->fail("key num_hash_layers belongs to DeepSeek-V4",
                "no such key: V4.1 has no hash layers", "take a V4.1 checkpoint");
    }
    auto known = known_keys({"model_type",
                             "vocab_size",
                             "hidden_size",
                             "moe_intermediate_size",
                             "num_hidden_layers",
                             "num_attention_heads",
                             "num_key_value_heads",
                             "head_dim",
                             "qk_rope_head_dim",
                             "q_lora_rank",
                             "o_lora_rank",
                             "o_groups",
                             "hidden_act",
                             "attention_bias",
                             "swiglu_limit",
                             "rms_norm_eps",
                             "max_position_embeddings",
                             "rope_theta",
                             "compress_rope_theta",
                             "rope_scaling",
                             "n_routed_experts",
                             "n_shared_experts",
                             "num_experts_per_tok",
                             "scoring_func",
                             "topk_method",
                             "norm_topk_prob",
                             "routed_scaling_factor",
                             "gate_temp",
                             "sliding_window",
                             "compress_ratios",
                             "kv_source_layer_ids",
                             "index_source_layer_ids",
                             "index_n_heads",
                             "index_head_dim",
                             "index_topk",
                             "candidate_source_layer_id",
                             "candidate_topk_blocks",
                             "candidate_block_size",
                             "hc_mult",
                             "hc_sinkhorn_iters",
                             "hc_eps",
                             "engram_layer_ids",
                             "engram_num_embeddings",
                             "engram_max_ngram_size",
                             "engram_n_heads",
                             "engram_head_dim",
                             "engram_vocab_size",
                             "engram_pad_token_id",
                             "engram_pad_id",
                             "engram_compressed_vocab_size",
                             "num_nextn_predict_layers",
                             "dspark_block_size",
                             "dspark_noise_token_id",
                             "dspark_target_layer_ids",
                             "dspark_markov_rank",
                             "dspark_n_routed_experts",
                             "dspark_num_experts_per_tok",
                             "bos_token_id",
                             "eos_token_id",
                             "pad_token_id"});
    text_.expect_keys(known);
  }

  int64_t size(const char* key, int64_t high, int64_t low = 1) const {
    return text_.at(key).integer(low, high);
  }

  void read_shapes() {
    config_.vocab_size = size("vocab_size", kMaxVocab);
    config_.hidden_size = size("hidden_size", kMaxWidth);
    config_.moe_intermediate_size = size("moe_intermediate_size", kMaxWidth);
    config_.num_hidden_layers = size("num_hidden_layers", kMaxLayers);
    config_.num_attention_heads = size("num_attention_heads", kMaxHeads);
    const JsonNode kv_heads = text_.at("num_key_value_heads");
    if (kv_heads.integer() != 1)
      kv_heads.fail("unsupported value", "1: one latent serves all heads");
    config_.head_dim = size("head_dim", kMaxHeadDim);
    const JsonNode head_dim = text_.at("head_dim");
    if (config_.head_dim % 32 != 0) {
      head_dim.fail("head_dim is not a multiple of 32",
                    "a multiple of 32: window rows are quantised "
                    "in blocks of 32 channels");
    }
    const JsonNode rope_dim = text_.at("qk_rope_head_dim");
    config_.qk_rope_head_dim = rope_dim.integer(2, config_.head_dim);
    if (config_.qk_rope_head_dim % 2 != 0) {
      rope_dim.fail("qk_rope_head_dim is odd", "an even number: channels rotate in pairs");
    }
    config_.q_lora_rank = size("q_lora_rank", kMaxWidth);
    config_.o_lora_rank = size("o_lora_rank", kMaxWidth);
    const JsonNode groups = text_.at("o_groups");
    config_.o_groups = groups.integer(1, config_.num_attention_heads);
    if (config_.num_attention_heads % config_.o_groups != 0) {
      groups.fail("o_groups does not divide the attention heads",
                  "a divisor of " + std::to_string(config_.num_attention_heads));
    }
    expect_string(text_.at("hidden_act"), "silu");
    expect_boolean(text_.at("attention_bias"), false);
    config_.swiglu_limit = positive(text_.at("swiglu_limit"), 1e-6, 1e30);
    config_.rms_norm_eps = positive(text_.at("rms_norm_eps"), 1e-37, 1);
    config_.max_position_embeddings = size("max_position_embeddings", kMaxPositions);
    config_.rope_theta = positive(text_.at("rope_theta"), 1.0001, 1e12);
    config_.compress_rope_theta = positive(text_.at("compress_rope_theta"), 1.0001, 1e12);
    config_.rope_scaling =
        read_rope_scaling(text_.at("rope_scaling"), config_.max_position_embeddings);
  }

  void read_experts() {
    const JsonNode routed = text_.at("n_routed_experts");
    config_.n_routed_experts = routed.integer(1, kMaxExperts);
    const JsonNode shared = text_.at("n_shared_experts");
    config_.n_shared_experts = shared.integer();
    if (config_.n_shared_experts != 1) shared.fail("unsupported value", "1 shared expert");
    config_.num_experts_per_tok = size("num_experts_per_tok", config_.n_routed_experts);
    if (config_.n_routed_experts * config_.num_hidden_layers > kMaxExpertsOfAllLayers) {
      breach(routed, "too many routed experts",
             "at most " + std::to_string(kMaxExpertsOfAllLayers) + " over all layers",
             std::to_string(config_.n_routed_experts) + " in each of " +
                 std::to_string(config_.num_hidden_layers) + " layers");
    }
    expect_string(text_.at("scoring_func"), "sqrtsoftplus");
    expect_string(text_.at("topk_method"), "noaux_tc");
    expect_boolean(text_.at("norm_topk_prob"), true);
    config_.routed_scaling_factor = positive(text_.at("routed_scaling_factor"), 1e-6, 1e6);
    if (auto temperature = text_.find("gate_temp")) {
      config_.gate_temp = positive(*temperature, 1e-6, 1e6);
    }
  }

  void read_sparse_attention() {
    config_.sliding_window = size("sliding_window", kMaxPositions);
    read_ratios();
    const int64_t last = config_.num_hidden_layers - 1;
    config_.kv_source_layer_ids = layer_list("kv_source_layer_ids");
    config_.index_source_layer_ids = layer_list("index_source_layer_ids");
    config_.index_n_heads = size("index_n_heads", kMaxHeads);
    const JsonNode dim = text_.at("index_head_dim");
    config_.index_head_dim = dim.integer(1, kMaxHeadDim);
    if (config_.index_head_dim % 32 != 0) {
      dim.fail("index_head_dim is not a multiple of 32",
               "a multiple of 32: index keys are quantised in blocks of 32 channels");
    }
    if (config_.index_head_dim < config_.qk_rope_head_dim) {
      dim.fail("index_head_dim is below qk_rope_head_dim",
               "at least " + std::to_string(config_.qk_rope_head_dim));
    }
    config_.index_topk = size("index_topk", kMaxPositions);
    config_.candidate_source_layer_id =
        text_.at("candidate_source_layer_id").integer(-kMaxLayers, last);
    if (config_.candidate_source_layer_id < 0) config_.candidate_source_layer_id = -1;
    if (config_.candidate_source_layer_id >= 0 || text_.find("candidate_topk_blocks")) {
      config_.candidate_topk_blocks = size("candidate_topk_blocks", kMaxPositions);
    }
    if (config_.candidate_source_layer_id >= 0 || text_.find("candidate_block_size")) {
      config_.candidate_block_size = size("candidate_block_size", kMaxPositions);
    }
  }

  // One entry a layer, or one a layer and draft stage (43 in the release); draft stages have ratio
  // 0.
  void read_ratios() {
    const JsonNode node = text_.at("compress_ratios");
    const auto ratios = node.integers(0, kMaxPositions, kMaxLayers + kMaxDrafts);
    const auto count = static_cast<int64_t>(ratios.size());
    const int64_t layers = config_.num_hidden_layers;
    config_.num_nextn_predict_layers = size("num_nextn_predict_layers", kMaxDrafts, 0);
    const int64_t drafts = config_.num_nextn_predict_layers;
    if (count != layers && count != layers + drafts) {
      breach(node, "compress_ratios has the wrong length",
             std::to_string(layers) + " (layers) or " + std::to_string(layers + drafts) +
                 " (layers and draft stages)",
             std::to_string(count));
    }
    config_.compress_ratios.assign(ratios.begin(), ratios.begin() + layers);
    config_.draft_compress_ratios.assign(static_cast<size_t>(drafts), 0);
    for (int64_t at = layers; at < count; ++at) {
      const int64_t ratio = ratios[static_cast<size_t>(at)];
      if (ratio == 0) continue;
      breach(node, "a draft stage has a compress ratio", "0: draft stages see only their window",
             std::to_string(ratio) + " for draft stage " + std::to_string(at - layers));
    }
  }

  // Order, uniqueness and range are checked with the other schedule rules in make_model_plan.
  std::vector<int64_t> layer_list(const char* key) const {
    return text_.at(key).integers(std::numeric_limits<int64_t>::min(),
                                  std::numeric_limits<int64_t>::max(), kMaxLayers);
  }

  void read_hyper_connections() {
    config_.hc_mult = size("hc_mult", kMaxStreams);
    config_.hc_sinkhorn_iters = size("hc_sinkhorn_iters", 10000);
    config_.hc_eps = positive(text_.at("hc_eps"), 0, 1);
  }

  void read_engram() {
    config_.engram_layer_ids = layer_list("engram_layer_ids");
    const JsonNode rows = text_.at("engram_num_embeddings");
    config_.engram_num_embeddings = rows.integers(1, kMaxEngramRows, kMaxLayers);
    if (config_.engram_layer_ids.size() != config_.engram_num_embeddings.size()) {
      breach(rows, "Engram layers and tables differ in number",
             std::to_string(config_.engram_layer_ids.size()) + ", one table a layer",
             std::to_string(config_.engram_num_embeddings.size()));
    }
    if (config_.engram_layer_ids.empty() && !text_.find("engram_max_ngram_size")) return;
    config_.engram_max_ngram_size = size("engram_max_ngram_size", kMaxNgram, 2);
    const JsonNode heads = text_.at("engram_n_heads");
    config_.engram_n_heads = heads.integer(1, kMaxEngramHeads);
    const auto slots = static_cast<int64_t>(config_.engram_layer_ids.size());
    if (config_.engram_columns() * slots > kMaxEngramColumns) {
      breach(heads, "too many Engram hash columns",
             "at most " + std::to_string(kMaxEngramColumns) + " over all Engram layers",
             std::to_string(config_.engram_columns()) + " in each of " + std::to_string(slots));
    }
    const JsonNode dim = text_.at("engram_head_dim");
    config_.engram_head_dim = dim.integer(1, kMaxHeadDim);
    if (config_.engram_head_dim % 32 != 0) {
      dim.fail("engram_head_dim is not a multiple of 32",
               "a multiple of 32: table rows are scaled by 32 columns");
    }
    config_.engram_vocab_size = size("engram_vocab_size", kMaxEngramVocab);
    read_engram_pad();
    config_.engram_compressed_vocab_size = size("engram_compressed_vocab_size", config_.vocab_size);
    check_engram_rows(config_, text_.source() + ", text_config.engram_num_embeddings");
  }

  // The released key is engram_pad_token_id; engram_pad_id is the argument's name in other code
  // (model-verified.md 14.8).
  void read_engram_pad() {
    const auto released = text_.find("engram_pad_token_id");
    const auto alias = text_.find("engram_pad_id");
    const JsonNode pad = released ? *released : alias ? *alias : text_.at("engram_pad_token_id");
    config_.engram_pad_token_id = pad.integer(0, config_.vocab_size - 1);
    if (released && alias && alias->integer() != config_.engram_pad_token_id) {
      alias->fail("engram_pad_id and engram_pad_token_id differ",
                  std::to_string(config_.engram_pad_token_id));
    }
  }

  void read_draft() {
    if (config_.num_nextn_predict_layers == 0 && !text_.find("dspark_block_size")) return;
    config_.dspark_block_size = size("dspark_block_size", 4096);
    config_.dspark_noise_token_id = size("dspark_noise_token_id", config_.vocab_size - 1, 0);
    const JsonNode taps = text_.at("dspark_target_layer_ids");
    config_.dspark_target_layer_ids = layer_list("dspark_target_layer_ids");
    if (config_.dspark_target_layer_ids.empty()) taps.fail("no target layer", "at least one");
    config_.dspark_markov_rank = size("dspark_markov_rank", kMaxWidth);
    const JsonNode experts = text_.at("dspark_n_routed_experts");
    config_.dspark_n_routed_experts = experts.integer(1, kMaxExperts);
    if (config_.dspark_n_routed_experts * config_.num_nextn_predict_layers >
        kMaxExpertsOfAllLayers) {
      experts.fail("too many draft experts",
                   "at most " + std::to_string(kMaxExpertsOfAllLayers) + " over all stages");
    }
    config_.dspark_num_experts_per_tok =
        size("dspark_num_experts_per_tok", config_.dspark_n_routed_experts);
  }

  // Every quantised projection takes its input in whole blocks of 32 channels (AQ32, fp4 scales).
  void check_quantised_widths() const {
    if (!config_.quantization) return;
    const auto check = [this](const char* key, int64_t width, const char* what) {
      if (width % kQuantTile == 0) return;
      breach(text_.at(key), "input of a quantised projection is not a multiple of 32",
             "a multiple of 32", std::to_string(width) + " (" + what + ")");
    };
    check("hidden_size", config_.hidden_size, "hidden_size");
    check("q_lora_rank", config_.q_lora_rank, "q_lora_rank");
    check("moe_intermediate_size", config_.moe_intermediate_size, "moe_intermediate_size");
    check("o_lora_rank", config_.o_groups * config_.o_lora_rank, "o_groups x o_lora_rank");
  }

  const JsonNode& text_;
  ModelConfig& config_;
};

// Token ids of the top level; Hugging Face may repeat them in text_config.
int64_t read_token(const JsonNode& root, const JsonNode& text, const char* key,
                   int64_t vocab_size) {
  const int64_t token = root.at(key).integer(0, vocab_size - 1);
  if (auto repeated = text.find(key)) {
    if (repeated->is_null()) return token;
    if (repeated->integer() != token) {
      repeated->fail("token id differs from the top level's", std::to_string(token));
    }
  }
  return token;
}

}  // namespace

ModelConfig parse_model_config(std::string_view json_text, const std::string& where) {
  const JsonValue tree = parse_json(json_text, where);
  const JsonNode root(tree, where);
  root.expect_object();
  check_model_type(root);
  root.expect_keys(
      known_keys({"architectures", "model_type", "bos_token_id", "eos_token_id", "pad_token_id",
                  "image_token_id", "quantization_config", "text_config", "vision_config"}));
  check_bookkeeping(root);

  ModelConfig config;
  if (auto node = root.find("quantization_config")) config.quantization = read_quantization(*node);
  if (auto node = root.find("vision_config")) config.vision = read_vision(*node);
  const JsonNode text = root.at("text_config");
  TextReader(text, config).read();
  config.bos_token_id = read_token(root, text, "bos_token_id", config.vocab_size);
  config.eos_token_id = read_token(root, text, "eos_token_id", config.vocab_size);
  config.pad_token_id = read_token(root, text, "pad_token_id", config.vocab_size);
  if (config.vision || root.find("image_token_id")) {
    config.image_token_id = root.at("image_token_id").integer(0, config.vocab_size - 1);
  }
  make_model_plan(config, where);  // throws where the schedule breaks a rule
  return config;
}

ModelConfig load_model_config(const std::filesystem::path& directory) {
  const std::string path = (directory / "config.json").string();
  return parse_model_config(read_text_file(path, JsonLimits{}.max_bytes), path);
}

}  // namespace deepinfer
