// What one request keeps between forwards: tokens, window rows, compressed rows, index keys, open
// groups.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <ATen/ATen.h>

#include "model/config.h"
#include "model/layer_plan.h"

namespace deepinfer {

// State of one KV source. Rows beyond `entries` are not yet written.
struct CompressedCache {
  at::Tensor rows;        // [capacity, head_dim] activation dtype
  at::Tensor index_keys;  // [capacity, index_head_dim] activation dtype
  int64_t entries = 0;
  // First token of a group that has not closed: fp32 [1, head_dim], or undefined (model.md 3.4).
  at::Tensor open_value;
  at::Tensor open_gate;
};

// Invariant: between forwards, every cache stands at position length(). A forward that fails leaves
// the caches between two positions; `consistent` is then false and the sequence is of no further
// use.
class Sequence {
 public:
  Sequence(const ModelConfig& config, const ModelPlan& plan, int64_t max_tokens,
           at::ScalarType activation, at::Device device);

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t max_tokens() const { return max_tokens_; }

  std::vector<int64_t> tokens;  // raw ids
  std::vector<at::Tensor>
      window;  // by layer: the last rows, oldest first [< sliding_window, head_dim]
  std::map<int64_t, CompressedCache> caches;  // by KV source
  bool consistent = true;

 private:
  int64_t max_tokens_;
};

}  // namespace deepinfer
