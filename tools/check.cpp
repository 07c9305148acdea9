// `deepinfer-sim check`: the main job, the model against golden tokens, logits and layers.
#include <iostream>
#include <memory>
#include <string>

#include "golden/check_report.h"
#include "golden/check_run.h"
#include "platform/device.h"
#include "sim/ops/host_ops.h"
#include "tools/commands.h"
#include "tools/rank_options.h"
#include "tools/report_style.h"
#include "tools/suite_options.h"
#include "tools/sweep.h"
#include "tools/terminal.h"

namespace deepinfer {
namespace {

struct Options {
  SuiteOptions suites;
  RankOptions ranks;
  std::string junit;
  int64_t chunk = 0;
  bool layers = false;
  bool json = false;
  bool time = false;
  bool list = false;
};

ExitCode run(const Options& options, const Environment& environment) {
  const auto [suites, selection] = load_suites(options.suites, environment, "check");
  if (options.list) {
    for (const Suite& suite : suites) std::cout << suite.name << '\n';
    return ExitCode::kMatch;
  }

  install_host_kernels();
  const at::Device device = select_device(environment);
  if (!options.ranks.sizes.empty()) {
    if (options.chunk != 0 || options.time || options.layers || !options.junit.empty()) {
      throw ConfigError({"--sizes makes a table of sizes: it goes with --tp, --cp, --ep and --json",
                         "check --sizes", "none of --chunk, --time, --layers, --junit",
                         "one of them", "check one size without --sizes"});
    }
    return sweep(suites, selection, options.ranks, options.ranks.sizes, device, options.json);
  }
  RunOptions run_options;
  run_options.selection = selection;
  run_options.chunk = options.chunk;
  run_options.time = options.time;
  run_options.device = device;
  if (options.ranks.given()) {
    run_options.run = options.ranks.runner(options.ranks.mesh(), ReplicaMode::kEvery);
  }
  Progress progress;
  run_options.progress = [&](const std::string& line) { progress.show(line); };
  CheckReport report = run_check(suites, run_options);
  progress.clear();
  if (options.ranks.given()) {
    const ParallelSizes mesh = options.ranks.mesh();
    report.notes.push_back("on " + std::to_string(mesh.ranks()) +
                           " simulated ranks: " + mesh.text());
  }
  if (!options.junit.empty()) write_file_atomically(options.junit, junit_xml(report));
  if (options.json) {
    std::cout << report_json(report);
  } else {
    write_text(report, {.layers = options.layers, .style = terminal_style()}, std::cout);
  }
  return report.exit_code();
}

CommandRun setup(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  add_suite_options(app, options->suites);
  app.add_flag("--list", options->list, "Print the names of the suites and stop");
  add_rank_options(app, options->ranks);
  app.add_option("--chunk", options->chunk, "Prompt tokens a forward (default: the whole prompt)")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  app.add_flag("--layers", options->layers, "One line a layer in the layer-by-layer table");
  app.add_flag("--json", options->json, "Print JSON (schema in golden/check_report.h)");
  app.add_option("--junit", options->junit, "Also write JUnit XML")->type_name("FILE");
  app.add_flag(
      "--time", options->time,
      "Also run each prompt unwatched, in its numerics, in plain fp32 and by the reference "
      "ops, and print the times");
  return [options](const CommandContext& context) { return run(*options, context.environment); };
}

}  // namespace

const Command kCheckCommand = {
    "check", "Compare the model with golden tokens, logits and layers: the main job",
    "  deepinfer-sim check                                   every suite\n"
    "  deepinfer-sim check --suite 'steady/*' --layers       one model, a line a layer\n"
    "  deepinfer-sim check --suite tiny/plain --prompt p41 --chunk 5\n"
    "  deepinfer-sim check --model DIR --golden DIR/golden-quant.json\n"
    "  deepinfer-sim check --tp 2 --cp 4 --ep 8              on 8 simulated ranks\n"
    "  deepinfer-sim check --suite tiny/plain --cp 8 --sizes pow2\n"
    "                                                        a table of every mesh with cp 8\n"
    "  deepinfer-sim check --junit check.xml --json > check.json\n"
    "\n"
    "A prompt is 9/9 when its first nine greedy tokens are the golden's. A token that differs is a "
    "near\n"
    "tie if the golden margin is at most twice the logit bound (or the noise floor, where no "
    "bound\n"
    "holds), else a failure. A suite whose claimed paths never ran is vacuous.\n"
    "Exit codes: 0 all match; 1 a mismatch; 2 wrong usage, configuration or files; 3 ranks that "
    "disagree; 6 vacuous.",
    setup};

}  // namespace deepinfer
