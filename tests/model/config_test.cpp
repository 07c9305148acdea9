// config.json: the released file and the tiny ones load; every rule of model.md 1 and 2.8 has its
// message.
#include "model/config.h"

#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/support/checkpoint_files.h"
#include "tests/support/messages.h"

namespace deepinfer::test {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

const fs::path kReleased =
    fs::path(DEEPINFER_SIM_SOURCE_DIR) / "configs/models/deepseek-v4.1-flash";

json released() { return json::parse(read_file(kReleased / "config.json")); }
ModelConfig parse(const json& config) { return parse_model_config(config.dump(), "FILE"); }
ErrorParts error_of(const json& config) {
  return checkpoint_error([&] { parse(config); });
}

// One change to the released config that must be refused.
struct Change {
  std::string pointer;  // JSON pointer; the value is removed if `value` is discarded
  json value;
  std::string what;  // how the message begins
};
const json kRemove = json(json::value_t::discarded);

void apply(json& config, const Change& change) {
  const json::json_pointer pointer(change.pointer);
  if (change.value.is_discarded()) {
    config[pointer.parent_pointer()].erase(pointer.back());
  } else {
    config[pointer] = change.value;
  }
}

}  // namespace

TEST_CASE("the released config has its published values") {
  const ModelConfig c = load_model_config(kReleased);
  CHECK(c.bos_token_id == 0);
  CHECK(c.eos_token_id == 1);
  CHECK(c.pad_token_id == 2);
  CHECK(c.image_token_id == 129264);
  REQUIRE(c.quantization);
  CHECK(c.quantization->tile_rows == 32);
  CHECK(c.quantization->tile_columns == 32);
  CHECK(c.quantization->fp4_experts);
  REQUIRE(c.vision);
  CHECK(c.vision->num_hidden_layers == 32);
  CHECK(c.vision->hidden_size == 1024);
  CHECK(c.vision->num_attention_heads == 16);
  CHECK(c.vision->intermediate_size == 2816);
  CHECK(c.vision->patch_size == 14);
  CHECK(c.vision->rope_theta == 10000);
  CHECK(c.vision->downsample_ratio == 3);
  CHECK(c.vision->max_image_tokens == 1024);
  CHECK(c.vision->min_pixels == 544 * 544);
  CHECK(c.vocab_size == 129280);
  CHECK(c.hidden_size == 5120);
  CHECK(c.moe_intermediate_size == 2304);
  CHECK(c.num_hidden_layers == 40);
  CHECK(c.num_attention_heads == 64);
  CHECK(c.head_dim == 512);
  CHECK(c.qk_rope_head_dim == 64);
  CHECK(c.q_lora_rank == 1280);
  CHECK(c.o_lora_rank == 1024);
  CHECK(c.o_groups == 8);
  CHECK(c.swiglu_limit == 10);
  CHECK(c.rms_norm_eps == 1e-20);
  CHECK(c.max_position_embeddings == 1048576);
  CHECK(c.rope_theta == 10000);
  CHECK(c.compress_rope_theta == 160000);
  CHECK(c.rope_scaling.factor == 16);
  CHECK(c.rope_scaling.beta_fast == 32);
  CHECK(c.rope_scaling.beta_slow == 1);
  CHECK(c.rope_scaling.original_max_position_embeddings == 65536);
  CHECK(c.n_routed_experts == 384);
  CHECK(c.n_shared_experts == 1);
  CHECK(c.num_experts_per_tok == 6);
  CHECK(c.routed_scaling_factor == 1.5);
  CHECK(c.gate_temp == 1);
  CHECK(c.sliding_window == 128);
  CHECK(c.compress_ratios.size() == 40);
  CHECK(c.draft_compress_ratios == std::vector<int64_t>{0, 0, 0});
  CHECK(c.kv_source_layer_ids == std::vector<int64_t>{2, 8, 14, 20});
  CHECK(c.index_source_layer_ids == std::vector<int64_t>{2, 8, 14, 20, 24, 28, 32, 36});
  CHECK(c.index_n_heads == 32);
  CHECK(c.index_head_dim == 128);
  CHECK(c.index_topk == 512);
  CHECK(c.candidate_source_layer_id == 20);
  CHECK(c.candidate_topk_blocks == 2048);
  CHECK(c.candidate_block_size == 8);
  CHECK(c.hc_mult == 4);
  CHECK(c.hc_sinkhorn_iters == 20);
  CHECK(c.hc_eps == 1e-6);
  CHECK(c.engram_layer_ids == std::vector<int64_t>{1, 14});
  CHECK(c.engram_num_embeddings == std::vector<int64_t>{384006168, 384016682});
  CHECK(c.engram_max_ngram_size == 4);
  CHECK(c.engram_vocab_size == 16000000);
  CHECK(c.engram_n_heads == 8);
  CHECK(c.engram_head_dim == 256);
  CHECK(c.engram_columns() == 24);
  CHECK(c.engram_pad_token_id == 2);
  CHECK(c.engram_compressed_vocab_size == 99092);
  CHECK(c.num_nextn_predict_layers == 3);
  CHECK(c.dspark_block_size == 5);
  CHECK(c.dspark_noise_token_id == 128799);
  CHECK(c.dspark_target_layer_ids == std::vector<int64_t>{37, 38, 39});
  CHECK(c.dspark_markov_rank == 256);
  CHECK(c.dspark_n_routed_experts == 128);
  CHECK(c.dspark_num_experts_per_tok == 3);
}

