// What one request keeps between forwards: tokens, window rows, compressed rows, index keys, open
// groups.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "model/config.h"
#include "model/layer_plan.h"
#include "model/parallel_rank.h"

namespace deepinfer {

// State of one KV source: of the context-parallel rank's own entries, rows and index keys. Rows
// beyond TileShard::rows_before(entries) are not yet written.
struct CompressedCache {
  at::Tensor rows;        // [own capacity, head_dim] activation dtype
  at::Tensor index_keys;  // [own capacity, index_head_dim] activation dtype
  int64_t entries = 0;    // of all ranks
  // First token of a group that has not closed: fp32 [1, head_dim], or undefined (model.md 3.4).
  at::Tensor open_value;
  at::Tensor open_gate;
};

// Invariant: between forwards, every cache stands at position length(). A forward that fails leaves
// the caches between two positions; `consistent` is then false and the sequence is of no further
// use.
class Sequence {
 public:
  explicit Sequence(int64_t max_tokens) : max_tokens_(max_tokens) {}

  // Makes the empty caches, by a rank's first forward on the sequence. Ranks that keep the same
  // entries and share what they compute (ReplicaMode::kOnce) share the caches.
  void allocate(const ModelConfig& config, const ModelPlan& plan, const ParallelRank& rank,
                at::TensorOptions options);
  bool allocated() const { return !window.empty(); }

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t max_tokens() const { return max_tokens_; }

  std::vector<int64_t> tokens;  // raw ids
  // By layer: the rank's own of the last sliding_window - 1 rows, oldest first [rows, head_dim].
  std::vector<at::Tensor> window;
  std::map<int64_t, CompressedCache> caches;  // by KV source
  bool consistent = true;
  // Number that the ranks of a world know the request by; expires with the sequence.
  std::shared_ptr<const int64_t> request;

 private:
  int64_t max_tokens_;
};

}  // namespace deepinfer
