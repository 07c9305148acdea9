// The layer-by-layer comparison: what layers are fed, how rows are counted, which bounds fail.
#include "golden/layer_check.h"

#include <doctest/doctest.h>

#include "tests/golden/replay_model.h"

namespace deepinfer {
namespace {

const std::string kData = DEEPINFER_SIM_SOURCE_DIR "/golden/data/";

LayerBounds official_bounds() {
  LayerBounds bounds;
  bounds.median = 0;
  bounds.row_median = 0x1p-8;
  bounds.bit_equal_rows = 0.9;
  bounds.equal_selections = 0.9;
  return bounds;
}

const LayerComparison& layer_of(const LayerCheckResult& result, int64_t layer) {
  for (const LayerComparison& comparison : result.layers) {
    if (comparison.layer == layer) return comparison;
  }
  FAIL("no layer " << layer);
  return result.layers.front();
}

TEST_CASE("every layer but the first is fed the golden output of the one before") {
  const bool official = true;
  for (const bool bf16 : {official, !official}) {
    CAPTURE(bf16);
    ReplayModel model(kData + "steady", bf16 ? "golden-official.json" : "golden-quant.json",
                      bf16 ? Numerics::official() : Numerics::quant());
    const GoldenPrompt& prompt = model.prompt("s33");
    for (const int64_t chunk : {0, 10}) {
      const LayerCheckResult result = check_layers(model, prompt, official_bounds(), chunk);
      CHECK(result.first_failure() == nullptr);
      // The last forward is the decode step.
      REQUIRE(model.streams_seen.size() == 8);
      CHECK(model.forwards.back() == std::vector<int64_t>{prompt.generated[0]});
      CHECK(model.streams_seen[0].abs().max().item<float>() == 0);  // as the model left it
      for (int64_t layer = 1; layer < 8; ++layer) {
        const auto at_layer = static_cast<size_t>(layer);
        const at::Tensor& golden = prompt.decode0.find("post_moe", layer - 1)->values;
        CHECK((model.streams_seen[at_layer].scalar_type() == (bf16 ? at::kBFloat16 : at::kFloat)));
        CHECK(at::equal(model.streams_seen[at_layer].to(at::kFloat), golden));
        CHECK(
            at::equal(model.pre_seen[at_layer], prompt.decode0.find("ffn_pre", layer - 1)->values));
      }
      CHECK(layer_of(result, 0).rows == 34);
      CHECK(layer_of(result, 0).bit_equal_rows == 34);
      CHECK(layer_of(result, kFinalLayer).rows == 34);
      CHECK(result.layers.back().layer == kFinalLayer);
    }
  }
}

TEST_CASE("a chunked prompt is fed the rows of its chunk") {
  ReplayModel model(kData + "steady", "golden-quant.json", Numerics::quant());
  const GoldenPrompt& prompt = model.prompt("s33");
  TraceObserver observer(prompt.prefill, TraceObserver::Feed::kGoldenInputs);
  observer.begin_forward(20);
  at::Tensor streams = at::zeros({5, 4, 128});
  at::Tensor pre = at::zeros({5, 4});
  observer.layer_input(3, streams, pre);
  CHECK(at::equal(streams, prompt.prefill.find("post_moe", 2)->values.narrow(0, 20, 5)));
  CHECK(at::equal(pre, prompt.prefill.find("ffn_pre", 2)->values.narrow(0, 20, 5)));
}

TEST_CASE("bounds: rows, medians, selections, addresses, missing values") {
  ReplayModel model(kData + "steady", "golden-official.json", Numerics::official());
  const GoldenPrompt& prompt = model.prompt("s33");
  int64_t rows_to_change = 0;
  const auto check = [&](const LayerBounds& bounds) {
    return check_layers(model, prompt, bounds, 0);
  };

  SUBCASE("one value in up to 3 of 34 rows passes 90 %, in 4 fails, in its layer only") {
    model.change_value = [&](std::string_view name, int64_t layer, int64_t position,
                             at::Tensor& value) {
      if (name != "post_attn" || layer != 3 || position > 0) return;
      for (int64_t row = 0; row < rows_to_change; ++row) value[row][1][5] += 0.25f;
    };
    rows_to_change = 3;
    CHECK(check(official_bounds()).first_failure() == nullptr);
    rows_to_change = 4;
    const LayerCheckResult result = check(official_bounds());
    REQUIRE(result.first_failure() != nullptr);
    CHECK(result.first_failure()->layer == 3);
    CHECK(result.first_failure()->bit_equal_rows == 30);
    CHECK(result.first_failure()->failures.size() == 1);
    CHECK(layer_of(result, 4).failures.empty());
  }
  SUBCASE("two streams of one row are one row") {
    model.change_value = [](std::string_view name, int64_t layer, int64_t position,
                            at::Tensor& value) {
      if (layer == 3 && position == 0 && (name == "post_attn" || name == "post_moe")) {
        for (int64_t row = 0; row < 3; ++row) value[row][1][5] += 0.25f;
      }
    };
    CHECK(layer_of(check(official_bounds()), 3).bit_equal_rows == 31);
  }
  SUBCASE("a decode step that is wrong as a whole fails though it is one row of 34") {
    model.change_value = [](std::string_view name, int64_t layer, int64_t position,
                            at::Tensor& value) {
      if (name == "post_moe" && layer == 2 && position == 33) value += 0.01f;
    };
    const LayerCheckResult result = check(official_bounds());
    REQUIRE(result.first_failure() != nullptr);
    CHECK(result.first_failure()->layer == 2);
    CHECK(result.first_failure()->median == 0);
    CHECK(result.first_failure()->bit_equal_rows == 33);
    CHECK(result.first_failure()->row_median > 0x1p-8);
  }
  SUBCASE("a median of a stream that is not 0") {
    model.change_value = [](std::string_view name, int64_t layer, int64_t position,
                            at::Tensor& value) {
      if (name == "post_engram" && layer == 1 && position == 0) value += 1e-6f;
    };
    LayerBounds median_only;
    median_only.median = 0;
    const LayerCheckResult result = check(median_only);
    REQUIRE(result.first_failure() != nullptr);
    CHECK(result.first_failure()->layer == 1);
  }
  SUBCASE("rows within a difference") {
    LayerBounds bounds;
    bounds.row_difference = 2e-6;
    bounds.rows_within = 0.9;
    model.change_value = [&](std::string_view name, int64_t layer, int64_t position,
                             at::Tensor& value) {
      if (name != "post_moe" || layer != 0 || position > 0) return;
      for (int64_t row = 0; row < rows_to_change; ++row) value[row][0][0] += 1e-4f;
    };
    rows_to_change = 3;
    CHECK(check(bounds).first_failure() == nullptr);
    rows_to_change = 4;
    CHECK(check(bounds).first_failure()->layer == 0);
  }
  SUBCASE("values within one bf16 ulp") {
    LayerBounds bounds;
    bounds.values_within_bf16_ulp = 0.99;
    const int64_t values = 34 * 4 * 128 * 2;  // post_attn and post_moe of prompt and decode step
    model.change_value = [&](std::string_view name, int64_t layer, int64_t position,
                             at::Tensor& value) {
      if (name != "post_moe" || layer != 0 || position > 0) return;
      value.view({-1}).slice(0, 0, rows_to_change) += 1.0f;
    };
    rows_to_change = values / 100;
    CHECK(check(bounds).first_failure() == nullptr);
    CHECK(layer_of(check(bounds), 0).stream_values == values);
    CHECK(layer_of(check(bounds), 0).within_bf16_ulp == values - values / 100);
    rows_to_change = values / 100 + 1;
    REQUIRE(check(bounds).first_failure() != nullptr);
    CHECK(check(bounds).first_failure()->layer == 0);
  }
  SUBCASE("selections") {
    model.change_value = [&](std::string_view name, int64_t layer, int64_t position,
                             at::Tensor& value) {
      if (name != "experts" || layer != 7 || position > 0) return;
      for (int64_t row = 0; row < rows_to_change; ++row) value[row] = 15 - value[row].max();
    };
    rows_to_change = 6;  // of 34 rows of experts and 34 of top-k
    CHECK(check(official_bounds()).first_failure() == nullptr);
    CHECK(layer_of(check(official_bounds()), 7).different_selections == 6);
    rows_to_change = 7;
    CHECK(check(official_bounds()).first_failure()->layer == 7);
  }
  SUBCASE("one other Engram row fails under any bound") {
    model.change_value = [](std::string_view name, int64_t, int64_t position, at::Tensor& value) {
      if (name == "engram_rows" && position == 33) value[0][2] += 1;
    };
    const LayerCheckResult result = check({});
    REQUIRE(result.first_failure() != nullptr);
    CHECK(result.first_failure()->different_addresses == 1);
  }
  SUBCASE("a value that is not reported fails under any bound") {
    model.hide_value = [](std::string_view name, int64_t layer) {
      return name == "ffn_pre" && layer == 6;
    };
    const LayerCheckResult result = check({});
    REQUIRE(result.first_failure() != nullptr);
    CHECK(result.first_failure()->layer == 6);
    CHECK(result.first_failure()->missing_rows == 34);
  }
}

}  // namespace
}  // namespace deepinfer
