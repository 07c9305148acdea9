// A table of meshes: what `sweep` and `check --sizes` print.
#pragma once

#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "golden/planned_suite.h"
#include "platform/errors.h"
#include "tools/rank_options.h"

namespace deepinfer {

// Meshes with a number of ranks of --sizes, by default `default_sizes`.
ExitCode sweep(const std::vector<Suite>& suites, const SuiteSelection& selection,
               const RankOptions& ranks, const std::string& default_sizes, at::Device device,
               bool json);

}  // namespace deepinfer
