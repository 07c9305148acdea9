// Command-line options that choose a mesh of simulated ranks and how they run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "golden/sweep.h"
#include "tools/rank_runner.h"

namespace deepinfer {

struct RankOptions {
  std::optional<int64_t> tensor, context, expert;
  std::string sizes;       // empty: not given
  std::string replicated;  // likewise
  std::string executor;
  std::optional<uint64_t> schedule;
  int64_t workers = 0;  // 0: one a core

  // Whether a mesh was asked for, of one rank or more.
  bool given() const;
  ParallelSizes mesh() const;  // axes that are not given are 1
  // Throws ConfigError for a name that does not exist. `replicated` where none is given.
  ModelRunner runner(const ParallelSizes& sizes, ReplicaMode replicated) const;
  // Meshes of --sizes (or of `default_sizes`), with the axes that are given fixed. Throws
  // ConfigError for a list that cannot be read or that no mesh fits.
  std::vector<ParallelSizes> meshes(const std::string& default_sizes) const;
};

void add_rank_options(CLI::App& app, RankOptions& options);

}  // namespace deepinfer
