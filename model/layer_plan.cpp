#include "model/layer_plan.h"

#include <algorithm>
#include <string>

#include "platform/errors.h"

namespace deepinfer {
namespace {

// Checks the rules of model.md 1.6 while it fills the plan in.
class PlanBuilder {
 public:
  PlanBuilder(const ModelConfig& config, const std::string& where)
      : config_(config), where_(where) {}

  ModelPlan build() {
    check_lists();
    check_sources();
    ModelPlan plan;
    for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
      plan.layers.push_back(backbone_layer(layer));
    }
    check_candidates(plan);
    for (int64_t stage = 0; stage < config_.num_nextn_predict_layers; ++stage) {
      LayerPlan draft;  // window only, plain rotation, no Engram (model.md 2.5)
      draft.layer = stage;
      plan.drafts.push_back(draft);
    }
    return plan;
  }

 private:
  [[noreturn]] void breach(std::string key, std::string what, std::string expected,
                           std::string found, std::string remedy = "") const {
    throw CheckpointError({.what = std::move(what),
                           .where = where_ + ", text_config." + std::move(key),
                           .expected = std::move(expected),
                           .found = std::move(found),
                           .remedy = std::move(remedy)});
  }

  int64_t ratio(int64_t layer) const { return config_.compress_ratios[static_cast<size_t>(layer)]; }

  // The last entry of an ascending list that is at most `layer`; -1 if there is none.
  static int64_t last_at_or_before(const std::vector<int64_t>& list, int64_t layer) {
    const auto after = std::upper_bound(list.begin(), list.end(), layer);
    return after == list.begin() ? -1 : *std::prev(after);
  }
  static int64_t slot_of(const std::vector<int64_t>& list, int64_t layer) {
    const auto at = std::lower_bound(list.begin(), list.end(), layer);
    return at != list.end() && *at == layer ? at - list.begin() : -1;
  }

  void check_ids(const char* key, const std::vector<int64_t>& ids) const {
    const int64_t layers = config_.num_hidden_layers;
    for (size_t i = 0; i < ids.size(); ++i) {
      const std::string place = std::string(key) + "[" + std::to_string(i) + "]";
      if (ids[i] < 0 || ids[i] >= layers) {
        breach(place, std::string(key) + " names a layer that does not exist",
               "0 to " + std::to_string(layers - 1), std::to_string(ids[i]));
      }
      if (i > 0 && ids[i] == ids[i - 1]) {
        breach(place, std::string(key) + " names a layer twice", "every layer once",
               std::to_string(ids[i]));
      }
      if (i > 0 && ids[i] < ids[i - 1]) {
        breach(place, std::string(key) + " is not in ascending order",
               "above " + std::to_string(ids[i - 1]), std::to_string(ids[i]));
      }
    }
  }

  void check_lists() const {
    const auto length = static_cast<int64_t>(config_.compress_ratios.size());
    if (length != config_.num_hidden_layers) {
      breach("compress_ratios", "compress_ratios does not have one entry a layer",
             std::to_string(config_.num_hidden_layers), std::to_string(length));
    }
    for (int64_t layer = 0; layer < length; ++layer) {
      if (ratio(layer) >= 0 && ratio(layer) <= 2) continue;
      breach("compress_ratios[" + std::to_string(layer) + "]", "unsupported compress ratio",
             "0, 1 or 2", std::to_string(ratio(layer)),
             "4 and 128 are DeepSeek-V4's: take a V4.1 checkpoint");
    }
    check_ids("kv_source_layer_ids", config_.kv_source_layer_ids);
    check_ids("index_source_layer_ids", config_.index_source_layer_ids);
    check_ids("engram_layer_ids", config_.engram_layer_ids);
    check_ids("dspark_target_layer_ids", config_.dspark_target_layer_ids);
    if (config_.engram_layer_ids.size() != config_.engram_num_embeddings.size()) {
      breach("engram_num_embeddings", "engram_layer_ids and engram_num_embeddings differ in length",
             std::to_string(config_.engram_layer_ids.size()),
             std::to_string(config_.engram_num_embeddings.size()));
    }
  }

