// Runs golden prompts at many sizes of a mesh and holds the logits against each other by bits.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "golden/check_run.h"
#include "golden/planned_suite.h"
#include "golden/text_table.h"
#include "model/mesh.h"
#include "platform/errors.h"

namespace deepinfer {

struct SweepPrompt {
  int64_t matched = 0;  // of the first kCountedTokens
  uint64_t hash = 0;    // of the logits of all steps
};

// One mesh on one suite.
struct SweepRow {
  ParallelSizes sizes;
  std::vector<SweepPrompt> prompts;  // of the suite, in its order
  double seconds = 0;
  int64_t peak_bytes = 0;  // resident set of the process while it ran; 0: not known
  // Whether each prompt's logits are those of one rank, bit by bit.
  bool same = false;

  uint64_t hash() const;  // of all prompts
};

struct SweepSuite {
  Suite suite;
  std::vector<std::string> prompts;  // names
  SweepRow alone;                    // one rank, one prompt at a time
  std::vector<SweepRow> rows;        // all prompts together, each a lane of one batch

  bool all_same() const;
};

struct SweepReport {
  std::vector<SweepSuite> suites;
  double seconds = 0;

  int64_t runs() const;
  bool all_same() const;
  // Rows, of suites whose tokens gate, in which a prompt is not at 9/9.
  int64_t rows_below_nine() const;
  ExitCode exit_code() const;
};

struct SweepOptions {
  SuiteSelection selection;
  std::vector<ParallelSizes> meshes;
  ModelLoader load;                                               // as in RunOptions
  std::function<ModelRunner(const ParallelSizes& sizes)> runner;  // required
  std::function<void(const std::string& line)> progress;          // may be empty
};

// Runs prompts as lanes of one batch: prefill of all in one forward, then one forward a token for
// those that have not ended, each after its golden token. Results in the order of the prompts.
std::vector<SweepPrompt> generate_together(const TextModel& model,
                                           const std::vector<const GoldenPrompt*>& prompts);

// For each suite: every prompt alone on one rank, then for each mesh all prompts together, prefill
// and one forward a token. A step after a token that differs continues on the golden token. Throws
// what plan_suites throws, and what runs throw.
SweepReport run_sweep(const std::vector<Suite>& suites, const SweepOptions& options);

// All meshes with a number of ranks of `ranks`, ascending; an axis that is given is fixed.
std::vector<ParallelSizes> meshes_of(const std::vector<int64_t>& ranks,
                                     std::optional<int64_t> tensor, std::optional<int64_t> context,
                                     std::optional<int64_t> expert);

// A table for each suite, and one line that says whether all hashes agree.
void write_sweep(const SweepReport& report, const TextStyle& style, std::ostream& out);
// Schema 1: {schema, seconds, all_same, suites[]: {name, numerics, prompts[], alone: ROW,
//   rows[]: ROW}}; ROW: {tp, cp, ep, ranks, matched[], hash, same, seconds, peak_bytes}
std::string sweep_json(const SweepReport& report);

}  // namespace deepinfer
