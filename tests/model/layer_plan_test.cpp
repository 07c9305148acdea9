// The per-layer plan: the released table of model.md 1.6, the tiny models, and every schedule rule.
#include "model/layer_plan.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/support/messages.h"

namespace deepinfer::test {
namespace {

namespace fs = std::filesystem;
const fs::path kRoot = DEEPINFER_SIM_SOURCE_DIR;

// What a row of the table says of one layer.
struct Row {
  int64_t ratio, kv_source, index_source;
  bool owns_kv, owns_index, publishes, filters;
  int64_t engram_slot, tap_slot;
};

void check_plan(const ModelPlan& plan, const std::vector<Row>& rows) {
  REQUIRE(plan.layers.size() == rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    CAPTURE(i);
    const LayerPlan& layer = plan.layers[i];
    const Row& row = rows[i];
    CHECK(layer.layer == static_cast<int64_t>(i));
    CHECK(layer.ratio == row.ratio);
    CHECK(layer.compressed() == (row.ratio > 0));
    CHECK(layer.kv_source == row.kv_source);
    CHECK(layer.index_source == row.index_source);
    CHECK(layer.owns_kv == row.owns_kv);
    CHECK(layer.owns_index == row.owns_index);
    CHECK(layer.publishes_candidates == row.publishes);
    CHECK(layer.filters_by_candidates == row.filters);
    CHECK(layer.engram_slot == row.engram_slot);
    CHECK(layer.tap_slot == row.tap_slot);
  }
  for (size_t i = 0; i < plan.drafts.size(); ++i) {
    const LayerPlan& draft = plan.drafts[i];
    CHECK(draft.layer == static_cast<int64_t>(i));
    CHECK(draft.ratio == 0);
    CHECK(draft.kv_source == -1);
    CHECK(draft.index_source == -1);
    CHECK(draft.engram_slot == -1);
    CHECK(draft.tap_slot == -1);
    CHECK_FALSE(draft.owns_kv);
    CHECK_FALSE(draft.owns_index);
  }
}

ModelConfig tiny() { return load_model_config(kRoot / "golden/data/tiny"); }

}  // namespace

TEST_CASE("the released plan is the table of model.md 1.6") {
  std::vector<Row> rows = {{0, -1, -1, false, false, false, false, -1, -1},
                           {0, -1, -1, false, false, false, false, 0, -1}};
  const auto run = [&rows](int64_t first, int64_t last, int64_t ratio, int64_t kv, int64_t index) {
    for (int64_t layer = first; layer <= last; ++layer) {
      rows.push_back({ratio, kv, index, layer == kv, layer == index, layer == 20,
                      layer == index && layer > 20, layer == 14 ? 1 : -1,
                      layer >= 37 ? layer - 37 : -1});
    }
  };
  run(2, 7, 2, 2, 2);
  run(8, 13, 2, 8, 8);
  run(14, 19, 2, 14, 14);
  run(20, 23, 1, 20, 20);
  run(24, 27, 1, 20, 24);
  run(28, 31, 1, 20, 28);
  run(32, 35, 1, 20, 32);
  run(36, 39, 1, 20, 36);
  const ModelPlan plan =
      make_model_plan(load_model_config(kRoot / "configs/models/deepseek-v4.1-flash"));
  check_plan(plan, rows);
  CHECK(plan.drafts.size() == 3);
}

TEST_CASE("the plans of the tiny models") {
  const ModelPlan plan = make_model_plan(tiny());
  check_plan(plan, {{0, -1, -1, false, false, false, false, -1, -1},
                    {0, -1, -1, false, false, false, false, 0, -1},
                    {2, 2, 2, true, true, false, false, -1, -1},
                    {2, 2, 2, false, false, false, false, -1, -1},
                    {2, 4, 4, true, true, false, false, 1, -1},
                    {1, 5, 5, true, true, true, false, -1, 0},
                    {1, 5, 5, false, false, false, false, -1, 1},
                    {1, 5, 7, false, true, false, true, -1, 2}});
  CHECK(plan.drafts.size() == 2);
  check_plan(make_model_plan(load_model_config(kRoot / "golden/data/wide")),
             {{0, -1, -1, false, false, false, false, -1, -1},
              {2, 1, 1, true, true, false, false, 0, -1},
              {2, 1, 1, false, false, false, false, -1, -1},
              {1, 3, 3, true, true, true, false, 1, 0},
              {1, 3, 3, false, false, false, false, -1, 1},
              {1, 3, 5, false, true, false, true, -1, 2}});
}

TEST_CASE("every schedule rule has its own message") {
  struct Breach {
    std::string what;
    void (*change)(ModelConfig&);
  };
  const std::vector<Breach> breaches = {
      {"compress_ratios does not have one entry a layer",
       [](ModelConfig& c) { c.compress_ratios.pop_back(); }},
      {"unsupported compress ratio", [](ModelConfig& c) { c.compress_ratios[3] = 4; }},
      {"kv_source_layer_ids names a layer that does not exist",
       [](ModelConfig& c) { c.kv_source_layer_ids.push_back(8); }},
      {"kv_source_layer_ids names a layer twice",
       [](ModelConfig& c) {
         c.kv_source_layer_ids = {2, 4, 4, 5};
       }},
      {"kv_source_layer_ids is not in ascending order",
       [](ModelConfig& c) {
         c.kv_source_layer_ids = {2, 5, 4};
       }},
      {"index_source_layer_ids names a layer that does not exist",
       [](ModelConfig& c) { c.index_source_layer_ids[0] = -1; }},
      {"index_source_layer_ids names a layer twice",
       [](ModelConfig& c) {
         c.index_source_layer_ids = {2, 4, 5, 5};
       }},
      {"index_source_layer_ids is not in ascending order",
       [](ModelConfig& c) {
         c.index_source_layer_ids = {4, 2, 5, 7};
       }},
      {"engram_layer_ids names a layer that does not exist",
       [](ModelConfig& c) {
         c.engram_layer_ids = {1, 9};
       }},
      {"engram_layer_ids is not in ascending order",
       [](ModelConfig& c) {
         c.engram_layer_ids = {4, 1};
       }},
      {"engram_layer_ids and engram_num_embeddings differ in length",
       [](ModelConfig& c) { c.engram_layer_ids = {1}; }},
      {"dspark_target_layer_ids names a layer that does not exist",
       [](ModelConfig& c) {
         c.dspark_target_layer_ids = {5, 6, 8};
       }},
      {"a KV source has compress ratio 0",
       [](ModelConfig& c) {
         c.kv_source_layer_ids = {1, 2, 4, 5};
       }},
      {"an index source has compress ratio 0",
       [](ModelConfig& c) {
         c.index_source_layer_ids = {0, 2, 4, 5};
       }},
      {"an index source has no owner of index keys",
       [](ModelConfig& c) {
         c.kv_source_layer_ids = {4, 5};
       }},
      {"a compressed layer has no KV source",
       [](ModelConfig& c) {
         c.kv_source_layer_ids = {4, 5};
         c.index_source_layer_ids = {4, 5, 7};
       }},
      {"a layer and its KV source have different compress ratios",
       [](ModelConfig& c) { c.compress_ratios[3] = 1; }},
      {"a compressed layer has no index source",
       [](ModelConfig& c) {
         c.index_source_layer_ids = {4, 5, 7};
       }},
      {"a layer's top-k was chosen from another KV source's index keys",
       [](ModelConfig& c) {
         c.index_source_layer_ids = {2, 5, 7};
       }},
      {"the candidate source does not exist",
       [](ModelConfig& c) { c.candidate_source_layer_id = 8; }},
      {"the candidate source is not an index source",
       [](ModelConfig& c) { c.candidate_source_layer_id = 6; }},
      {"candidate blocks are applied to the index keys of another KV source",
       [](ModelConfig& c) { c.candidate_source_layer_id = 4; }},
  };
  for (size_t i = 0; i < breaches.size(); ++i) {
    const Breach& breach = breaches[i];
    CAPTURE(breach.what);
    ModelConfig config = tiny();
    breach.change(config);
    const ErrorParts parts = checkpoint_error([&] { make_model_plan(config, "FILE"); });
    CHECK(parts.what == breach.what);
    CHECK(begins_with(parts.where, "FILE, text_config."));
    for (size_t j = 0; j < i; ++j) CHECK(breaches[j].what != breach.what);
  }
}

TEST_CASE("a model without compression has no sources") {
  ModelConfig config = tiny();
  config.compress_ratios.assign(8, 0);
  config.kv_source_layer_ids.clear();
  config.index_source_layer_ids.clear();
  config.candidate_source_layer_id = -1;
  const ModelPlan plan = make_model_plan(config);
  for (const LayerPlan& layer : plan.layers) CHECK(layer.kv_source == -1);
}

}  // namespace deepinfer::test
