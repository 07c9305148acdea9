// Which suites and prompts a run was asked for, with their golden files read.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "golden/check_config.h"
#include "golden/golden_file.h"

namespace deepinfer {

struct SuiteSelection {
  std::vector<std::string> suite_patterns;  // with * and ?; empty: all
  std::string prompt_pattern;               // empty: all
  std::optional<double> fp8_max;            // overrides the suites' numerics
  std::optional<Arithmetic> arithmetic;     // likewise
};

// A suite with its golden file, and the prompts of it that were asked for.
struct PlannedSuite {
  Suite suite;
  GoldenFile golden;
  std::vector<const GoldenPrompt*> prompts;
};

// Reads every golden file, so that bad input ends a run before it starts. Throws ConfigError for a
// pattern that matches nothing, and what golden files and checkpoints throw.
std::vector<PlannedSuite> plan_suites(const std::vector<Suite>& suites,
                                      const SuiteSelection& selection);

// True if `text` matches a pattern with * and ?.
bool matches_pattern(const std::string& pattern, const std::string& text);

// Whether any quantiser is on.
bool quantises(const Numerics& numerics);

}  // namespace deepinfer