TEST_CASE("the configs of the golden models load") {
  for (const char* name : {"tiny", "tiny-fp8", "steady", "wide"}) {
    CAPTURE(name);
    const ModelConfig c =
        load_model_config(fs::path(DEEPINFER_SIM_SOURCE_DIR) / "golden/data" / name);
    CHECK(c.vocab_size == 512);
    CHECK(c.image_token_id == -1);
    CHECK_FALSE(c.vision);
    CHECK(c.quantization.has_value() == (std::string(name) != "tiny"));
    CHECK(c.swiglu_limit == 1.5);
  }
}

TEST_CASE("what may be written in two ways is read in both") {
  json config = released();
  auto& text = config["text_config"];
  SUBCASE("compress_ratios without the draft stages") {
    text["compress_ratios"].erase(40), text["compress_ratios"].erase(40);
    text["compress_ratios"].erase(40);
    CHECK(parse(config).compress_ratios == parse(released()).compress_ratios);
  }
  SUBCASE("engram_pad_id") {
    text.erase("engram_pad_token_id");
    text["engram_pad_id"] = 2;
    CHECK(parse(config).engram_pad_token_id == 2);
  }
  SUBCASE("engram_pad_id beside the released key, equal") {
    text["engram_pad_id"] = 2;
    CHECK(parse(config).engram_pad_token_id == 2);
  }
  SUBCASE("gate_temp") {
    text["gate_temp"] = 0.5;
    CHECK(parse(config).gate_temp == 0.5);
  }
  SUBCASE("bookkeeping of Hugging Face") {
    text["attention_dropout"] = 0.0;
    text["initializer_range"] = 0.02;
    text["use_cache"] = true;
    text["tie_word_embeddings"] = false;
    config["transformers_version"] = "5.0.0";
    CHECK(parse(config).hidden_size == 5120);
  }
  SUBCASE("fp8 experts") {
    config["quantization_config"]["expert_dtype"] = "fp8";
    CHECK_FALSE(parse(config).quantization->fp4_experts);
  }
  SUBCASE("no candidate filter") {
    text["candidate_source_layer_id"] = -1;
    CHECK(parse(config).candidate_source_layer_id == -1);
  }
  SUBCASE("no draft stages") {
    text["num_nextn_predict_layers"] = 0;
    text["compress_ratios"].erase(40), text["compress_ratios"].erase(40);
    text["compress_ratios"].erase(40);
    CHECK(parse(config).draft_compress_ratios.empty());
  }
}

