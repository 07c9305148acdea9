// The main job through the program: `deepinfer-sim check` on every suite, and its options and
// errors.
#include <algorithm>
#include <sstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/support/checkpoint_files.h"
#include "tests/tools/run_program.h"

namespace deepinfer {
namespace {

const std::string kSource = DEEPINFER_SIM_SOURCE_DIR;

ProgramResult check(std::vector<std::string> arguments, const ProgramOptions& options = {}) {
  arguments.insert(arguments.begin(), "check");
  return run_program(arguments, options);
}

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of('\n');
  const size_t begin = text.rfind('\n', end);
  return text.substr(begin + 1, end - begin);
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("the main job: every suite, 9/9 wherever tokens gate, by kernels and by the reference") {
  const test::TempFolder folder;
  const std::string junit = folder / "check.xml";
  std::vector<std::string> arguments = {"--json", "--junit", junit};
  std::string arithmetic = "canonical";  // the default
  SUBCASE("canonical") {}
  SUBCASE("reference") {
    arithmetic = "reference";
    arguments.insert(arguments.end(), {"--arithmetic", arithmetic});
  }
  CAPTURE(arithmetic);
  const ProgramResult result = check(arguments);
  CAPTURE(result.err);
  REQUIRE(result.exit_code == 0);
  const auto json = nlohmann::json::parse(result.out);
  CHECK(json["summary"]["suites"] == 13);
  CHECK(json["summary"]["prompts"] == 49);
  CHECK(json["summary"]["failed"] == 0);
  CHECK(json["summary"]["vacuous"] == 0);
  CHECK(json["summary"]["near_ties"] == 0);
  CHECK(json["summary"]["information_only"] == 5);
  for (const auto& suite : json["suites"]) {
    CAPTURE(suite["name"].get<std::string>());
    if (suite["information_only"]) continue;
    const bool official = suite["numerics"] == "official";
    int64_t traced = 0;
    for (const auto& prompt : suite["prompts"]) {
      CAPTURE(prompt["name"].get<std::string>());
      CHECK(prompt["matched"] == 9);
      for (const auto& step : prompt["steps"]) {
        const bool quiet = step["noise_floor"].get<double>() < 1e-5;
        const bool bounded =
            suite["numerics"] == "plain" || (suite["numerics"] == "quant" && quiet);
        CHECK(step["bound"].is_null() == !bounded);
        if (bounded) CHECK(step["logit_difference"].get<double>() <= 1e-4);
      }
      if (prompt["layers"].is_null()) continue;
      ++traced;
      for (const auto& layer : prompt["layers"]) {
        CAPTURE(layer["layer"].get<int64_t>());
        CHECK(layer["rows"].get<int64_t>() >= 34);
        CHECK(layer["different_engram_rows"] == 0);
        if (!official) continue;
        CHECK(layer["median"] == 0);
        CHECK(layer["bit_equal_rows"].get<double>() >= 0.9 * layer["rows"].get<double>());
        CHECK(layer["within_bf16_ulp"].get<double>() >=
              0.99 * layer["stream_values"].get<double>());
      }
    }
    if (official) CHECK(traced == 1);
    for (const auto& claim : suite["claims"]) {
      CHECK(suite["coverage"][claim.get<std::string>()].get<int64_t>() > 0);
    }
  }
  const std::string xml = test::read_file(junit);
  CHECK(has(xml, "tests=\"62\" failures=\"0\" errors=\"0\" skipped=\"5\""));
}

TEST_CASE("the text: one line a prompt, coverage, the summary last, nothing on standard error") {
  const ProgramResult result = check({"--suite", "tiny/plain", "--suite", "steady/official"});
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  CHECK(has(result.out, "tiny/plain       p41     9/9"));
  CHECK(has(result.out, "Layer by layer on golden inputs"));
  CHECK(has(result.out, "candidates_cut"));
  CHECK(last_line(result.out) == "2 suites, 9 prompts: 9 at 9/9, 0 failed, 0 vacuous");
  CHECK_FALSE(has(result.out, "\x1b"));
}

TEST_CASE("options") {
  SUBCASE("--layers prints a line a layer") {
    const auto result = check({"--suite", "tiny/plain", "--prompt", "p41", "--layers"});
    CHECK(result.exit_code == 0);
    CHECK(has(result.out, "tiny/plain  p41     7      "));
    CHECK(has(result.out, "tiny/plain  p41     final  "));
    CHECK(has(result.out, "only 1/4 prompts ran"));
  }
  SUBCASE("--chunk runs the prompt in pieces") {
    const auto result = check({"--suite", "tiny*/plain", "--chunk", "5", "--json"});
    CHECK(result.exit_code == 0);
    const auto json = nlohmann::json::parse(result.out);
    CHECK(json["suites"][0]["coverage"]["prompt_chunked"].get<int64_t>() > 0);
    CHECK(json["summary"]["at_nine"] == 8);
  }
  SUBCASE("--time adds the same prompt in plain fp32") {
    const auto result = check({"--suite", "steady/quant", "--prompt", "s9", "--time", "--json"});
    CHECK(result.exit_code == 0);
    const auto prompt = nlohmann::json::parse(result.out)["suites"][0]["prompts"][0];
    CHECK(prompt["unwatched_seconds"].get<double>() > 0);
    CHECK(prompt["plain_seconds"].get<double>() > 0);
    CHECK(prompt["reference_seconds"].get<double>() > 0);
  }
  SUBCASE("--fp8-max and the environment say that the goldens were made at 448") {
    const auto flag = check({"--suite", "steady/quant", "--prompt", "s9", "--fp8-max", "240"});
    CHECK(has(flag.out, "the goldens were made at 448"));
    ProgramOptions options;
    options.environment["DEEPINFER_NEURON_FP8_MAX"] = "224";
    const auto variable = check({"--suite", "steady/quant", "--prompt", "s9"}, options);
    CHECK(has(variable.out, "fp8_max is 224, the goldens were made at 448"));
    CHECK_FALSE(
        has(check({"--suite", "steady/quant", "--prompt", "s9", "--fp8-max", "448"}, options).out,
            "224"));
  }
  SUBCASE("--model and --golden check one pair, numerics from the golden") {
    const std::string folder = kSource + "/golden/data/steady";
    const auto result = check({"--model", folder, "--golden", folder + "/golden-quant.json"});
    CHECK(result.exit_code == 0);
    CHECK(has(result.out, "steady/quant"));
    CHECK(last_line(result.out) == "1 suite, 5 prompts: 5 at 9/9, 0 failed, 0 vacuous");
  }
  SUBCASE("--list") {
    const auto result = check({"--list"});
    CHECK(result.exit_code == 0);
    CHECK(std::count(result.out.begin(), result.out.end(), '\n') == 13);
    CHECK(has(result.out, "wide/official\n"));
  }
}

TEST_CASE("a golden of another model is a mismatch, exit code 1") {
  // steady has tiny-fp8's shape and other weights.
  const test::TempFolder folder;
  const std::string junit = folder / "check.xml";
  const auto result =
      check({"--model", kSource + "/golden/data/steady", "--golden",
             kSource + "/golden/data/tiny-fp8/golden-plain.json", "--junit", junit});
  CHECK(result.exit_code == 1);
  CHECK(has(result.out, "FAILED"));
  CHECK(has(result.out, "Failures:"));
  CHECK(has(result.out, "token 1: expected "));
  CHECK(has(test::read_file(junit), "<failure type=\"GoldenMismatch\""));
}

TEST_CASE("a suite that claims what cannot happen is vacuous, exit code 6") {
  // Prompts of at most 41 tokens run in one forward: nothing is chunked.
  const test::TempFolder folder;
  std::string yaml = test::read_file(kSource + "/configs/check.yaml");
  test::EditedCheckpoint::replace(yaml, "claims: [", "claims: [prompt_chunked, ");
  test::write_file(folder / "check.yaml", yaml);
  const auto result = check({"--config", folder / "check.yaml", "--suite", "tiny/plain"});
  CHECK(result.exit_code == 6);
  CHECK(has(result.out, "tiny/plain: claims prompt_chunked"));
  CHECK(last_line(result.out) == "1 suite, 4 prompts: 4 at 9/9, 0 failed, 1 vacuous");
}

TEST_CASE("errors: exit code 2, nothing on standard output") {
  const std::string tiny = kSource + "/golden/data/tiny";
  struct Wrong {
    std::vector<std::string> arguments;
    std::string message;
  };
  const std::vector<Wrong> wrongs = {
      {{"--suite", "tiny/plan"}, "did you mean tiny/plain?"},
      {{"--suite", "tiny/plain", "--prompt", "p411"}, "did you mean p41?"},
      {{"--config", "none.yaml"}, "none.yaml"},
      {{"--root", "/nowhere"}, "/nowhere/configs/check.yaml"},
      {{"--model", tiny}, "--golden"},
      {{"--golden", tiny + "/golden-plain.json"}, "--model"},
      {{"--numerics", "plain"}, "--model and --golden"},
      {{"--model", tiny, "--golden", tiny + "/golden-plain.json", "--numerics", "quant"},
       "made with other numerics"},
      {{"--model", tiny, "--golden", tiny + "/golden-plain.json", "--numerics", "plane"},
       "did you mean plain?"},
      {{"--model", tiny, "--golden", tiny + "/none.json"}, "none.json"},
      {{"--model", kSource, "--golden", tiny + "/golden-plain.json"}, "config.json"},
      {{"--chunk", "0"}, "chunk"},
      {{"--chunk", "-3"}, "chunk"},
      {{"--fp8-max", "300"}, "fp8-max"},
      {{"--layer"}, "--layers"},
      {{"--suite", "tiny/plain", "--prompt", "p1", "--junit", "/nowhere/a.xml"}, "/nowhere/a.xml"},
  };
  for (const Wrong& wrong : wrongs) {
    CAPTURE(wrong.arguments[0]);
    CAPTURE(wrong.message);
    const ProgramResult result = check(wrong.arguments);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK_MESSAGE(has(result.err, wrong.message), result.err);
  }
}

TEST_CASE("--help has an example") {
  const auto result = check({"--help"});
  CHECK(result.exit_code == 0);
  CHECK(has(result.out, "deepinfer-sim check --suite 'steady/*' --layers"));
}

}  // namespace
}  // namespace deepinfer
