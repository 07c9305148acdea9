// `deepinfer-sim ops`: the conformance suite of all ops, on every kernel target or on a device.
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "golden/conformance/conformance.h"
#include "golden/conformance/conformance_report.h"
#include "platform/device.h"
#include "platform/nearest_name.h"
#include "sim/kernels/target.h"
#include "sim/ops/host_ops.h"
#include "tools/commands.h"
#include "tools/report_style.h"
#include "tools/terminal.h"

namespace deepinfer {
namespace {

struct Options {
  std::string device;  // empty: not given
  std::vector<std::string> ops;
  std::vector<std::string> targets;
  int64_t case_number = -1;  // -1: not given
  uint64_t seed = 1;
  bool json = false;
  bool list = false;
};

at::Device chosen_device(const Options& options, const Environment& environment) {
  if (options.device.empty()) return select_device(environment);
  const std::vector<std::string_view> known = {"cpu", "neuron"};
  if (options.device != "cpu" && options.device != "neuron") {
    throw ConfigError({.what = "unknown device '" + options.device + "'",
                       .where = "--device",
                       .expected = "cpu or neuron",
                       .found = options.device,
                       .remedy = did_you_mean(options.device, known)});
  }
  return select_device(Environment({{"DEEPINFER_NEURON_DEVICE", options.device}}));
}

// On the host the canonical kernels on each target; on a device whatever it has for the op.
std::vector<conformance::Implementation> implementations_of(const Options& options,
                                                            const at::Device& device) {
  if (is_neuron(device)) {
    if (!options.targets.empty()) {
      throw ConfigError({.what = "--target belongs to --device cpu",
                         .where = "ops",
                         .expected = "no --target",
                         .found = "--target " + options.targets.front(),
                         .remedy = "leave one of them out"});
    }
    return {{"neuron", [](const std::function<conformance::Tensors()>& op) { return op(); }}};
  }
  std::vector<Target> targets(available_targets().begin(), available_targets().end());
  if (!options.targets.empty()) {
    targets.clear();
    for (const std::string& name : options.targets) {
      const Target target = parse_target(name);
      check_available(target);
      if (std::find(targets.begin(), targets.end(), target) == targets.end()) {
        targets.push_back(target);
      }
    }
  }
  std::vector<conformance::Implementation> made;
  for (const Target target : targets) {
    made.push_back({"canonical/" + std::string(target_name(target)),
                    [target](const std::function<conformance::Tensors()>& op) {
                      const TargetScope scope(target);
                      return op();
                    }});
  }
  return made;
}

ExitCode run(const Options& options, const Environment& environment) {
  const at::Device device = chosen_device(options, environment);
  conformance::ConformanceOptions run_options;
  run_options.seed = options.seed;
  run_options.device = device;
  run_options.order =
      is_neuron(device) ? conformance::SumOrder::kAny : conformance::SumOrder::kCanonical;
  run_options.op_patterns = options.ops;
  const bool one_case = options.case_number >= 0;
  if (one_case) run_options.case_number = options.case_number;
  if (options.list) {
    for (const conformance::OpCase* one : conformance::chosen_cases(run_options)) {
      std::cout << one->op << " " << one->number << "  " << one->name << '\n';
    }
    return ExitCode::kMatch;
  }
  install_host_kernels();
  const Progress progress;
  run_options.progress = [&](const std::string& op) { progress.show(op); };
  const conformance::ConformanceReport report =
      conformance::run_conformance(implementations_of(options, device), run_options);
  progress.clear();
  if (options.json) {
    std::cout << conformance::report_json(report, one_case);
  } else {
    conformance::write_text(report, one_case, terminal_style(), std::cout);
  }
  return report.exit_code();
}

CommandRun setup(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  app.add_option("--device", options->device,
                 "cpu (canonical kernels on every target) or neuron (default: "
                 "DEEPINFER_NEURON_DEVICE)")
      ->type_name("NAME");
  app.add_option("--op", options->ops,
                 "Ops to run: a name or a pattern with * and ?; may be repeated (default: all)")
      ->type_name("GLOB")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--case", options->case_number,
                 "One case of each of these ops, in detail (numbers: --list)")
      ->type_name("N")
      ->check(CLI::Range(int64_t{0}, int64_t{std::numeric_limits<int32_t>::max()}));
  app.add_option("--seed", options->seed, "Seed of the random inputs")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--target", options->targets,
                 "Kernel targets to run: amx, avx512, avx2, neon, scalar; may be repeated "
                 "(default: all that this machine has)")
      ->type_name("NAME")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_flag("--list", options->list, "Print the cases and stop");
  app.add_flag("--json", options->json,
               "Print JSON (schema in golden/conformance/conformance_report.h)");
  return [options](const CommandContext& context) { return run(*options, context.environment); };
}

}  // namespace

const Command kOpsCommand = {
    "ops", "Run every op over dtypes, shapes and values, against its reference and on all targets",
    "  deepinfer-sim ops                               every op on every kernel target\n"
    "  deepinfer-sim ops --op '*linear' --seed 7       some ops, other numbers\n"
    "  deepinfer-sim ops --op linear --case 17         one case in detail\n"
    "  deepinfer-sim ops --target scalar --json        for a script\n"
    "  deepinfer-sim ops --device neuron               the same list against a device\n"
    "\n"
    "All targets must give the same bits, and every result must lie within a bound derived from\n"
    "the op's roundings around the fp64 truth. worst ulp: largest difference from the reference, "
    "in\n"
    "units of the output's last place (of at least 2^-8 of its row's largest); nmse: squared "
    "error\n"
    "over squared reference; bound used: largest share of the bound, at most 1. Equal digests of "
    "two\n"
    "runs mean equal bits in every result.\n"
    "Exit codes: 0 all match; 1 a mismatch; 2 wrong usage; 6 nothing was compared.",
    setup};

}  // namespace deepinfer