TEST_CASE("every rule is enforced with a message that names the key") {
  const std::string t = "/text_config/";
  const std::vector<Change> changes = {
      {"/model_type", "deepseek_v4", "this is DeepSeek-V4, not DeepSeek-V4.1"},
      {"/model_type", "deepseek_v41_text", "this is the text part of a config"},
      {"/model_type", "deepseek_v410", "unsupported model_type"},
      {"/model_type", "deepseek_v3", "unsupported model_type"},
      {"/model_type", 41, "wrong JSON type"},
      {"/model_type", kRemove, "key \"model_type\" is missing"},
      {"/architectures", json::array({"DeepseekV4ForCausalLM"}),
       "the architecture is that of DeepSeek-V4"},
      {"/architectures", json::array({"DeepseekV41ForCausalLM2"}), "unsupported architecture"},
      {"/architectures", json::array(), "wrong number of architectures"},
      {"/dtype", "float16", "unsupported value"},
      {"/vision_conf", 1, "unknown key \"vision_conf\""},
      {"/image_token_id", 129280, "value out of range"},
      {"/image_token_id", kRemove, "key \"image_token_id\" is missing"},
      {"/bos_token_id", -1, "value out of range"},
      {"/text_config", kRemove, "key \"text_config\" is missing"},
      {"/text_config", 1, "wrong JSON type"},
      {"/quantization_config/quant_method", "gptq", "unsupported value"},
      {"/quantization_config/activation_scheme", "static", "unsupported value"},
      {"/quantization_config/scale_fmt", "float", "unsupported value"},
      {"/quantization_config/expert_dtype", "int4", "unsupported value"},
      {"/quantization_config/weight_block_size", json::array({128, 128}), "unsupported scale tile"},
      {"/quantization_config/weight_block_size", json::array({32}), "wrong number of sides"},
      {"/quantization_config/bits", 8, "unknown key \"bits\""},
      {"/vision_config/model_type", "clip", "unsupported value"},
      {"/vision_config/num_attention_heads", 7, "vision heads do not divide"},
      {"/vision_config/max_wh_ratio", 3, "unsupported value"},
      {"/vision_config/depth", 3, "unknown key \"depth\""},
      {t + "model_type", "deepseek_v4_text", "unsupported value"},
      {t + "sliding_windows", 8, "unknown key \"sliding_windows\""},
      {t + "num_hash_layers", 3, "key num_hash_layers belongs to DeepSeek-V4"},
      {t + "vocab_size", 129280.0, "wrong JSON type"},
      {t + "vocab_size", "129280", "wrong JSON type"},
      {t + "vocab_size", 0, "value out of range"},
      {t + "vocab_size", int64_t{1} << 62, "value out of range"},
      {t + "hidden_size", kRemove, "key \"hidden_size\" is missing"},
      {t + "hidden_size", 5104, "input of a quantised projection is not a multiple of 32"},
      {t + "q_lora_rank", 1264, "input of a quantised projection is not a multiple of 32"},
      {t + "moe_intermediate_size", 2320,
       "input of a quantised projection is not a multiple of 32"},
      {t + "num_key_value_heads", 8, "unsupported value"},
      {t + "head_dim", 500, "head_dim is not a multiple of 32"},
      {t + "qk_rope_head_dim", 63, "qk_rope_head_dim is odd"},
      {t + "qk_rope_head_dim", 514, "value out of range"},
      {t + "index_head_dim", 32, "index_head_dim is below qk_rope_head_dim"},
      {t + "index_head_dim", 120, "index_head_dim is not a multiple of 32"},
      {t + "o_groups", 7, "o_groups does not divide the attention heads"},
      {t + "hidden_act", "gelu", "unsupported value"},
      {t + "attention_bias", true, "unsupported value"},
      {t + "attention_dropout", 0.1, "unsupported value"},
      {t + "tie_word_embeddings", true, "unsupported value"},
      {t + "swiglu_limit", 0, "value out of range"},
      {t + "rms_norm_eps", 0, "value out of range"},
      {t + "rope_theta", -1, "value out of range"},
      {t + "rope_scaling/rope_type", "linear", "unsupported value"},
      {t + "rope_scaling/mscale", 1, "unknown key \"mscale\""},
      {t + "rope_scaling/factor", 0.5, "value out of range"},
      {t + "rope_scaling/beta_slow", 64, "beta_slow is above beta_fast"},
      {t + "rope_scaling/original_max_position_embeddings", 1 << 21,
       "YaRN's original length is above max_position_embeddings"},
      {t + "n_shared_experts", 2, "unsupported value"},
      {t + "n_routed_experts", 65536, "too many routed experts"},
      {t + "num_experts_per_tok", 385, "value out of range"},
      {t + "scoring_func", "sigmoid", "unsupported value"},
      {t + "topk_method", "greedy", "unsupported value"},
      {t + "norm_topk_prob", false, "unsupported value"},
      {t + "gate_temp", 0, "value out of range"},
      {t + "compress_ratios", json::array({0, 0}), "compress_ratios has the wrong length"},
      {t + "compress_ratios/42", 2, "a draft stage has a compress ratio"},
      {t + "compress_ratios/3", 4, "unsupported compress ratio"},
      {t + "compress_ratios/3", -1, "value out of range"},
      {t + "hc_mult", 0, "value out of range"},
      {t + "hc_eps", -1, "value out of range"},
      {t + "engram_num_embeddings", json::array({384006168}),
       "Engram layers and tables differ in number"},
      {t + "engram_num_embeddings/1", 384006168,
       "the primes of an Engram layer do not sum to the rows of its table"},
      {t + "engram_vocab_size", 16000058,
       "the primes of an Engram layer do not sum to the rows of its table"},
      {t + "engram_head_dim", 250, "engram_head_dim is not a multiple of 32"},
      {t + "engram_n_heads", 250, "too many Engram hash columns"},
      {t + "engram_pad_token_id", 129280, "value out of range"},
      {t + "engram_pad_id", 3, "engram_pad_id and engram_pad_token_id differ"},
      {t + "engram_compressed_vocab_size", 129281, "value out of range"},
      {t + "eos_token_id", 2, "token id differs from the top level's"},
      {t + "dspark_noise_token_id", 129280, "value out of range"},
      {t + "dspark_target_layer_ids", json::array(), "no target layer"},
      {t + "dspark_num_experts_per_tok", 129, "value out of range"},
      {t + "dspark_n_routed_experts", 65536, "too many draft experts"},
  };
  for (const Change& change : changes) {
    CAPTURE(change.pointer);
    CAPTURE(change.value.dump());
    json config = released();
    apply(config, change);
    const ErrorParts parts = error_of(config);
    CAPTURE(parts.what);
    CHECK(begins_with(parts.what, change.what));
    CHECK(begins_with(parts.where, "FILE"));
    CHECK_FALSE(parts.expected.empty());
    CHECK_FALSE(parts.found.empty());
  }
}

