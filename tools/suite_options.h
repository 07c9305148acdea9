// Command-line options that choose suites, prompts and numerics.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "golden/planned_suite.h"
#include "platform/environment.h"

namespace deepinfer {

struct SuiteOptions {
  std::vector<std::string> suites;
  std::string prompt;
  std::string config;
  std::string root;
  std::string model;
  std::string golden;
  std::string numerics;
  std::string arithmetic;  // empty: not given
  int64_t fp8_max = 0;     // 0: not given
};

void add_suite_options(CLI::App& app, SuiteOptions& options);

// The configured suites, or the one of --model and --golden, and what of them was asked for. Throws
// ConfigError; `command` names the subcommand in messages.
std::pair<std::vector<Suite>, SuiteSelection> load_suites(const SuiteOptions& options,
                                                          const Environment& environment,
                                                          const std::string& command);

}  // namespace deepinfer
