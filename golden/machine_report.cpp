// The check's report for programs: JSON and JUnit XML.
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "golden/check_report.h"

namespace deepinfer {
namespace {

using Json = nlohmann::ordered_json;

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }
Json number(const std::optional<double>& value) { return value ? number(*value) : Json(nullptr); }

std::string_view path_name(Path path) {
  for (const PathInfo& info : all_paths()) {
    if (info.path == path) return info.name;
  }
  DEEPINFER_ASSERT(false, "path " << static_cast<int>(path));
}

std::string result_name(const Suite& suite, const PromptReport& prompt) {
  if (!prompt.failures.empty()) return "failed";
  if (suite.information_only()) return "information";
  return prompt.generation.near_ties() == 0 ? "ok" : "near tie";
}

Json layers_json(const std::optional<LayerCheckResult>& layers) {
  if (!layers) return nullptr;
  Json list = Json::array();
  for (const LayerComparison& layer : layers->layers) {
    list.push_back({{"layer", layer.layer},
                    {"rows", layer.rows},
                    {"bit_equal_rows", layer.bit_equal_rows},
                    {"stream_values", layer.stream_values},
                    {"within_bf16_ulp", layer.within_bf16_ulp},
                    {"rows_within", layer.rows_within},
                    {"median", number(layer.median)},
                    {"row_median", number(layer.row_median)},
                    {"largest", number(layer.largest)},
                    {"coefficient_largest", number(layer.coefficient_largest)},
                    {"selection_rows", layer.selection_rows},
                    {"different_selections", layer.different_selections},
                    {"different_engram_rows", layer.different_addresses},
                    {"missing_rows", layer.missing_rows},
                    {"failures", layer.failures}});
  }
  return list;
}

Json prompt_json(const Suite& suite, const PromptReport& prompt) {
  const GenerationResult& generation = prompt.generation;
  const StepComparison* bounded = generation.largest_difference(true);
  const StepComparison* unbounded = generation.largest_difference(false);
  Json steps = Json::array();
  for (const StepComparison& step : generation.steps) {
    steps.push_back({{"expected", step.expected},
                     {"found", step.found},
                     {"margin", number(step.margin)},
                     {"noise_floor", number(step.noise_floor)},
                     {"logit_difference", number(step.difference)},
                     {"bound", step.bounded ? number(step.tolerance) : Json(nullptr)}});
  }
  Json first = nullptr;
  if (generation.first_difference) {
    const FirstDifference& difference = *generation.first_difference;
    first = {{"forward", difference.forward},   {"layer", difference.layer},
             {"name", difference.name},         {"row", difference.row},
             {"expected", difference.expected}, {"found", difference.found}};
  }
  return {{"name", prompt.name},
          {"result", result_name(suite, prompt)},
          {"matched", generation.matched()},
          {"counted", kCountedTokens},
          {"seconds", number(generation.seconds)},
          {"smallest_margin", number(generation.smallest_margin())},
          {"largest_logit_difference", bounded ? number(bounded->difference) : Json(nullptr)},
          {"logit_bound", bounded ? number(bounded->tolerance) : Json(nullptr)},
          {"bounded_steps", generation.bounded_steps()},
          {"largest_unbounded_logit_difference",
           unbounded ? number(unbounded->difference) : Json(nullptr)},
          {"failures", prompt.failures},
          {"explained", prompt.explained},
          {"first_difference", first},
          {"steps", steps},
          {"layers", layers_json(prompt.layers)},
          {"unwatched_seconds", number(prompt.unwatched_seconds)},
          {"plain_seconds", number(prompt.plain_seconds)},
          {"reference_seconds", number(prompt.reference_seconds)}};
}

Json suite_json(const SuiteReport& report) {
  const Suite& suite = report.suite;
  Json gates = Json::array();
  if (suite.gates.tokens) gates.push_back("tokens");
  if (suite.gates.logits) gates.push_back("logits");
  if (suite.gates.traces) gates.push_back("traces");
  if (suite.gates.layers) gates.push_back("layers");
  Json claims = Json::array();
  for (const Path path : suite.claims) claims.push_back(path_name(path));
  Json coverage = Json::object();
  for (const PathInfo& info : all_paths()) {
    coverage[std::string(info.name)] = report.coverage.count(info.path);
  }
  Json hits = Json::object();
  for (const auto& [layer, counts] : report.coverage.expert_hits()) {
    hits[std::to_string(layer)] = counts;
  }
  Json prompts = Json::array();
  for (const PromptReport& prompt : report.prompts) prompts.push_back(prompt_json(suite, prompt));
  return {{"name", suite.name},
          {"model", suite.model.string()},
          {"golden", suite.golden.string()},
          {"numerics", suite.numerics_name},
          {"fp8_max", number(suite.numerics.fp8_max)},
          {"gates", gates},
          {"claims", claims},
          {"information_only", suite.information_only()},
          {"claims_checked", report.claims_checked},
          {"vacuous", report.vacuous},
          {"coverage", coverage},
          {"expert_hits", hits},
          {"prompts", prompts}};
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

std::string seconds_text(double seconds) {
  std::ostringstream text;
  text.precision(6);
  text << std::fixed << seconds;
  return text.str();
}

// One <testcase>; `tag` is "failure", "skipped" or empty for a pass.
struct TestCase {
  std::string name;
  double seconds = 0;
  std::string tag;
  std::string type;
  std::string message;
  std::string text;
};

std::vector<TestCase> test_cases(const SuiteReport& report) {
  std::vector<TestCase> cases;
  for (const PromptReport& prompt : report.prompts) {
    TestCase test{prompt.name, prompt.generation.seconds, "", "", "", ""};
    const std::string tokens = std::to_string(prompt.generation.matched()) + '/' +
                               std::to_string(kCountedTokens) + " tokens";
    if (!prompt.failures.empty()) {
      test.tag = "failure";
      test.type = "GoldenMismatch";
      test.message = tokens + "; " + prompt.failures.front();
      test.text = joined(prompt.failures);
    } else if (report.suite.information_only()) {
      test.tag = "skipped";
      test.message = "information only, nothing gates: " + tokens;
    }
    cases.push_back(std::move(test));
  }
  TestCase claims{"claims", 0, "", "", "", ""};
  if (!report.vacuous.empty()) {
    claims.tag = "failure";
    claims.type = "VacuousRun";
    claims.message = report.vacuous.front();
    claims.text = joined(report.vacuous);
  } else if (!report.claims_checked) {
    claims.tag = "skipped";
    claims.message = "not every prompt ran";
  }
  cases.push_back(std::move(claims));
  return cases;
}

// The attributes that <testsuite> and <testsuites> share.
std::string totals(const std::vector<TestCase>& cases) {
  int64_t failures = 0;
  int64_t skipped = 0;
  double seconds = 0;
  for (const TestCase& test : cases) {
    failures += test.tag == "failure";
    skipped += test.tag == "skipped";
    seconds += test.seconds;
  }
  return "tests=\"" + std::to_string(cases.size()) + "\" failures=\"" + std::to_string(failures) +
         "\" errors=\"0\" skipped=\"" + std::to_string(skipped) + "\" time=\"" +
         seconds_text(seconds) + '"';
}

void write_suite(const std::string& name, const std::vector<TestCase>& cases, std::ostream& out) {
  const std::string suite = xml_escape(name);
  out << "  <testsuite name=\"" << suite << "\" " << totals(cases) << ">\n";
  for (const TestCase& test : cases) {
    out << "    <testcase classname=\"" << suite << "\" name=\"" << xml_escape(test.name)
        << "\" time=\"" << seconds_text(test.seconds) << '"';
    if (test.tag.empty()) {
      out << "/>\n";
      continue;
    }
    out << ">\n      <" << test.tag;
    if (!test.type.empty()) out << " type=\"" << xml_escape(test.type) << '"';
    out << " message=\"" << xml_escape(test.message) << '"';
    if (test.text.empty()) {
      out << "/>\n";
    } else {
      out << '>' << xml_escape(test.text) << "</" << test.tag << ">\n";
    }
    out << "    </testcase>\n";
  }
  out << "  </testsuite>\n";
}

// Length in bytes of the UTF-8 character at `text[i]` if XML 1.0 can hold it, else 0.
size_t xml_character_bytes(std::string_view text, size_t i) {
  const auto byte = [&](size_t at) { return static_cast<uint8_t>(text[at]); };
  const uint8_t first = byte(i);
  if (first < 0x80) {
    const bool allowed = first >= 0x20 || first == '\t' || first == '\n' || first == '\r';
    return allowed && first != 0x7F ? 1 : 0;
  }
  const size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC2 ? 2 : 0;
  if (bytes == 0 || first > 0xF4 || i + bytes > text.size()) return 0;
  uint32_t code = first & (0xFFu >> (bytes + 1));
  for (size_t k = 1; k < bytes; ++k) {
    if ((byte(i + k) & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte(i + k) & 0x3Fu);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  const bool noncharacter = code == 0xFFFE || code == 0xFFFF;
  return code >= kLeast[bytes] && code <= 0x10FFFF && !surrogate && !noncharacter ? bytes : 0;
}

}  // namespace

std::string report_json(const CheckReport& report) {
  const CheckCounts counts = report.counts();
  Json suites = Json::array();
  for (const SuiteReport& suite : report.suites) suites.push_back(suite_json(suite));
  const Json json = {{"schema", 1},
                     {"notes", report.notes},
                     {"vacuous", report.vacuous},
                     {"exit_code", static_cast<int>(report.exit_code())},
                     {"summary",
                      {{"suites", counts.suites},
                       {"prompts", counts.prompts},
                       {"at_nine", counts.at_nine},
                       {"failed", counts.failed},
                       {"vacuous", counts.vacuous},
                       {"near_ties", counts.near_ties},
                       {"information_only", counts.information_only}}},
                     {"suites", suites}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

std::string junit_xml(const CheckReport& report) {
  std::vector<TestCase> all;
  std::ostringstream suites;
  for (const SuiteReport& suite : report.suites) {
    const std::vector<TestCase> cases = test_cases(suite);
    write_suite(suite.suite.name, cases, suites);
    all.insert(all.end(), cases.begin(), cases.end());
  }
  if (!report.vacuous.empty()) {
    const std::vector<TestCase> run = {
        {"claims", 0, "failure", "VacuousRun", report.vacuous.front(), joined(report.vacuous)}};
    write_suite("run", run, suites);
    all.insert(all.end(), run.begin(), run.end());
  }
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"deepinfer-sim check\" " +
         totals(all) + ">\n" + suites.str() + "</testsuites>\n";
}

std::string xml_escape(std::string_view text) {
  std::string escaped;
  for (size_t i = 0; i < text.size();) {
    const size_t bytes = xml_character_bytes(text, i);
    if (bytes == 0) {
      escaped += "\xEF\xBF\xBD";  // U+FFFD
      ++i;
      continue;
    }
    switch (text[i]) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&apos;";
        break;
      // Attribute values lose raw line ends and tabs to normalisation.
      case '\n':
        escaped += "&#10;";
        break;
      case '\r':
        escaped += "&#13;";
        break;
      case '\t':
        escaped += "&#9;";
        break;
      default:
        escaped += text.substr(i, bytes);
    }
    i += bytes;
  }
  return escaped;
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::path temporary = path;
  temporary += '.' + std::to_string(getpid()) + ".tmp";
  const auto fail = [&](const std::string& what, const std::string& reason) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw ConfigError({what, path.string(), "a file that can be written", reason,
                       "check that the folder exists and can be written to"});
  };
  {
    errno = 0;
    std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
    stream.write(text.data(), static_cast<std::streamsize>(text.size()));
    stream.close();
    if (!stream) fail("cannot write the file", errno != 0 ? std::strerror(errno) : "a write error");
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) fail("cannot rename the finished file", error.message());
}

}  // namespace deepinfer