TEST_CASE("every released key is needed") {
  // Without them the file would be read with a guess. vision_config is a whole, and may be absent.
  std::set<std::string> may_be_absent = {"/dtype", "/quantization_config", "/vision_config",
                                         "/vision_config/max_wh_ratio"};
  const json full = released();
  const auto check_level = [&](const std::string& level) {
    for (const auto& [key, value] : full[json::json_pointer(level)].items()) {
      const std::string pointer = level + "/" + key;
      CAPTURE(pointer);
      json config = full;
      apply(config, {pointer, kRemove, ""});
      const ErrorParts parts = error_of(config);
      if (may_be_absent.count(pointer) != 0) {
        CHECK(parts.what.empty());
      } else {
        CHECK(parts.what == "key \"" + key + "\" is missing");
      }
    }
  };
  check_level("");
  check_level("/text_config");
  check_level("/vision_config");
  check_level("/quantization_config");
  check_level("/text_config/rope_scaling");
}

TEST_CASE("an unknown key is answered with the nearest known one") {
  json config = released();
  config["text_config"]["index_top_k"] = 512;
  CHECK(contains(error_of(config).expected, "index_topk"));
}

TEST_CASE("no size in range overflows a product") {
  // The largest of everything at once: the inventory's sizes must stay below 2^63.
  json config = released();
  auto& text = config["text_config"];
  text["hidden_size"] = 1 << 17;
  text["num_attention_heads"] = 4096;
  text["head_dim"] = 8192;
  text["q_lora_rank"] = 1 << 17;
  text["o_lora_rank"] = 1 << 17;
  text["o_groups"] = 4096;
  text["hc_mult"] = 16;
  const ModelConfig c = parse(config);
  CHECK(c.num_attention_heads * c.head_dim * c.q_lora_rank > 0);
  CHECK(c.o_groups * c.o_lora_rank * c.hidden_size > 0);
}

TEST_CASE("a missing file says so") {
  const TempFolder folder;
  CHECK(checkpoint_error([&] { load_model_config(folder.path()); }).what == "cannot open file");
}

}  // namespace deepinfer::test
