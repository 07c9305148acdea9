// Breaks the model on purpose, one fault at a time, and demands that the checks notice every one.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "golden/check_config.h"
#include "golden/check_run.h"
#include "platform/fault.h"
#include "tests/conformance/unit_goldens.h"

namespace deepinfer {
namespace {

// A part of the suite: the name it has in the table, and what it runs.
struct Check {
  std::string name;
  std::vector<std::string> (*failures)(const CheckConfig& config);
};

// The failures of one suite's prompts, prompts in chunks of `chunk` tokens (0: whole).
std::vector<std::string> suite_failures(const CheckConfig& config, const std::string& suite,
                                        const std::string& prompt, int64_t chunk) {
  RunOptions options;
  options.selection.suite_patterns = {suite};
  options.selection.prompt_pattern = prompt;
  options.chunk = chunk;
  options.selection.arithmetic =
      Arithmetic::kReference;  // faults stand in the model and the reference
  const CheckReport report = run_check(config.suites, options);
  std::vector<std::string> failures = report.vacuous;
  for (const SuiteReport& one : report.suites) {
    failures.insert(failures.end(), one.vacuous.begin(), one.vacuous.end());
    for (const PromptReport& run : one.prompts) {
      failures.insert(failures.end(), run.failures.begin(), run.failures.end());
    }
  }
  return failures;
}

// In the order of their cost; a fault is tried on each until one notices it.
const std::vector<Check>& checks() {
  static const std::vector<Check> list = {
      {"units", [](const CheckConfig&) { return tests::failed_units(); }},
      {"definitions", [](const CheckConfig&) { return tests::failed_definitions(); }},
      {"tiny/plain",
       [](const CheckConfig& c) { return suite_failures(c, "tiny/plain", "p41", 0); }},
      {"tiny/plain, chunks of 5",
       [](const CheckConfig& c) { return suite_failures(c, "tiny/plain", "p41", 5); }},
      {"tiny-fp8/quant",
       [](const CheckConfig& c) { return suite_failures(c, "tiny-fp8/quant", "p41", 0); }},
      {"steady/official",
       [](const CheckConfig& c) { return suite_failures(c, "steady/official", "s33", 0); }},
      {"wide/official",
       [](const CheckConfig& c) { return suite_failures(c, "wide/official", "s33", 0); }},
      {"tiny/long-plain",
       [](const CheckConfig& c) { return suite_failures(c, "tiny/long-plain", "p320", 0); }},
  };
  return list;
}

std::string first_line(const std::string& text) {
  const std::string line = text.substr(0, text.find('\n'));
  return line.size() > 70 ? line.substr(0, 67) + "..." : line;
}

TEST_CASE("without a fault every check passes, with one the checks notice") {
  const std::filesystem::path root = DEEPINFER_SIM_SOURCE_DIR;
  const CheckConfig config = load_check_config(root / "configs" / "check.yaml", root);
  for (const Check& check : checks()) {
    INFO(check.name);
    for (const std::string& failure : check.failures(config))
      CHECK_MESSAGE(failure.empty(), failure);
  }

  std::printf("%-36s %-24s %s\n", "fault", "noticed by", "as");
  size_t tried = 0, noticed = 0;
  for (const FaultInfo& info : fault_list()) {
    if (info.on_meshes) continue;  // tests/ranks/mesh_faults_test.cpp
    ++tried;
    const ScopedFault fault(info.name);
    std::string by = "NOBODY", as = std::string(info.what);
    for (const Check& check : checks()) {
      std::vector<std::string> failures;
      try {
        failures = check.failures(config);
      } catch (const std::exception& error) {
        failures = {error.what()};  // a fault may also trip an assertion or a shape check
      }
      if (failures.empty()) continue;
      by = check.name;
      as = first_line(failures.front());
      ++noticed;
      break;
    }
    std::printf("%-36s %-24s %s\n", std::string(info.name).c_str(), by.c_str(), as.c_str());
    std::fflush(stdout);
    CHECK_MESSAGE(by != "NOBODY", "survives: " << info.name << " (" << info.what << ")");
  }
  std::printf("%zu of %zu faults noticed\n", noticed, tried);
  CHECK(tried >= 25);
}

}  // namespace
}  // namespace deepinfer
