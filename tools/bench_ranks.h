// `deepinfer-sim bench ranks`: one model on many simulated ranks of one worker.
#pragma once

#include <cstdint>

#include "platform/errors.h"

namespace deepinfer {

struct RankBenchCommand {
  int64_t ranks = 64;
  int pairs = 3;
  bool together = false;  // prompts as lanes of one batch, as `sweep` runs them; else one by one
  bool json = false;
};

// Runs prompts of wide/official, prefill and nine tokens each, on one rank and on meshes of `ranks`
// ranks on one worker, in turns, both with the same work: with every rank computing what is
// replicated, and with one for all. Prints medians of the times, the share of the executor, the
// communicator and the comparisons, and peaks of the resident set. JSON: {schema: 1, ranks, pairs,
// together, prompts[], one_rank: {seconds, peak_bytes}, meshes: [{tp, cp, ep, every: {seconds,
// overhead, comparing, peak_bytes}, once: {seconds, ratio, overhead, peak_bytes}}]}.
ExitCode run_rank_bench(const RankBenchCommand& command);

}  // namespace deepinfer
