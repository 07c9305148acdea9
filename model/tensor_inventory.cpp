// Writes down every tensor that a config calls for (model.md 2.3-2.6, model-verified.md 2).
#include <string>
#include <utility>

#include "model/checkpoint.h"
#include "model/layer_plan.h"

namespace deepinfer {
namespace {

constexpr int64_t kFp4PerByte = 2;
constexpr int64_t kBlock = 32;  // input channels of an fp4 scale, columns of an Engram scale

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

class Inventory {
 public:
  explicit Inventory(const ModelConfig& config) : config_(config), plan_(make_model_plan(config)) {}

  std::vector<TensorSpec> build() {
    const int64_t vocab = config_.vocab_size;
    const int64_t hidden = config_.hidden_size;
    bf16("embed.weight", {vocab, hidden});
    bf16("norm.weight", {hidden});
    bf16("head.weight", {vocab, hidden});
    for (const LayerPlan& layer : plan_.layers) {
      const std::string name = "layers." + std::to_string(layer.layer) + ".";
      attention_block(name, layer);
      experts(name, config_.n_routed_experts);
      if (layer.engram_slot >= 0) engram(name, static_cast<size_t>(layer.engram_slot));
    }
    for (const LayerPlan& stage : plan_.drafts) draft(stage);
    if (config_.vision) vision(*config_.vision);
    return std::move(specs_);
  }

 private:
  using Shape = std::vector<int64_t>;

  void add(std::string name, TensorForm form, std::vector<StoredType> types, Shape shape) {
    specs_.push_back({std::move(name), form, std::move(types), std::move(shape)});
  }
  void bf16(std::string name, Shape shape) {
    add(std::move(name), TensorForm::kPlain, {StoredType::kBF16}, std::move(shape));
  }
  void f32(std::string name, Shape shape) {
    add(std::move(name), TensorForm::kPlain, {StoredType::kF32}, std::move(shape));
  }
  // e8m0 has no dtype in older safetensors, so some writers call it U8 (model-verified.md 14.8).
  void scale(std::string name, TensorForm form, Shape shape) {
    add(std::move(name), form, {StoredType::kF8E8M0, StoredType::kU8}, std::move(shape));
  }

  // A projection [out, in]: fp8 with a scale a tile, or BF16 in a config without quantisation.
  void dense(const std::string& name, int64_t out, int64_t in) {
    if (!config_.quantization) return bf16(name + ".weight", {out, in});
    const QuantizationConfig& q = *config_.quantization;
    add(name + ".weight", TensorForm::kFp8Weight, {StoredType::kF8E4M3}, {out, in});
    scale(name + ".scale", TensorForm::kFp8Scale,
          {ceil_div(out, q.tile_rows), ceil_div(in, q.tile_columns)});
  }
  // A projection of a routed expert: fp4 with a scale a row and 32 inputs.
  void routed(const std::string& name, int64_t out, int64_t in) {
    if (!config_.quantization || !config_.quantization->fp4_experts) return dense(name, out, in);
    add(name + ".weight", TensorForm::kFp4Weight, {StoredType::kI8}, {out, in / kFp4PerByte});
    scale(name + ".scale", TensorForm::kFp4Scale, {out, in / kBlock});
  }

  // Everything of a layer or draft stage but its experts and Engram.
  void attention_block(const std::string& name, const LayerPlan& layer) {
    const int64_t hidden = config_.hidden_size;
    const int64_t heads_width = config_.num_attention_heads * config_.head_dim;
    bf16(name + "attn_norm.weight", {hidden});
    bf16(name + "ffn_norm.weight", {hidden});
    hyper_connection(name + "hc_attn_");
    hyper_connection(name + "hc_ffn_");
    const std::string attn = name + "attn.";
    dense(attn + "wq_a", config_.q_lora_rank, hidden);
    bf16(attn + "q_norm.weight", {config_.q_lora_rank});
    dense(attn + "wq_b", heads_width, config_.q_lora_rank);
    dense(attn + "wkv", config_.head_dim, hidden);
    bf16(attn + "kv_norm.weight", {config_.head_dim});
    dense(attn + "wo_a", config_.o_groups * config_.o_lora_rank, heads_width / config_.o_groups);
    dense(attn + "wo_b", hidden, config_.o_groups * config_.o_lora_rank);
    f32(attn + "attn_sink", {config_.num_attention_heads});
    if (layer.owns_kv) {
      bf16(attn + "compressor.wkv.weight", {config_.head_dim, hidden});
      // A group of one token has nothing to weigh.
      if (layer.ratio > 1) bf16(attn + "compressor.wgate.weight", {config_.head_dim, hidden});
      bf16(attn + "compressor.norm.weight", {config_.head_dim});
      bf16(attn + "indexer.wk.weight", {config_.index_head_dim, config_.head_dim});
      bf16(attn + "indexer.k_norm.weight", {config_.index_head_dim});
    }
    if (layer.owns_index) {
      dense(attn + "indexer.wq_b", config_.index_n_heads * config_.index_head_dim,
            config_.q_lora_rank);
      bf16(attn + "indexer.weights_proj.weight", {config_.index_n_heads, hidden});
    }
  }