  void check_sources() const {
    for (const int64_t source : config_.kv_source_layer_ids) {
      if (ratio(source) > 0) continue;
      breach("kv_source_layer_ids", "a KV source has compress ratio 0",
             "a ratio above 0 for layer " + std::to_string(source), "0",
             "layers of ratio 0 have no compressor");
    }
    for (const int64_t source : config_.index_source_layer_ids) {
      if (ratio(source) == 0) {
        breach("index_source_layer_ids", "an index source has compress ratio 0",
               "a ratio above 0 for layer " + std::to_string(source), "0",
               "layers of ratio 0 attend to their window only");
      }
      if (last_at_or_before(config_.kv_source_layer_ids, source) < 0) {
        breach("index_source_layer_ids", "an index source has no owner of index keys",
               "a KV source at or before layer " + std::to_string(source), "none");
      }
    }
  }

  LayerPlan backbone_layer(int64_t layer) const {
    LayerPlan plan;
    plan.layer = layer;
    plan.ratio = ratio(layer);
    plan.engram_slot = slot_of(config_.engram_layer_ids, layer);
    plan.tap_slot = slot_of(config_.dspark_target_layer_ids, layer);
    if (!plan.compressed()) return plan;

    const std::string place = "compress_ratios[" + std::to_string(layer) + "]";
    const std::string name = "layer " + std::to_string(layer);
    plan.kv_source = last_at_or_before(config_.kv_source_layer_ids, layer);
    if (plan.kv_source < 0) {
      breach(place, "a compressed layer has no KV source",
             "a layer of kv_source_layer_ids at or before " + name, "none");
    }
    if (ratio(plan.kv_source) != plan.ratio) {
      breach(place, "a layer and its KV source have different compress ratios",
             std::to_string(ratio(plan.kv_source)) + ", the ratio of its KV source, layer " +
                 std::to_string(plan.kv_source),
             std::to_string(plan.ratio) + " for " + name,
             "add the first layer of every run of equal ratios to kv_source_layer_ids");
    }
    plan.index_source = last_at_or_before(config_.index_source_layer_ids, layer);
    if (plan.index_source < 0) {
      breach(place, "a compressed layer has no index source",
             "a layer of index_source_layer_ids at or before " + name, "none");
    }
    // The top-k of an earlier source are positions in another layer's compressed rows.
    if (plan.index_source < plan.kv_source) {
      breach(place, "a layer's top-k was chosen from another KV source's index keys",
             "an index source from layer " + std::to_string(plan.kv_source) + " to " + name,
             "layer " + std::to_string(plan.index_source),
             "every KV source must also be an index source");
    }
    plan.owns_kv = plan.kv_source == layer;
    plan.owns_index = plan.index_source == layer;
    plan.publishes_candidates = config_.candidate_source_layer_id == layer;
    plan.filters_by_candidates = plan.owns_index && config_.candidate_source_layer_id >= 0 &&
                                 layer > config_.candidate_source_layer_id;
    return plan;
  }

  void check_candidates(const ModelPlan& plan) const {
    const int64_t source = config_.candidate_source_layer_id;
    if (source < 0) return;
    const std::string key = "candidate_source_layer_id";
    if (source >= config_.num_hidden_layers) {
      breach(key, "the candidate source does not exist",
             "below " + std::to_string(config_.num_hidden_layers), std::to_string(source));
    }
    const LayerPlan& publisher = plan.layers[static_cast<size_t>(source)];
    if (!publisher.owns_index) {
      breach(key, "the candidate source is not an index source",
             "a layer of index_source_layer_ids", std::to_string(source));
    }
    for (const LayerPlan& layer : plan.layers) {
      if (!layer.filters_by_candidates || layer.kv_source == publisher.kv_source) continue;
      breach(key, "candidate blocks are applied to the index keys of another KV source",
             "KV source " + std::to_string(publisher.kv_source) +
                 " for every index source after the candidate source",
             "KV source " + std::to_string(layer.kv_source) + " for layer " +
                 std::to_string(layer.layer));
    }
  }

  const ModelConfig& config_;
  const std::string& where_;
};

}  // namespace

ModelPlan make_model_plan(const ModelConfig& config, const std::string& where) {
  return PlanBuilder(config, where).build();
}

}  // namespace deepinfer
