// The model's config.json, typed: every field of the released DeepSeek-V4.1 text configuration.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

// YaRN parameters, used by layers with a compress ratio above 0 (model.md 1.2, 3.0).
struct RopeScaling {
  double factor = 16;
  double beta_fast = 32;
  double beta_slow = 1;
  int64_t original_max_position_embeddings = 65536;
};

// `quantization_config`: how projection weights are stored (model.md 1.4, 2.2).
struct QuantizationConfig {
  int64_t tile_rows = 32;     // weight_block_size[0], output channels a scale
  int64_t tile_columns = 32;  // weight_block_size[1], input channels a scale
  bool fp4_experts = true;    // expert_dtype == "fp4": routed experts are two e2m1 codes a byte
};

// `vision_config`; only the tensor inventory uses it (model.md 1.3, 2.6).
struct VisionConfig {
  int64_t num_hidden_layers = 0;
  int64_t hidden_size = 0;
  int64_t num_attention_heads = 0;
  int64_t intermediate_size = 0;
  int64_t patch_size = 0;
  double rope_theta = 10000;
  int64_t downsample_ratio = 0;
  int64_t max_image_tokens = 0;
  int64_t min_pixels = 0;
};

// Names are those of config.json; sizes are counts of elements, heads, layers or tokens.
struct ModelConfig {
  int64_t bos_token_id = 0;
  int64_t eos_token_id = 1;
  int64_t pad_token_id = 2;
  int64_t image_token_id = -1;                     // -1: the model has no image token
  std::optional<QuantizationConfig> quantization;  // absent: every projection is BF16
  std::optional<VisionConfig> vision;

  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t moe_intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t q_lora_rank = 0;
  int64_t o_lora_rank = 0;
  int64_t o_groups = 0;
  double swiglu_limit = 0;
  double rms_norm_eps = 0;
  int64_t max_position_embeddings = 0;
  double rope_theta = 0;
  double compress_rope_theta = 0;
  RopeScaling rope_scaling;
  int64_t n_routed_experts = 0;
  int64_t n_shared_experts = 0;
  int64_t num_experts_per_tok = 0;
  double routed_scaling_factor = 0;
  double gate_temp = 1.0;
  int64_t sliding_window = 0;                  // includes the query itself
  std::vector<int64_t> compress_ratios;        // one a backbone layer (draft entries split off)
  std::vector<int64_t> draft_compress_ratios;  // one a draft stage, all 0
  std::vector<int64_t> kv_source_layer_ids;
  std::vector<int64_t> index_source_layer_ids;
  int64_t index_n_heads = 0;
  int64_t index_head_dim = 0;
  int64_t index_topk = 0;
  int64_t candidate_source_layer_id = -1;  // negative: no candidate filter
  int64_t candidate_topk_blocks = 0;
  int64_t candidate_block_size = 0;
  int64_t hc_mult = 0;
  int64_t hc_sinkhorn_iters = 0;
  double hc_eps = 0;
  std::vector<int64_t> engram_layer_ids;
  std::vector<int64_t> engram_num_embeddings;
  int64_t engram_max_ngram_size = 0;
  int64_t engram_vocab_size = 0;
  int64_t engram_n_heads = 0;
  int64_t engram_head_dim = 0;
  int64_t engram_pad_token_id = 0;
  int64_t engram_compressed_vocab_size = 0;
  int64_t num_nextn_predict_layers = 0;
  int64_t dspark_block_size = 0;
  int64_t dspark_noise_token_id = 0;
  std::vector<int64_t> dspark_target_layer_ids;
  int64_t dspark_markov_rank = 0;
  int64_t dspark_n_routed_experts = 0;
  int64_t dspark_num_experts_per_tok = 0;

  // Hash columns of an Engram layer: (engram_max_ngram_size - 1) * engram_n_heads.
  int64_t engram_columns() const { return (engram_max_ngram_size - 1) * engram_n_heads; }
};

// Parses and validates config.json text: strict JSON without duplicate keys, exact model_type,
// known keys only, every schedule rule of model.md 1.6 and 2.8. `where` names the source in
// messages. Throws CheckpointError.
ModelConfig parse_model_config(std::string_view json_text, const std::string& where);

// Reads `directory/config.json`. Throws CheckpointError.
ModelConfig load_model_config(const std::filesystem::path& directory);

}  // namespace deepinfer