  // Per stream a collapse and an expand weight, and the mix matrix: hc (2 + hc) outputs, three
  // scales.
  void hyper_connection(const std::string& name) {
    const int64_t streams = config_.hc_mult;
    const int64_t outputs = streams * (2 + streams);
    // F32 in the release; one public fixture has BF16, which readers also take
    // (model-verified.md 14.7).
    add(name + "fn", TensorForm::kPlain, {StoredType::kF32, StoredType::kBF16},
        {outputs, streams * config_.hidden_size});
    f32(name + "base", {outputs});
    f32(name + "scale", {3});
  }

  void experts(const std::string& name, int64_t count) {
    const int64_t hidden = config_.hidden_size;
    const int64_t inner = config_.moe_intermediate_size;
    bf16(name + "ffn.gate.weight", {count, hidden});
    f32(name + "ffn.gate.bias", {count});
    f32(name + "ffn.gate.bias_vl", {count});
    for (int64_t expert = 0; expert < count; ++expert) {
      const std::string prefix = name + "ffn.experts." + std::to_string(expert) + ".";
      routed(prefix + "w1", inner, hidden);
      routed(prefix + "w2", hidden, inner);
      routed(prefix + "w3", inner, hidden);
    }
    const std::string shared = name + "ffn.shared_experts.";
    dense(shared + "w1", inner, hidden);
    dense(shared + "w2", hidden, inner);
    dense(shared + "w3", inner, hidden);
  }

  void engram(const std::string& name, size_t slot) {
    const int64_t hidden = config_.hidden_size;
    const int64_t streams = config_.hc_mult;
    const int64_t rows = config_.engram_num_embeddings[slot];
    const int64_t columns = config_.engram_head_dim;
    // The table is fp8 whatever the projections are.
    add(name + "engram.embed.weight", TensorForm::kRowFp8Table, {StoredType::kF8E4M3},
        {rows, columns});
    scale(name + "engram.embed.scale", TensorForm::kRowFp8Scale, {rows, columns / kBlock});
    // A key a stream and one value.
    dense(name + "engram.wkv", (streams + 1) * hidden, config_.engram_columns() * columns);
    for (const char* weight : {"engram.q_weight", "engram.k_weight"}) {
      // BF16 in the release, F32 in a re-export (model-verified.md 14.7).
      add(name + weight, TensorForm::kPlain, {StoredType::kBF16, StoredType::kF32},
          {streams, hidden});
    }
  }

  void draft(const LayerPlan& stage) {
    const int64_t hidden = config_.hidden_size;
    const std::string name = "mtp." + std::to_string(stage.layer) + ".";
    if (stage.layer == 0) {
      const auto taps = static_cast<int64_t>(config_.dspark_target_layer_ids.size());
      dense(name + "main_proj", hidden, taps * hidden);
      bf16(name + "main_norm.weight", {hidden});
    }
    attention_block(name, stage);
    experts(name, config_.dspark_n_routed_experts);
    if (stage.layer + 1 == config_.num_nextn_predict_layers) {
      const int64_t rank = config_.dspark_markov_rank;
      bf16(name + "norm.weight", {hidden});
      bf16(name + "markov_head.embed.weight", {config_.vocab_size, rank});
      bf16(name + "markov_head.head.weight", {config_.vocab_size, rank});
      bf16(name + "confidence_head.proj.weight", {1, hidden + rank});
    }
  }

  void biased(const std::string& name, int64_t out, int64_t in) {
    bf16(name + ".weight", {out, in});
    bf16(name + ".bias", {out});
  }

  void vision(const VisionConfig& vision) {
    constexpr int64_t kColours = 3;
    const int64_t width = vision.hidden_size;
    const int64_t inner = vision.intermediate_size;
    biased("vision.patch_embed.proj", width, kColours * vision.patch_size * vision.patch_size);
    for (int64_t block = 0; block < vision.num_hidden_layers; ++block) {
      const std::string name = "vision.blocks." + std::to_string(block) + ".";
      bf16(name + "norm1.weight", {width});
      bf16(name + "norm2.weight", {width});
      biased(name + "attn.wqkv", 3 * width, width);
      biased(name + "attn.wo", width, width);
      bf16(name + "mlp.w1.weight", {2 * inner, width});  // gate rows, then up rows
      bf16(name + "mlp.w2.weight", {width, inner});
    }
    bf16("vision.norm.weight", {width});
    const int64_t hidden = config_.hidden_size;
    biased("aligner.w1", hidden, width * vision.downsample_ratio * vision.downsample_ratio);
    biased("aligner.w2", hidden, hidden);
    for (const char* name : {"image_start", "image_end", "image_newline"}) bf16(name, {hidden});
  }

  const ModelConfig& config_;
  const ModelPlan plan_;
  std::vector<TensorSpec> specs_;
};

}  // namespace

std::vector<TensorSpec> expected_tensors(const ModelConfig& config) {
  return Inventory(config).build();
}

}  // namespace deepinfer
