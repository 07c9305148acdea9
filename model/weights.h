// The text model's weights: tensors over the mapped checkpoint, in the form they have on disk.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "model/config.h"
#include "model/engram_meta.h"
#include "model/layer_plan.h"
#include "model/numerics.h"
#include "model/parallel_rank.h"
#include "model/safetensors.h"

namespace deepinfer {

// A projection [out, in]. scale undefined: weight is BF16. Else uint8 codes: fp8 [out, in] with
// 32x32 tiles, or fp4 [out, in/2] with scales by row and 32 inputs (platform/ops.h: fp8_linear,
// fp4_linear).
struct Projection {
  at::Tensor weight;
  at::Tensor scale;
  bool quantized() const { return scale.defined(); }
  // Outputs [begin, end) as views; of a quantised projection they are whole scale tiles (asserted).
  Projection rows(int64_t begin, int64_t end) const;
};

struct HyperConnectionWeights {
  at::Tensor fn;     // F32 [2S + S*S, S * hidden]
  at::Tensor base;   // F32 [2S + S*S]
  at::Tensor scale;  // F32 [3]
};

struct CompressorWeights {
  at::Tensor wkv;           // BF16 [head_dim, hidden]
  at::Tensor wgate;         // BF16 [head_dim, hidden]; undefined at ratio 1
  at::Tensor norm;          // BF16 [head_dim]
  at::Tensor index_wk;      // BF16 [index_head_dim, head_dim]
  at::Tensor index_k_norm;  // BF16 [index_head_dim]
};

struct IndexerWeights {
  Projection wq_b;          // [index_n_heads * index_head_dim, q_lora_rank]
  at::Tensor weights_proj;  // BF16 [index_n_heads, hidden]
};

struct AttentionWeights {
  Projection wq_a;     // [q_lora_rank, hidden]
  at::Tensor q_norm;   // BF16 [q_lora_rank]
  Projection wq_b;     // [heads * head_dim, q_lora_rank]
  Projection wkv;      // [head_dim, hidden]
  at::Tensor kv_norm;  // BF16 [head_dim]
  at::Tensor sink;     // F32 [heads]
  Projection wo_a;     // [o_groups * o_lora_rank, heads / o_groups * head_dim]
  Projection wo_b;     // [hidden, o_groups * o_lora_rank]
  std::optional<CompressorWeights> compressor;  // KV sources
  std::optional<IndexerWeights> indexer;        // index sources
};

// One projection of every routed expert; scales is empty for BF16 experts.
struct ExpertProjections {
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> scales;
};

struct MoeWeights {
  at::Tensor gate;     // BF16 [experts, hidden]
  at::Tensor bias;     // F32 [experts]
  at::Tensor bias_vl;  // F32 [experts], for image tokens
  ExpertProjections w1, w2, w3;
  Projection shared_w1, shared_w2, shared_w3;
};

struct EngramWeights {
  at::Tensor codes;                         // uint8 e4m3 [rows, engram_head_dim]
  at::Tensor scales;                        // uint8 e8m0 [rows, engram_head_dim / 32]
  Projection wkv;                           // [(S + 1) * hidden, columns * engram_head_dim]
  at::Tensor q_weight, k_weight;            // [S, hidden]
  at::Tensor multipliers, primes, offsets;  // int64
};

struct LayerWeights {
  at::Tensor attn_norm, ffn_norm;  // BF16 [hidden]
  HyperConnectionWeights hc_attn, hc_ffn;
  AttentionWeights attn;
  MoeWeights ffn;
  std::optional<EngramWeights> engram;
};

struct TextWeights {
  at::Tensor embed;  // BF16 [vocab, hidden]
  at::Tensor head;   // BF16 [vocab, hidden], or the rank's rows
  at::Tensor norm;   // BF16 [hidden]
  std::vector<LayerWeights> layers;
};

// Views of `store`'s tensors (which keep it alive), moved to `device` if that is not the host. The
// store must have passed validate_checkpoint.
TextWeights load_text_weights(std::shared_ptr<const TensorStore> store, const ModelConfig& config,
                              const ModelPlan& plan, const EngramMeta& engram, at::Device device);

// What a rank holds of `all`, as views: outputs of wq_b, the shared expert's w1 and w3 and the
// head, sinks, and routed experts. Of row-parallel projections (wo_a, wo_b, shared w2) it uses
// columns.
TextWeights shard_text_weights(const TextWeights& all, const ModelConfig& config,
                               const ParallelRank& rank);

// x [T, in] times the projection, in x's dtype. The input of a quantised projection passes through
// QA where the numerics ask for it (model-verified.md 3, rule 1).
at::Tensor project(const at::Tensor& x, const Projection& projection, const Numerics& numerics);
// x after QA, if that applies to the projection's input.
at::Tensor quantized_input(const at::Tensor& x, const Projection& projection,
                           const Numerics& numerics);
// The same in two steps, for an input that several projections or ranks have in common.
at::Tensor project_quantized(const at::Tensor& quantized_input, const Projection& projection);
// Row-parallel product of some input columns (platform/ops.h: linear_partials).
at::Tensor project_partials(const at::Tensor& x, const Projection& projection, int64_t first_column,
                            int64_t first_position, const std::vector<int64_t>& bounds);

}  // namespace deepinfer
