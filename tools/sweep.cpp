// `deepinfer-sim sweep`: golden prompts at many sizes of a mesh, logits compared by bits.
#include "tools/sweep.h"

#include <iostream>
#include <memory>

#include "golden/sweep.h"
#include "platform/device.h"
#include "sim/ops/host_ops.h"
#include "tools/commands.h"
#include "tools/report_style.h"
#include "tools/suite_options.h"
#include "tools/terminal.h"

namespace deepinfer {

ExitCode sweep(const std::vector<Suite>& suites, const SuiteSelection& selection,
               const RankOptions& ranks, const std::string& default_sizes, at::Device device,
               bool json) {
  SweepOptions options;
  options.selection = selection;
  options.meshes = ranks.meshes(default_sizes);
  options.load = [device](const std::filesystem::path& directory, const Numerics& numerics) {
    return TextModel::load(directory, numerics, device);
  };
  options.runner = [&](const ParallelSizes& sizes) {
    return ranks.runner(sizes, ReplicaMode::kOnce);
  };
  const Progress progress;
  options.progress = [&](const std::string& line) { progress.show(line); };
  const SweepReport report = run_sweep(suites, options);
  progress.clear();
  if (json) {
    std::cout << sweep_json(report);
  } else {
    write_sweep(report, terminal_style(), std::cout);
  }
  return report.exit_code();
}

namespace {

constexpr const char* kDefaultSuite = "tiny/plain";
constexpr const char* kDefaultSizes = "pow2";

struct Options {
  SuiteOptions suites;
  RankOptions ranks;
  bool json = false;
};

ExitCode run(Options options, const Environment& environment) {
  if (options.suites.suites.empty() && options.suites.model.empty()) {
    options.suites.suites = {kDefaultSuite};
  }
  const auto [suites, selection] = load_suites(options.suites, environment, "sweep");
  install_host_kernels();
  return sweep(suites, selection, options.ranks, kDefaultSizes, select_device(environment),
               options.json);
}

CommandRun setup(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  add_suite_options(app, options->suites);
  add_rank_options(app, options->ranks);
  app.add_flag("--json", options->json, "Print JSON (schema in golden/sweep.h)");
  return [options](const CommandContext& context) { return run(*options, context.environment); };
}

}  // namespace

const Command kSweepCommand = {
    "sweep",
    "Golden prompts on every mesh of tp x cp x ep ranks: tokens, logits' bits, time, memory",
    "  deepinfer-sim sweep                                   tiny/plain on 1, 2, 4, ... 64 ranks\n"
    "  deepinfer-sim sweep --suite 'wide/*' --sizes 3,18,63  other suites, other sizes\n"
    "  deepinfer-sim sweep --cp 4 --sizes all                every mesh with cp 4\n"
    "\n"
    "The world has lcm(tp * cp, ep) ranks. All prompts of a suite run together, each a lane of one "
    "batch;\n"
    "their logits are held against those of one rank that runs them one by one.\n"
    "Exit codes: 0 all hashes agree and tokens are 9/9; 1 not so; 2 wrong usage, configuration or "
    "files;\n"
    "3 ranks that disagree.",
    setup};

}  // namespace deepinfer
