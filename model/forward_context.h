// What the parts of one forward share: the batch, its rotary tables, and what source layers
// publish.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <ATen/ATen.h>

#include "model/config.h"
#include "model/numerics.h"
#include "model/parallel_rank.h"
#include "model/rope.h"
#include "model/sequence.h"
#include "model/transformer.h"
#include "platform/coverage.h"

namespace deepinfer {

// cos and sin, fp32 [rows, rope dimension / 2].
struct RopeTable {
  at::Tensor cos;
  at::Tensor sin;
};

// The rows of one chunk in the batch.
struct BatchSpan {
  Sequence* sequence = nullptr;
  int64_t begin = 0;     // first row
  int64_t count = 0;     // rows
  int64_t position = 0;  // absolute position of the first row
  int64_t end_position() const { return position + count; }
  at::Tensor rows_of(const at::Tensor& batch) const { return batch.slice(0, begin, begin + count); }
};

// Where the queries of a span find their window: keys are the rank's own rows of positions
// first_key .. end of the span - 1.
struct WindowPlaces {
  int64_t first_key = 0;
  at::Tensor positions;  // int64 [keys], ascending
  at::Tensor index;      // int32 [count, window]: rows of keys, oldest first, -1 padded
};

// Thread rule: one forward, one thread.
struct ForwardContext {
  const ModelConfig& config;
  const Numerics& numerics;
  const ParallelRank& rank;
  const RopeFrequencies& window_frequencies;      // ratio-0 layers
  const RopeFrequencies& compressed_frequencies;  // ratio > 0, YaRN
  std::vector<BatchSpan> spans;
  at::Tensor positions;       // int64 [rows]
  at::Tensor text;            // bool [rows], false for image tokens
  bool has_images = false;    // any of text is false
  RopeTable window_rope;      // at positions, for ratio-0 layers
  RopeTable compressed_rope;  // at positions, for ratio > 0
  Observer* observer = nullptr;
  Coverage* coverage = nullptr;

  // Published by source layers, read by later layers of the same forward; in vectors of tensors,
  // one a span.
  std::vector<WindowPlaces> window;
  // By KV source: the rank's own entries of the cache, ascending, int64 [rows].
  std::map<int64_t, std::vector<at::Tensor>> own_entries;
  // By index source: rows of the rank's own entries that each query attends, -1 padded and for
  // another rank's, int32 [count, index_topk].
  std::map<int64_t, std::vector<at::Tensor>> selected;
  // With several cp places, by row of the batch: those that hold keys of its window, and by index
  // source of its selected entries.
  std::vector<PlaceSet> window_holders;
  std::map<int64_t, std::vector<PlaceSet>> selected_holders;
  at::Tensor candidates;  // blocks of all ranks, int32 [rows, candidate_topk_blocks]

  at::Device device() const { return positions.device(); }
  const RopeTable& rope_of(const LayerPlan& plan) const;
  void observe(std::string_view name, int64_t layer, const at::Tensor& tensor) const {
    if (observer != nullptr) observer->value(name, layer, tensor);
  }
  void cover(Path path, int64_t count) const {
    if (coverage != nullptr && count > 0 && rank.counts()) coverage->add(path, count);
  }
};

}  // namespace deepinfer
