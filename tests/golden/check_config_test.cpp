// The check's YAML: the shipped file, and every mistake with its place and remedy.
#include "golden/check_config.h"

#include <algorithm>
#include <filesystem>

#include <doctest/doctest.h>

#include "platform/errors.h"
#include "platform/yaml_reader.h"

namespace deepinfer {
namespace {

const std::filesystem::path kRoot = DEEPINFER_SIM_SOURCE_DIR;

constexpr const char* kGood = R"(schema: 1
bounds:
  plain: { logits: 1.0e-4, traces: 5.0e-5 }
  quiet:
    logits: 0.5
    where_noise_floor_below: 1.0e-5
    layers: { median: 0, row_median: 1, bit_equal_rows: 0.9, row_difference: 2.0e-6, rows_within: 1, values_within_bf16_ulp: 0.75, equal_selections: 0.5 }
suites:
  - name: one
    model: m
    golden: m/golden-plain.json
    numerics: plain
    bounds: plain
    gates: [tokens, logits]
    claims: [decoded, window_crossed]
  - name: two
    model: /elsewhere
    golden: /elsewhere/golden-quant.json
    numerics: quant
    bounds: quiet
    gates: []
)";

std::string edited(const std::string& from, const std::string& to) {
  std::string text = kGood;
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

// The message of the ConfigError; empty if it reads.
std::string error_of(const std::string& text) {
  try {
    parse_check_config(text, "check.yaml", "/root");
  } catch (const ConfigError& error) {
    CHECK(error.exit_code() == ExitCode::kBadInput);
    return error.what();
  }
  return "";
}

TEST_CASE("the shipped configuration") {
  const CheckConfig config = load_check_config(kRoot / "configs/check.yaml", kRoot);
  CHECK(config.suites.size() == 13);
  int64_t information_only = 0;
  for (const Suite& suite : config.suites) {
    CAPTURE(suite.name);
    information_only += suite.information_only();
    CHECK(std::filesystem::is_directory(suite.model));
    CHECK(std::filesystem::is_regular_file(suite.golden));
    CHECK(suite.numerics == parse_numerics(suite.numerics_name));
    if (suite.information_only()) continue;
    // What the issue asks of every suite that gates.
    CHECK(suite.gates.tokens);
    CHECK(suite.claims.size() >= 10);
    if (suite.numerics_name != "official") CHECK(suite.bounds.logits == 1e-4);
    if (suite.numerics_name == "quant") CHECK(suite.bounds.where_noise_floor_below == 1e-5);
    if (suite.numerics_name == "official") {
      CHECK(suite.gates.layers);
      CHECK(suite.bounds.layers.median == 0);
      CHECK(suite.bounds.layers.bit_equal_rows == 0.9);
      CHECK(suite.bounds.layers.values_within_bf16_ulp == 0.99);
    }
  }
  CHECK(information_only == 2);
}

TEST_CASE("what is read") {
  const CheckConfig config = parse_check_config(kGood, "check.yaml", "/root");
  REQUIRE(config.suites.size() == 2);
  const Suite& one = config.suites[0];
  CHECK(one.name == "one");
  CHECK(one.model == "/root/m");
  CHECK(one.golden == "/root/m/golden-plain.json");
  CHECK(one.gates.tokens);
  CHECK(one.gates.logits);
  CHECK_FALSE(one.gates.traces);
  CHECK_FALSE(one.gates.layers);
  CHECK((one.claims == std::vector<Path>{Path::kDecoded, Path::kWindowCrossed}));
  CHECK(one.bounds.traces == 5e-5);
  CHECK_FALSE(one.bounds.where_noise_floor_below.has_value());
  const Suite& two = config.suites[1];
  CHECK(two.model == "/elsewhere");
  CHECK(two.information_only());
  CHECK(two.claims.empty());
  CHECK(two.bounds.where_noise_floor_below == 1e-5);
  CHECK(two.bounds.layers.row_difference == 2e-6);
  CHECK(two.bounds.layers.equal_selections == 0.5);
}

TEST_CASE("mistakes: message, line and remedy") {
  struct Mistake {
    const char* name;
    std::string text;
    std::vector<std::string> parts;  // of the message
  };
  const Mistake mistakes[] = {
      {"unknown top-level key",
       edited("suites:", "suite:"),
       {"unknown key", "check.yaml:8", "did you mean suites?"}},
      {"unknown suite key",
       edited("numerics: plain", "numeric: plain"),
       {"unknown key", "check.yaml:12, suites[0]", "did you mean numerics?"}},
      {"unknown bound",
       edited("logits: 1.0e-4", "logit: 1.0e-4"),
       {"unknown key", "check.yaml:3, bounds.plain", "did you mean logits?"}},
      {"unknown layer bound",
       edited("bit_equal_rows", "bit_equal_row"),
       {"unknown key", "check.yaml:7, bounds.quiet.layers", "did you mean bit_equal_rows?"}},
      {"missing key",
       edited("    golden: m/golden-plain.json\n", ""),
       {"missing key", "check.yaml:9, suites[0]", "\"golden\""}},
      {"no schema", edited("schema: 1\n", ""), {"missing key", "\"schema\""}},
      {"another schema", edited("schema: 1", "schema: 2"), {"wrong value", "check.yaml:1, schema"}},
      {"schema quoted",
       edited("schema: 1", "schema: \"1\""),
       {"wrong type", "check.yaml:1, schema"}},
      {"schema a fraction", edited("schema: 1", "schema: 1.5"), {"wrong value", "check.yaml:1"}},
      {"duplicate key",
       edited("    model: m\n", "    model: m\n    model: n\n"),
       {"duplicate key", "check.yaml:11, suites[0].model"}},
      {"duplicate suite",
       edited("name: two", "name: one"),
       {"two suites of one name", "check.yaml:16, suites[1].name"}},
      {"duplicate bounds",
       edited("  quiet:", "  plain:"),
       {"duplicate key", "check.yaml:4, bounds.plain"}},
      {"bound is text",
       edited("1.0e-4", "small"),
       {"wrong value", "bounds.plain.logits", "\"small\""}},
      {"bound is negative", edited("1.0e-4", "-1"), {"wrong value", "bounds.plain.logits"}},
      {"bound is nan", edited("1.0e-4", ".nan"), {"wrong value", "bounds.plain.logits"}},
      {"bound is a list", edited("1.0e-4", "[1]"), {"wrong type", "bounds.plain.logits", "a list"}},
      {"share above 1",
       edited("bit_equal_rows: 0.9", "bit_equal_rows: 90"),
       {"wrong value", "from 0 to 1"}},
      {"half a row bound", edited("rows_within: 1, ", ""), {"half a bound", "rows_within"}},
      {"noise floor without logits", edited("    logits: 0.5\n", ""), {"half a bound", "logits"}},
      {"unknown numerics",
       edited("numerics: plain", "numerics: plane"),
       {"unknown numerics", "check.yaml:12, suites[0].numerics", "did you mean plain?"}},
      {"unknown bounds",
       edited("bounds: quiet", "bounds: quite"),
       {"unknown bounds", "check.yaml:20, suites[1].bounds", "did you mean quiet?"}},
      {"unknown gate",
       edited("[tokens, logits]", "[tokens, logit]"),
       {"unknown gate", "suites[0].gates[1]", "did you mean logits?"}},
      {"gate twice", edited("[tokens, logits]", "[tokens, tokens]"), {"gate named twice"}},
      {"gates not a list", edited("[tokens, logits]", "tokens"), {"wrong type", "a list"}},
      {"gate without a bound",
       edited("[tokens, logits]", "[layers]"),
       {"a gate without a bound", "layers"}},
      {"unknown claim",
       edited("window_crossed", "window_cross"),
       {"unknown path", "check.yaml:15, suites[0].claims[1]", "did you mean window_crossed?"}},
      {"claim twice", edited("window_crossed", "decoded"), {"path claimed twice"}},
      {"no suites", edited("suites:", "suites: []\nbounds2:"), {"unknown key"}},
      {"name missing", edited("name: one", "name:"), {"wrong type", "suites[0].name", "nothing"}},
      {"not YAML", std::string(kGood) + "  - [", {"not YAML", "check.yaml:"}},
      {"two documents",
       std::string(kGood) + "---\nschema: 1\n",
       {"wrong YAML document", "2 documents"}},
      {"a list", "[1, 2]", {"wrong YAML document", "not a map"}},
      {"empty", "", {"wrong YAML document"}},
      {"merge key", edited("    model: m\n", "    <<: {model: m}\n"), {"unknown key"}},
  };
  for (const Mistake& mistake : mistakes) {
    CAPTURE(mistake.name);
    const std::string message = error_of(mistake.text);
    for (const std::string& part : mistake.parts) {
      CAPTURE(part);
      CHECK_MESSAGE(message.find(part) != std::string::npos, message);
    }
  }
  CHECK(error_of(kGood).empty());
}

TEST_CASE("texts that stand for endless trees end in an error") {
  CHECK(error_of("schema: &a {b: *a}").find("nested too deeply") != std::string::npos);
  std::string bomb = "schema: 1\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string last = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + last;
    for (int k = 1; k < 10; ++k) bomb += ", " + last;
    bomb += "]\n";
  }
  CHECK(error_of(bomb).find("nested too deeply") != std::string::npos);
  CHECK_FALSE(error_of("schema: " + std::string(100'000, '[')).empty());
}

TEST_CASE("a file that is not there") {
  CHECK_THROWS_AS(load_check_config(kRoot / "configs/none.yaml", kRoot), ConfigError);
  CHECK_THROWS_AS(load_check_config(kRoot, kRoot), ConfigError);
}

}  // namespace
}  // namespace deepinfer
