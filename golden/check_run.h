// Runs the suites of a check and gathers the evidence: comparisons, coverage, what failed, what was
// vacuous.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "golden/check_config.h"
#include "golden/generation_check.h"
#include "golden/golden_file.h"
#include "golden/layer_check.h"
#include "golden/planned_suite.h"
#include "model/transformer.h"
#include "platform/coverage.h"
#include "platform/errors.h"

namespace deepinfer {

struct PromptReport {
  std::string name;
  GenerationResult generation;
  std::optional<LayerCheckResult> layers;  // where the golden's trace can feed the layers
  std::vector<std::string> failures;       // of gates, each a sentence
  std::vector<std::string> explained;      // tokens that differ without failing
  // With RunOptions::time: the same forwards unwatched, in the suite's numerics, in plain ones, and
  // in the suite's by the reference ops; taken in turns, the better of two rounds each.
  std::optional<double> unwatched_seconds;
  std::optional<double> plain_seconds;
  std::optional<double> reference_seconds;
};

struct SuiteReport {
  Suite suite;  // gates as they were applied
  std::vector<PromptReport> prompts;
  int64_t prompts_in_golden = 0;
  Coverage coverage;                 // over the generation runs of all prompts
  bool claims_checked = false;       // false if only some prompts ran
  std::vector<std::string> vacuous;  // claims and gates that nothing stood behind

  bool failed() const;
};

struct CheckCounts {
  int64_t suites = 0;
  int64_t prompts = 0;
  int64_t at_nine = 0;           // prompts with 9/9 tokens
  int64_t failed = 0;            // prompts
  int64_t vacuous = 0;           // suites, and the run itself
  int64_t near_ties = 0;         // tokens of prompts in suites that gate
  int64_t information_only = 0;  // prompts
};

struct CheckReport {
  std::vector<SuiteReport> suites;
  std::vector<std::string> notes;    // what the reader must know about the run
  std::vector<std::string> vacuous;  // of the run as a whole

  CheckCounts counts() const;
  ExitCode exit_code() const;  // a mismatch counts before vacuity
};

using ModelLoader = std::function<std::shared_ptr<const TextModel>(
    const std::filesystem::path& directory, const Numerics& numerics)>;

// Calls `body` with a model that does what `model`, of one rank, does: itself, or the leader of a
// mesh of ranks (model/leader.h). `coverage`, if not null, also gets what the other ranks cover.
using ModelRunner = std::function<void(const TextModel& model, Coverage* coverage,
                                       const std::function<void(const TextModel& running)>& body)>;

struct RunOptions {
  SuiteSelection selection;
  int64_t chunk = 0;  // prompt tokens a forward; 0: all in one
  bool time = false;
  ModelLoader load;  // empty: TextModel::load on `device`
  ModelRunner run;   // empty: on one rank
  at::Device device = at::kCPU;
  std::function<void(const std::string& line)> progress;  // may be empty
};

// Throws what plan_suites throws, before anything runs.
CheckReport run_check(const std::vector<Suite>& suites, const RunOptions& options);

}  // namespace deepinfer
