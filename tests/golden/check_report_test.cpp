// The three forms of the report.
#include "golden/check_report.h"

#include <cmath>
#include <limits>
#include <sstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "platform/errors.h"
#include "tests/support/checkpoint_files.h"

namespace deepinfer {
namespace {

// A report with a bit of everything: good, failed, near tie, information only, vacuous.
CheckReport sample() {
  const auto prompt = [](const std::string& name, int64_t wrong_step) {
    PromptReport report;
    report.name = name;
    for (int64_t step = 0; step < 10; ++step) {
      StepComparison comparison;
      comparison.expected = 100 + step;
      comparison.found = step == wrong_step ? 1 : comparison.expected;
      comparison.margin = 0.5 + static_cast<double>(step);
      comparison.noise_floor = 1e-6;
      comparison.difference = 1e-6 * static_cast<double>(step);
      comparison.bounded = step < 8;
      comparison.tolerance = comparison.bounded ? 1e-4 : 1e-6;
      report.generation.steps.push_back(comparison);
    }
    report.generation.seconds = 0.25;
    return report;
  };
  CheckReport report;
  SuiteReport gating;
  gating.suite.name = "a<b>/\"plain\" & 'more'";
  gating.suite.gates.tokens = true;
  gating.suite.claims = {Path::kDecoded};
  gating.claims_checked = true;
  gating.coverage.add(Path::kDecoded, 18);
  gating.coverage.add_expert_hits(0, {3, 1, 2});
  gating.prompts = {prompt("good", -1), prompt("bad\x01", 2), prompt("tie", 4)};
  gating.prompts[1].failures = {"token 3: expected 102, found 1 <here>"};
  gating.prompts[1].generation.first_difference =
      FirstDifference{"prefill", 3, "topk", 17, "[1, 2]", "[1, 3]"};
  gating.prompts[2].explained = {"near tie: token 5"};
  gating.prompts[2].generation.steps[0].difference = std::numeric_limits<double>::infinity();
  gating.prompts[2].generation.steps[4].margin = 1e-5;
  gating.prompts_in_golden = 3;
  report.suites.push_back(gating);
  SuiteReport information;
  information.suite.name = "info";
  information.claims_checked = true;
  information.prompts = {prompt("p", 0)};
  information.prompts_in_golden = 1;
  information.vacuous = {"claims nothing & more"};
  report.suites.push_back(information);
  report.notes = {"a note"};
  return report;
}

TEST_CASE("the summary line") {
  CHECK(summary_line(sample()) ==
        "2 suites, 4 prompts: 1 at 9/9, 1 failed, 1 vacuous, 1 near tie, 1 information only");
  CheckReport good = sample();
  good.suites.resize(1);
  good.suites[0].prompts.resize(1);
  CHECK(summary_line(good) == "1 suite, 1 prompt: 1 at 9/9, 0 failed, 0 vacuous");
}

TEST_CASE("the text") {
  std::ostringstream out;
  write_text(sample(), {}, out);
  const std::string text = out.str();
  const auto has = [&](const std::string& part) {
    CHECK_MESSAGE(text.find(part) != std::string::npos, part);
  };
  has("good    9/9     5.00e-01  7.00e-06    1.00e-04 (8/10 steps)  -");
  has("8/9");
  has("prefill layer 3 topk");
  has("FAILED");
  has("ok, near tie");
  has("information only");
  has("window_crossed    0      0/2        0/2");
  has("decoded           18     1/2        1/2");
  has("  0: 1-3");
  has("near tie: token 5");
  has("token 3: expected 102, found 1 <here>");
  has("claims nothing & more");
  has("note: a note");
  const std::string last = text.substr(text.rfind('\n', text.size() - 2) + 1);
  CHECK(last == summary_line(sample()) + "\n");
  CHECK(text.find('\x1b') == std::string::npos);
}

TEST_CASE("the JSON") {
  const auto json = nlohmann::json::parse(report_json(sample()));
  CHECK(json["schema"] == 1);
  CHECK(json["exit_code"] == 1);
  CHECK(json["summary"]["failed"] == 1);
  CHECK(json["summary"]["information_only"] == 1);
  const auto& prompts = json["suites"][0]["prompts"];
  CHECK(prompts[0]["result"] == "ok");
  CHECK(prompts[0]["matched"] == 9);
  CHECK(prompts[0]["bounded_steps"] == 8);
  CHECK(prompts[0]["largest_logit_difference"] == doctest::Approx(7e-6));
  CHECK(prompts[0]["steps"].size() == 10);
  CHECK(prompts[0]["steps"][9]["bound"].is_null());
  CHECK(prompts[0]["layers"].is_null());
  CHECK(prompts[1]["result"] == "failed");
  CHECK(prompts[1]["first_difference"]["row"] == 17);
  CHECK(prompts[2]["result"] == "near tie");
  CHECK(prompts[2]["largest_logit_difference"].is_null());  // infinity
  CHECK(json["suites"][0]["coverage"]["decoded"] == 18);
  CHECK(json["suites"][0]["expert_hits"]["0"] == nlohmann::json({3, 1, 2}));
  CHECK(json["suites"][1]["prompts"][0]["result"] == "information");
}

// Reads just enough XML to know that it is well-formed: tags nest, attributes are quoted, text
// holds no markup.
void check_well_formed(const std::string& xml) {
  std::vector<std::string> open;
  size_t at = 0;
  REQUIRE(xml.rfind("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n", 0) == 0);
  at = xml.find('\n') + 1;
  while (at < xml.size()) {
    if (xml[at] != '<') {
      CHECK(xml[at] != '>');
      if (xml[at] == '&') {
        const std::string entity = xml.substr(at, xml.find(';', at) - at + 1);
        const bool known = entity == "&amp;" || entity == "&lt;" || entity == "&gt;" ||
                           entity == "&quot;" || entity == "&apos;" || entity.rfind("&#", 0) == 0;
        CHECK_MESSAGE(known, entity);
      }
      ++at;
      continue;
    }
    const size_t name_begin = at + (xml[at + 1] == '/' ? 2 : 1);
    const size_t name_end = xml.find_first_of(" />", name_begin);
    const std::string name = xml.substr(name_begin, name_end - name_begin);
    size_t end = name_end;
    while (xml[end] != '>') {  // attributes: quotes may hold anything but < and the quote
      if (xml[end] == '"') {
        const size_t close = xml.find('"', end + 1);
        REQUIRE(close != std::string::npos);
        CHECK(xml.substr(end + 1, close - end - 1).find_first_of("<>") == std::string::npos);
        end = close;
      }
      ++end;
      REQUIRE(end < xml.size());
    }
    if (xml[at + 1] == '/') {
      REQUIRE_FALSE(open.empty());
      CHECK(open.back() == name);
      open.pop_back();
    } else if (xml[end - 1] != '/') {
      open.push_back(name);
    }
    at = end + 1;
  }
  CHECK(open.empty());
}

TEST_CASE("the JUnit XML") {
  const std::string xml = junit_xml(sample());
  check_well_formed(xml);
  const auto has = [&](const std::string& part) {
    CHECK_MESSAGE(xml.find(part) != std::string::npos, part << "\n" << xml);
  };
  has("<testsuites name=\"deepinfer-sim check\" tests=\"6\" failures=\"2\" errors=\"0\" "
      "skipped=\"1\"");
  has("<testsuite name=\"a&lt;b&gt;/&quot;plain&quot; &amp; &apos;more&apos;\" tests=\"4\" "
      "failures=\"1\"");
  has("name=\"bad\xEF\xBF\xBD\"");
  has("<failure type=\"GoldenMismatch\" message=\"8/9 tokens; token 3: expected 102, found 1 "
      "&lt;here&gt;\"");
  has("<skipped message=\"information only, nothing gates: 8/9 tokens\"/>");
  has("<failure type=\"VacuousRun\" message=\"claims nothing &amp; more\"");
  has("time=\"0.250000\"");
}

TEST_CASE("XML escaping, each byte") {
  for (int byte = 0; byte < 128; ++byte) {
    CAPTURE(byte);
    const char c = static_cast<char>(byte);
    const std::string escaped = xml_escape(std::string_view(&c, 1));
    const bool allowed = (byte >= 0x20 && byte != 0x7F) || c == '\t' || c == '\n' || c == '\r';
    CHECK((escaped == "\xEF\xBF\xBD") == !allowed);
    CHECK(escaped.find_first_of("<>\"'\n\r\t") == std::string::npos);
  }
  CHECK(xml_escape("<&>") == "&lt;&amp;&gt;");
  // UTF-8: two, three and four bytes are kept.
  CHECK(xml_escape("\xC3\xA4\xE2\x82\xAC\xF0\x9F\x99\x82") ==
        "\xC3\xA4\xE2\x82\xAC\xF0\x9F\x99\x82");
  const std::string bad = "\xEF\xBF\xBD";
  CHECK(xml_escape("\xC3") == bad);                                // cut short
  CHECK(xml_escape("\x80") == bad);                                // continuation alone
  CHECK(xml_escape("\xC0\xAF") == bad + bad);                      // overlong
  CHECK(xml_escape("\xED\xA0\x80") == bad + bad + bad);            // surrogate
  CHECK(xml_escape("\xEF\xBF\xBF") == bad + bad + bad);            // U+FFFF
  CHECK(xml_escape("\xF4\x90\x80\x80") == bad + bad + bad + bad);  // past U+10FFFF
  CHECK(xml_escape("\xE2\x82\x22") == bad + bad + "&quot;");
}

TEST_CASE("files appear whole or not at all") {
  const test::TempFolder folder;
  write_file_atomically(folder / "a.xml", "one");
  write_file_atomically(folder / "a.xml", "two");
  CHECK(test::read_file(folder / "a.xml") == "two");
  int64_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    (void)entry;
    ++files;
  }
  CHECK(files == 1);
  CHECK_THROWS_AS(write_file_atomically(folder / "none/a.xml", "x"), ConfigError);
  std::filesystem::create_directory(folder / "folder");
  CHECK_THROWS_AS(write_file_atomically(folder / "folder", "x"), ConfigError);
  CHECK(std::filesystem::is_directory(folder / "folder"));
}

}  // namespace
}  // namespace deepinfer
