// The subcommands of the `deepinfer-sim` program: one file each, listed in main.cpp.
#pragma once

#include <functional>
#include <string_view>

#include <CLI/CLI.hpp>

#include "platform/environment.h"
#include "platform/errors.h"

namespace deepinfer {

// What a subcommand is given when it runs.
struct CommandContext {
  const Environment& environment;  // resolved once, before any subcommand runs
};

// Runs after the command line was parsed. Data goes to std::cout, talk to std::cerr; failures are
// thrown.
using CommandRun = std::function<ExitCode(const CommandContext& context)>;

struct Command {
  std::string_view name;
  std::string_view summary;  // one line
  std::string_view example;  // command lines with what they do, shown under "Examples:"
  // Declares the options on the subcommand's `app` and returns what runs after parsing. Values live
  // as long as the returned function: keep them in a shared_ptr that it captures.
  CommandRun (*setup)(CLI::App& app);
};

extern const Command kBenchCommand;     // bench.cpp
extern const Command kCheckCommand;     // check.cpp
extern const Command kEnvCommand;       // env.cpp
extern const Command kFormatsCommand;   // formats.cpp
extern const Command kLintCommand;      // lint.cpp
extern const Command kOpsCommand;       // ops.cpp
extern const Command kSweepCommand;     // sweep.cpp
extern const Command kTopologyCommand;  // topology.cpp

}  // namespace deepinfer
