#include "golden/planned_suite.h"

#include <algorithm>

#include <fnmatch.h>

#include "model/config.h"
#include "model/layer_plan.h"
#include "platform/errors.h"
#include "platform/nearest_name.h"

namespace deepinfer {

bool quantises(const Numerics& numerics) {
  return numerics.quantize_linear || numerics.quantize_window || numerics.quantize_compressed ||
         numerics.quantize_index;
}

bool matches_pattern(const std::string& pattern, const std::string& text) {
  return fnmatch(pattern.c_str(), text.c_str(), FNM_NOESCAPE) == 0;
}

namespace {

std::vector<Suite> select_suites(const std::vector<Suite>& suites,
                                 const std::vector<std::string>& patterns) {
  if (patterns.empty()) return suites;
  std::vector<std::string> names;
  for (const Suite& suite : suites) names.push_back(suite.name);
  for (const std::string& pattern : patterns) {
    const auto matches = [&](const std::string& name) { return matches_pattern(pattern, name); };
    if (std::none_of(names.begin(), names.end(), matches)) {
      throw ConfigError({"no such suite", "--suite", "a name or pattern of a configured suite",
                         pattern, did_you_mean(pattern, names)});
    }
  }
  std::vector<Suite> selected;
  for (const Suite& suite : suites) {
    const auto matches = [&](const auto& pattern) { return matches_pattern(pattern, suite.name); };
    if (std::any_of(patterns.begin(), patterns.end(), matches)) selected.push_back(suite);
  }
  return selected;
}

// Another fp8_max makes the quantisers other functions than those of the golden: tokens remain
// comparable, bounds on numbers do not.
void apply_fp8_max(double fp8_max, Suite& suite) {
  suite.numerics.fp8_max = fp8_max;
  if (fp8_max == kGoldenFp8Max || !quantises(suite.numerics)) return;
  suite.bounds = {};
  suite.gates.logits = suite.gates.traces = suite.gates.layers = false;
}

}  // namespace

std::vector<PlannedSuite> plan_suites(const std::vector<Suite>& suites,
                                      const SuiteSelection& options) {
  std::vector<PlannedSuite> planned;
  std::vector<std::string> prompt_names;
  for (Suite suite : select_suites(suites, options.suite_patterns)) {
    if (options.fp8_max) apply_fp8_max(*options.fp8_max, suite);
    if (options.arithmetic) suite.numerics.arithmetic = *options.arithmetic;
    const ModelConfig config = load_model_config(suite.model);
    PlannedSuite plan{suite, GoldenFile::read(suite.golden, config, make_model_plan(config)), {}};
    require_same_numerics(plan.golden, suite.numerics);
    planned.push_back(std::move(plan));
  }
  for (PlannedSuite& plan : planned) {
    for (const GoldenPrompt& prompt : plan.golden.prompts) {
      prompt_names.push_back(prompt.name);
      if (options.prompt_pattern.empty() || matches_pattern(options.prompt_pattern, prompt.name)) {
        plan.prompts.push_back(&prompt);
      }
    }
  }
  std::erase_if(planned, [](const PlannedSuite& plan) { return plan.prompts.empty(); });
  if (planned.empty()) {
    throw ConfigError({"no such prompt", "--prompt", "a name or pattern of a prompt of the suites",
                       options.prompt_pattern, did_you_mean(options.prompt_pattern, prompt_names)});
  }
  return planned;
}

}  // namespace deepinfer
