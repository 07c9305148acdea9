// What each layer does, derived once from the config: no layer number appears anywhere else.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace deepinfer {

// One backbone layer or draft stage (model.md 1.6). "Slot" fields are -1 where they do not apply.
struct LayerPlan {
  int64_t layer = 0;
  int64_t ratio = 0;          // compress ratio: 0 window only, 1 one entry a token, 2 one a pair
  int64_t kv_source = -1;     // layer whose compressed KV (and index keys) this layer reads
  int64_t index_source = -1;  // layer whose top-k this layer uses
  bool owns_kv = false;       // runs the compressor and owns the index keys
  bool owns_index = false;    // runs the indexer
  bool publishes_candidates = false;   // the candidate source
  bool filters_by_candidates = false;  // an index source after the candidate source
  int64_t engram_slot = -1;            // position in engram_layer_ids; runs before the layer
  int64_t tap_slot = -1;               // position in dspark_target_layer_ids
  bool compressed() const { return ratio > 0; }  // also: rotates with the YaRN table
};

struct ModelPlan {
  std::vector<LayerPlan> layers;  // [num_hidden_layers]
  std::vector<LayerPlan> drafts;  // [num_nextn_predict_layers]
};

// Builds the plan. Throws CheckpointError where the config breaks a rule of model.md 1.6; `where`
// names the config in messages.
ModelPlan make_model_plan(const ModelConfig& config, const std::string& where = "config.json");

}  // namespace deepinfer
