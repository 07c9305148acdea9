// The DeepSeek-V4.1 text model: prefill, chunked prefill and decode over any batch of sequences.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>

#include "model/config.h"
#include "model/layer_plan.h"
#include "model/mesh.h"
#include "model/numerics.h"
#include "platform/communicator.h"
#include "platform/coverage.h"
#include "platform/replicas.h"

namespace deepinfer {

// Caches and token history of one request: window rows of every layer, compressed rows, index keys
// and the open ratio-2 group of every KV source. Made by TextModel::new_sequence, changed by
// forward.
class Sequence;
struct SequenceDeleter {
  void operator()(Sequence* sequence) const;
};
using SequencePtr = std::unique_ptr<Sequence, SequenceDeleter>;

// Consecutive tokens that a forward appends to a sequence.
struct Chunk {
  Sequence* sequence = nullptr;
  std::vector<int64_t> tokens;  // raw ids, at least one
};

// Sees (and may replace) what flows through a forward. Rows are the chunks' tokens, one chunk after
// another.
class Observer {
 public:
  virtual ~Observer() = default;
  // Before layer `layer` (and its Engram): streams [rows, hc_mult, hidden] in the activation dtype,
  // pre [rows, hc_mult] fp32. Assign to feed the layer something else.
  virtual void layer_input(int64_t layer, at::Tensor& streams, at::Tensor& pre) {
    (void)layer, (void)streams, (void)pre;
  }
  // A value under the name that golden files use: post_engram, post_attn, post_moe (streams),
  // attn_pre, ffn_pre (fp32 [rows, hc_mult]), topk (int32 [rows, index_topk], ascending, -1 padded;
  // index sources only), experts (int32 [rows, k], by descending score), expert_weights (fp32),
  // engram_rows (int64 [rows, columns]), engram_gate (fp32 [rows, hc_mult]); layer -1: hidden (the
  // head's input).
  virtual void value(std::string_view name, int64_t layer, const at::Tensor& tensor) {
    (void)name, (void)layer, (void)tensor;
  }
};

struct ForwardOptions {
  bool all_rows = false;         // logits of every row, not only of each chunk's last
  Observer* observer = nullptr;  // not owned; on rank 0 of a mesh
  // Rank 0 has an observer: every rank is fed what it leaves, and computes all that it may look at.
  bool observed = false;
  Coverage* coverage = nullptr;  // not owned; costs a few reductions a layer
};

// Weights (views of the mapped checkpoint where the form allows) and the forward pass.
// Thread rule: forward is const; one sequence must not be in two forwards at once.
class TextModel {
 public:
  // Loads and validates a checkpoint folder (config.json, safetensors, engram_meta.json).
  // Throws CheckpointError.
  static std::shared_ptr<const TextModel> load(const std::filesystem::path& directory,
                                               const Numerics& numerics,
                                               at::Device device = at::kCPU);
  virtual ~TextModel() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const ModelPlan& plan() const = 0;
  virtual const Numerics& numerics() const = 0;

  // The same model as one rank of a mesh sees it: weights are views of these. Its sequences keep
  // the rank's own entries; its forward is called by all ranks with the same batch, and returns the
  // logits on each. `communicator` and `replicas` must outlive it. Called on a model of one rank.
  virtual std::shared_ptr<const TextModel> on_rank(std::shared_ptr<const Mesh> mesh,
                                                   Communicator& communicator,
                                                   Replicas& replicas) const = 0;

  // An empty sequence that can hold `max_tokens` tokens.
  virtual SequencePtr new_sequence(int64_t max_tokens) const = 0;

  // Throws ConfigError for an empty chunk, a token outside the vocabulary, a sequence named twice,
  // or more tokens than the sequence can hold.
  virtual void check(const std::vector<Chunk>& batch) const = 0;

  // Appends each chunk to its sequence. Returns fp32 logits [chunks or rows, vocab_size].
  // Throws what `check` throws, before any sequence is touched.
  virtual at::Tensor forward(const std::vector<Chunk>& batch,
                             const ForwardOptions& options = {}) const = 0;
};

// Greedy choice: largest logit, ties to the smallest id. logits [rows, vocab] -> int64 [rows].
at::Tensor greedy_tokens(const at::Tensor& logits);

}  // namespace deepinfer
