// The end-to-end comparison, on a model that replays the golden with chosen mistakes.
#include "golden/generation_check.h"

#include <cmath>

#include <doctest/doctest.h>

#include "tests/golden/replay_model.h"

namespace deepinfer {
namespace {

const std::string kData = DEEPINFER_SIM_SOURCE_DIR "/golden/data/";

Bounds plain_bounds() {
  Bounds bounds;
  bounds.logits = 1e-4;
  bounds.traces = 5e-5;
  return bounds;
}

// Makes `token` the largest logit by `gap`.
void prefer(at::Tensor& logits, int64_t token, double gap) {
  logits[0][token] = logits.max() + gap;
}

TEST_CASE("a perfect model is 9/9, differs by nothing, and is fed the golden tokens") {
  ReplayModel model(kData + "tiny", "golden-plain.json", Numerics::plain());
  const GoldenPrompt& prompt = model.prompt("p41");
  Coverage coverage;
  model.covers = {Path::kDecoded};
  const auto result = check_generation(model, prompt, plain_bounds(), {.coverage = &coverage});
  CHECK(result.steps.size() == 12);
  CHECK(result.matched() == 9);
  CHECK(result.faults() == 0);
  CHECK(result.bounded_steps() == 12);
  REQUIRE(result.largest_difference(true) != nullptr);
  CHECK(result.largest_difference(true)->difference == 0);
  CHECK(result.largest_difference(false) == nullptr);
  CHECK_FALSE(result.first_difference.has_value());
  CHECK(result.prefill.size() == prompt.prefill.tensors.size());
  CHECK(result.decode0.size() == prompt.decode0.tensors.size());
  CHECK(model.forwards.size() == 12);
  CHECK(model.forwards[0] == prompt.tokens);
  CHECK(model.forwards[1] == std::vector<int64_t>{prompt.generated[0]});
  CHECK(coverage.count(Path::kDecoded) == 12);
  CHECK(result.smallest_margin() == doctest::Approx(0.112071));
}

TEST_CASE("the prompt is cut into chunks, and the recorded rows still line up") {
  ReplayModel model(kData + "tiny", "golden-plain.json", Numerics::plain());
  const GoldenPrompt& prompt = model.prompt("p41");
  for (const int64_t chunk : {1, 7, 40, 41, 100}) {
    CAPTURE(chunk);
    const auto result = check_generation(model, prompt, plain_bounds(), {.chunk = chunk});
    CHECK(result.matched() == 9);
    CHECK_FALSE(result.first_difference.has_value());
    const auto chunks = static_cast<size_t>((41 + chunk - 1) / chunk);
    CHECK(model.forwards.size() == chunks + 11);
    CHECK(static_cast<int64_t>(model.forwards[0].size()) == std::min<int64_t>(chunk, 41));
  }
}

TEST_CASE(
    "a token that differs: fault far from a tie, explained near one, later steps teacher-forced") {
  ReplayModel model(kData + "tiny", "golden-plain.json", Numerics::plain());
  const GoldenPrompt& prompt = model.prompt("p24");
  model.change_logits = [](const std::string&, int64_t step, at::Tensor& logits) {
    if (step == 3) prefer(logits, 7, 0.25);
  };
  SUBCASE("fault") {
    const auto result = check_generation(model, prompt, plain_bounds(), {});
    CHECK(result.matched() == 8);
    CHECK(result.faults() == 1);
    CHECK(result.near_ties() == 0);
    CHECK(result.steps[3].found == 7);
    CHECK(result.steps[3].is_fault());
    CHECK(result.steps[3].exceeds_bound());
    CHECK(result.steps[3].difference_token == 7);
    CHECK(result.steps[4].matches());
    CHECK(model.forwards[4] == std::vector<int64_t>{prompt.generated[3]});
  }
  SUBCASE("near tie of a bounded step: margin at most twice the bound") {
    Bounds bounds = plain_bounds();
    bounds.logits = prompt.top2_margin[3] / 2;
    CHECK(check_generation(model, prompt, bounds, {}).steps[3].near_tie());
    bounds.logits = prompt.top2_margin[3] / 2.01;
    CHECK(check_generation(model, prompt, bounds, {}).steps[3].is_fault());
  }
  SUBCASE("near tie of an unbounded step: margin at most twice the noise floor") {
    GoldenPrompt noisy = prompt;
    noisy.noise_floor[3] = noisy.top2_margin[3] / 2;
    Bounds bounds = plain_bounds();
    bounds.where_noise_floor_below = 1e-5;
    const auto result = check_generation(model, noisy, bounds, {});
    CHECK(result.near_ties() == 1);
    CHECK(result.faults() == 0);
    CHECK(result.bounded_steps() == 11);
    CHECK_FALSE(result.steps[3].exceeds_bound());
    CHECK(result.largest_difference(false) == &result.steps[3]);
    CHECK(result.largest_difference(true)->difference == 0);
  }
}

TEST_CASE("tokens past the ninth do not count, their logits do") {
  ReplayModel model(kData + "tiny", "golden-plain.json", Numerics::plain());
  model.change_logits = [](const std::string&, int64_t step, at::Tensor& logits) {
    if (step == 9) prefer(logits, 7, 0.25);
  };
  const auto result = check_generation(model, model.prompt("p24"), plain_bounds(), {});
  CHECK(result.matched() == 9);
  CHECK(result.faults() == 0);
  CHECK(result.largest_difference(true)->exceeds_bound());
}

TEST_CASE("a logit that moves just past the bound is noticed, one just inside is not") {
  ReplayModel model(kData + "tiny", "golden-plain.json", Numerics::plain());
  const GoldenPrompt& prompt = model.prompt("p7");
  double shift = 0;
  model.change_logits = [&](const std::string&, int64_t step, at::Tensor& logits) {
    if (step == 5) logits[0][100] += shift;
  };
  // The shifted logit is rounded to fp32: an ulp is below 1e-6 for logits under 16.
  shift = 1.02e-4;
  CHECK(check_generation(model, prompt, plain_bounds(), {})
            .largest_difference(true)
            ->exceeds_bound());
  shift = 0.98e-4;
  CHECK_FALSE(check_generation(model, prompt, plain_bounds(), {})
                  .largest_difference(true)
                  ->exceeds_bound());
}

TEST_CASE("a NaN logit differs by infinity and exceeds the bound") {
  ReplayModel model(kData + "tiny", "golden-plain.json", Numerics::plain());
  model.change_logits = [](const std::string&, int64_t step, at::Tensor& logits) {
    if (step == 2) logits[0][9] = NAN;
  };
  const auto result = check_generation(model, model.prompt("p7"), plain_bounds(), {});
  CHECK(std::isinf(result.steps[2].difference));
  CHECK(result.steps[2].found == kNoToken);
  CHECK(result.steps[2].is_fault());
  CHECK(result.steps[2].exceeds_bound());
}

TEST_CASE("the first difference names forward, layer, value and row") {
  ReplayModel model(kData + "tiny", "golden-plain.json", Numerics::plain());
  const GoldenPrompt& prompt = model.prompt("p41");
  SUBCASE("a stream in the prompt") {
    model.change_value = [](std::string_view name, int64_t layer, int64_t, at::Tensor& value) {
      if (value.size(0) < 41) return;
      if (layer == 5 && name == "post_attn") value[0][0][0] += 1.0f;  // later: must not be named
      if (layer == 3 && name == "post_moe") value[17][2][9] += 1e-3f;
    };
    const auto result = check_generation(model, prompt, plain_bounds(), {});
    REQUIRE(result.first_difference.has_value());
    CHECK(result.first_difference->forward == "prefill");
    CHECK(result.first_difference->layer_text() == "layer 3");
    CHECK(result.first_difference->name == "post_moe");
    CHECK(result.first_difference->row == 17);
  }
  SUBCASE("an expert of the decode step") {
    model.change_value = [](std::string_view name, int64_t layer, int64_t position,
                            at::Tensor& value) {
      if (position == 41 && layer == 6 && name == "experts") value[0][1] = (value[0][1] + 1) % 16;
    };
    const auto result = check_generation(model, prompt, plain_bounds(), {});
    REQUIRE(result.first_difference.has_value());
    CHECK(result.first_difference->forward == "decode0");
    CHECK(result.first_difference->layer == 6);
    CHECK(result.first_difference->name == "experts");
  }
  SUBCASE("the order of experts is no difference, their weights follow them") {
    model.change_value = [](std::string_view name, int64_t, int64_t, at::Tensor& value) {
      if (name == "experts" || name == "expert_weights") value = value.flip(1);
    };
    CHECK_FALSE(check_generation(model, prompt, plain_bounds(), {}).first_difference.has_value());
  }
  SUBCASE("weights given to the wrong experts are one") {
    model.change_value = [](std::string_view name, int64_t, int64_t, at::Tensor& value) {
      if (name == "expert_weights") value = value.flip(1);
    };
    const auto result = check_generation(model, prompt, plain_bounds(), {});
    REQUIRE(result.first_difference.has_value());
    CHECK(result.first_difference->name == "expert_weights");
    CHECK(result.first_difference->layer == 0);
  }
  SUBCASE("Engram rows in another order are one") {
    model.change_value = [](std::string_view name, int64_t layer, int64_t, at::Tensor& value) {
      if (name == "engram_rows" && layer == 4) value = value.flip(1);
    };
    const auto result = check_generation(model, prompt, plain_bounds(), {});
    REQUIRE(result.first_difference.has_value());
    CHECK(result.first_difference->layer == 4);
  }
  SUBCASE("a value that the model never reports") {
    model.hide_value = [](std::string_view name, int64_t layer) {
      return layer == 2 && name == "topk";
    };
    const auto result = check_generation(model, prompt, plain_bounds(), {});
    REQUIRE(result.first_difference.has_value());
    CHECK(result.first_difference->layer == 2);
    CHECK(result.first_difference->found == "not reported by the model");
  }
  SUBCASE("the final hidden state comes last") {
    model.change_value = [](std::string_view, int64_t layer, int64_t, at::Tensor& value) {
      if (layer == kFinalLayer) value += 1.0f;
    };
    const auto result = check_generation(model, prompt, plain_bounds(), {});
    REQUIRE(result.first_difference.has_value());
    CHECK(result.first_difference->layer_text() == "final");
  }
}

TEST_CASE("long prompts: the last rows of streams are compared, all rows of selections") {
  ReplayModel model(kData + "tiny", "golden-long-plain.json", Numerics::plain());
  const GoldenPrompt& prompt = model.prompt("p320");
  for (const int64_t chunk : {0, 100}) {
    CAPTURE(chunk);
    model.change_value = nullptr;
    CHECK_FALSE(check_generation(model, prompt, plain_bounds(), {.chunk = chunk})
                    .first_difference.has_value());
    model.change_value = [](std::string_view name, int64_t layer, int64_t position,
                            at::Tensor& value) {
      const int64_t row = 317 - position;
      if (name == "post_attn" && layer == 1 && row >= 0 && row < value.size(0)) value[row] += 1.0f;
    };
    auto result = check_generation(model, prompt, plain_bounds(), {.chunk = chunk});
    REQUIRE(result.first_difference.has_value());
    CHECK(result.first_difference->row == 317);
    model.change_value = [](std::string_view name, int64_t layer, int64_t position,
                            at::Tensor& value) {
      if (name == "topk" && layer == 4 && position == 0) value[50][15] += 1000;
    };
    result = check_generation(model, prompt, plain_bounds(), {.chunk = chunk});
    REQUIRE(result.first_difference.has_value());
    CHECK(result.first_difference->row == 50);
    CHECK(result.first_difference->layer == 4);
  }
}

}  // namespace
}  // namespace deepinfer
