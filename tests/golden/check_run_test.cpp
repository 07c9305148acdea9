// The runner: gates, near ties, vacuity, selection of suites and prompts, the golden's fp8 range.
#include "golden/check_run.h"

#include <doctest/doctest.h>

#include "tests/golden/replay_model.h"

namespace deepinfer {
namespace {

const std::string kData = DEEPINFER_SIM_SOURCE_DIR "/golden/data/";

// Suites on replayed goldens.
struct Bench {
  std::shared_ptr<ReplayModel> tiny =
      std::make_shared<ReplayModel>(kData + "tiny", "golden-plain.json", Numerics::plain());
  std::shared_ptr<ReplayModel> steady =
      std::make_shared<ReplayModel>(kData + "steady", "golden-quant.json", Numerics::quant());
  std::vector<Suite> suites;
  RunOptions options;
  int64_t loads = 0;

  Bench() {
    Suite suite;
    suite.name = "tiny/plain";
    suite.model = kData + "tiny";
    suite.golden = kData + "tiny/golden-plain.json";
    suite.numerics_name = "plain";
    suite.numerics = Numerics::plain();
    suite.bounds.logits = 1e-4;
    suite.bounds.traces = 5e-5;
    suite.bounds.layers.median = 0;
    suite.gates = {true, true, true, true};
    suite.claims = {Path::kDecoded};
    suites.push_back(suite);
    suite.name = "steady/quant";
    suite.model = kData + "steady";
    suite.golden = kData + "steady/golden-quant.json";
    suite.numerics_name = "quant";
    suite.numerics = Numerics::quant();
    suite.bounds.where_noise_floor_below = 1e-5;
    suite.gates = {true, true, false, true};
    suites.push_back(suite);
    tiny->covers = steady->covers = {Path::kDecoded};
    options.load = [this](const std::filesystem::path& directory, const Numerics& numerics) {
      ++loads;
      CHECK(numerics.fp8_max == options.selection.fp8_max.value_or(448));
      return directory.filename() == "tiny" ? tiny : steady;
    };
  }
  CheckReport run() { return run_check(suites, options); }
};

void prefer_7(const std::string&, int64_t step, at::Tensor& logits) {
  if (step == 3) logits[0][7] = logits.max() + 0.25;
}

TEST_CASE("all well") {
  Bench bench;
  const CheckReport report = bench.run();
  const CheckCounts counts = report.counts();
  CHECK(counts.suites == 2);
  CHECK(counts.prompts == 9);
  CHECK(counts.at_nine == 9);
  CHECK(counts.failed == 0);
  CHECK(counts.vacuous == 0);
  CHECK(counts.information_only == 0);
  CHECK(report.exit_code() == ExitCode::kMatch);
  CHECK(bench.loads == 2);
  CHECK(report.suites[0].prompts[3].layers.has_value());
  CHECK_FALSE(report.suites[0].prompts[0].layers.has_value());
}

TEST_CASE("a wrong token fails its prompt, exit code 1") {
  Bench bench;
  bench.tiny->change_logits = prefer_7;
  const CheckReport report = bench.run();
  CHECK(report.counts().failed == 4);
  CHECK(report.counts().at_nine == 5);
  CHECK(report.exit_code() == ExitCode::kMismatch);
  const auto& failures = report.suites[0].prompts[0].failures;
  REQUIRE(failures.size() == 2);  // the token, and the logit
  CHECK(failures[0].find("token 4: expected ") == 0);
  CHECK(failures[0].find("found 7") != std::string::npos);
  CHECK(failures[1].find("logit 7 differs by ") != std::string::npos);
}

TEST_CASE("only what gates fails") {
  Bench bench;
  bench.suites.resize(1);
  bench.tiny->change_logits = prefer_7;
  bench.tiny->change_value = [](std::string_view name, int64_t layer, int64_t, at::Tensor& value) {
    if (name == "post_moe" && layer == 2) value += 0.5f;
  };
  const auto failures = [&](Gates gates) {
    bench.suites[0].gates = gates;
    return bench.run().suites[0].prompts[3].failures;
  };
  CHECK(failures({true, false, false, false}).size() == 1);
  CHECK(failures({false, true, false, false}).size() == 1);
  REQUIRE(failures({false, false, true, false}).size() == 1);
  CHECK(failures({false, false, true, false})[0].find(
            "first difference: prefill layer 2 post_moe row ") == 0);
  REQUIRE(failures({false, false, false, true}).size() == 1);
  CHECK(failures({false, false, false, true})[0].find("on golden inputs, layer 2: median") == 0);
  CHECK(failures({}).empty());
  const CheckReport report = bench.run();
  REQUIRE(report.suites[0].prompts[3].explained.size() == 1);
  CHECK(report.suites[0].prompts[3].explained[0].find("more than a near tie") == 0);
  CHECK(report.counts().information_only == 4);
  CHECK(report.exit_code() == ExitCode::kMatch);
}

TEST_CASE("a near tie is explained and does not fail") {
  Bench bench;
  bench.suites.resize(1);
  bench.tiny->change_logits = prefer_7;
  bench.suites[0].bounds.logits = 50;
  const CheckReport report = bench.run();
  CHECK(report.counts().failed == 0);
  CHECK(report.counts().at_nine == 0);
  CHECK(report.counts().near_ties == 4);
  CHECK(report.exit_code() == ExitCode::kMatch);
  REQUIRE(report.suites[0].prompts[0].explained.size() == 1);
  CHECK(report.suites[0].prompts[0].explained[0].find("near tie: token 4: expected ") == 0);
}

TEST_CASE("a claimed path that never ran is vacuous, exit code 6; a mismatch goes first") {
  Bench bench;
  bench.suites[1].claims = {Path::kDecoded, Path::kCandidatesCut};
  CheckReport report = bench.run();
  CHECK(report.counts().vacuous == 1);
  CHECK(report.exit_code() == ExitCode::kVacuous);
  REQUIRE(report.suites[1].vacuous.size() == 1);
  CHECK(report.suites[1].vacuous[0].find("claims candidates_cut") == 0);
  bench.tiny->change_logits = prefer_7;
  CHECK(bench.run().exit_code() == ExitCode::kMismatch);
}

TEST_CASE("a gate that compared nothing is vacuous") {
  Bench bench;
  SUBCASE("logits, where no step is quiet enough") {
    bench.suites[1].bounds.where_noise_floor_below = 0;
    const CheckReport report = bench.run();
    REQUIRE(report.suites[1].vacuous.size() == 1);
    CHECK(report.suites[1].vacuous[0].find("gates logits") == 0);
  }
  SUBCASE("layers and traces, where nothing was recorded") {
    const auto untraced =
        std::make_shared<ReplayModel>(kData + "steady", "golden-plain.json", Numerics::plain());
    untraced->covers = {Path::kDecoded};
    bench.suites[1].golden = kData + "steady/golden-plain.json";
    bench.suites[1].numerics = Numerics::plain();
    bench.suites[1].gates.traces = true;
    bench.options.load = [&](const std::filesystem::path& directory,
                             const Numerics&) -> std::shared_ptr<const TextModel> {
      if (directory.filename() == "tiny") return bench.tiny;
      return untraced;
    };
    const CheckReport report = bench.run();
    REQUIRE(report.suites[1].vacuous.size() == 2);
    CHECK(report.suites[1].vacuous[0].find("gates traces") == 0);
    CHECK(report.suites[1].vacuous[1].find("gates layers") == 0);
  }
}

TEST_CASE("a chunk longer than every prompt is vacuous") {
  Bench bench;
  bench.options.chunk = 200;
  CHECK(bench.run().exit_code() == ExitCode::kVacuous);
  bench.options.chunk = 199;  // steady's l200 is longer
  CHECK(bench.run().exit_code() == ExitCode::kMatch);
}

TEST_CASE("selection of suites and prompts") {
  Bench bench;
  SUBCASE("suites by name and pattern, in configured order") {
    bench.options.selection.suite_patterns = {"steady/*", "tiny/plai?"};
    const CheckReport report = bench.run();
    REQUIRE(report.suites.size() == 2);
    CHECK(report.suites[0].suite.name == "tiny/plain");
    bench.options.selection.suite_patterns = {"*quant"};
    CHECK(bench.run().suites.size() == 1);
  }
  SUBCASE("an unknown suite names the nearest") {
    bench.options.selection.suite_patterns = {"tiny/plan"};
    CHECK_THROWS_WITH_AS(bench.run(), doctest::Contains("did you mean tiny/plain?"), ConfigError);
  }
  SUBCASE("one pattern that matches is not enough for another that does not") {
    bench.options.selection.suite_patterns = {"tiny/*", "stead/*"};
    CHECK_THROWS_AS(bench.run(), ConfigError);
  }
  SUBCASE("prompts; suites without one drop out, claims are not checked") {
    bench.options.selection.prompt_pattern = "p7";
    bench.suites[0].claims = {Path::kCandidatesCut};
    const CheckReport report = bench.run();
    REQUIRE(report.suites.size() == 1);
    CHECK(report.suites[0].prompts.size() == 1);
    CHECK_FALSE(report.suites[0].claims_checked);
    CHECK(report.exit_code() == ExitCode::kMatch);
  }
  SUBCASE("an unknown prompt names the nearest") {
    bench.options.selection.prompt_pattern = "p411";
    CHECK_THROWS_WITH_AS(bench.run(), doctest::Contains("did you mean p41?"), ConfigError);
  }
}

TEST_CASE("another fp8_max: tokens gate, numbers are shown, plain suites are not touched") {
  Bench bench;
  bench.options.selection.fp8_max = 240;
  bench.steady->change_value = [](std::string_view name, int64_t, int64_t, at::Tensor& value) {
    if (name == "post_moe") value += 0.5f;
  };
  CheckReport report = bench.run();
  CHECK(report.exit_code() == ExitCode::kMatch);
  REQUIRE(report.notes.size() == 1);
  CHECK(report.notes[0].find("fp8_max is 240, the goldens were made at 448") == 0);
  CHECK(report.suites[0].suite.gates.logits);
  CHECK(report.suites[1].suite.gates.tokens);
  CHECK_FALSE(report.suites[1].suite.gates.logits);
  bench.steady->change_logits = prefer_7;
  CHECK(bench.run().exit_code() == ExitCode::kMismatch);
  bench.options.selection.fp8_max = 448;
  bench.steady->change_logits = nullptr;
  CHECK(bench.run().exit_code() == ExitCode::kMismatch);  // the layers gate again
  CHECK(bench.run().notes.empty());
}

TEST_CASE("other numerics than the golden's are refused") {
  Bench bench;
  bench.suites[0].numerics = Numerics::quant();
  CHECK_THROWS_AS(bench.run(), ConfigError);
  CHECK(bench.loads == 0);
}

}  // namespace
}  // namespace deepinfer
