// `deepinfer-sim check`: the main job, the model against golden tokens, logits and layers.
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <unistd.h>

#include "golden/check_config.h"
#include "golden/check_report.h"
#include "golden/check_run.h"
#include "platform/device.h"
#include "platform/nearest_name.h"
#include "sim/ops/host_ops.h"
#include "tools/commands.h"
#include "tools/data_root.h"
#include "tools/terminal.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigInRoot = "configs/check.yaml";

struct Options {
  std::vector<std::string> suites;
  std::string prompt;
  std::string config;
  std::string root;
  std::string model;
  std::string golden;
  std::string numerics;
  std::string arithmetic;  // empty: not given
  std::string junit;
  int64_t chunk = 0;
  int64_t fp8_max = 0;  // 0: not given
  bool layers = false;
  bool json = false;
  bool time = false;
  bool list = false;
};

// The suite that --model, --golden and --numerics describe: every comparison that the bounds of
// those numerics and the golden's data allow decides.
Suite suite_from_options(const Options& options, const CheckConfig& config,
                         const std::string& where) {
  if (options.model.empty() || options.golden.empty()) {
    throw ConfigError({"--model and --golden belong together", "check",
                       "a checkpoint folder and a golden-MODE.json",
                       options.model.empty() ? "--golden only" : "--model only", "give both"});
  }
  Suite suite;
  suite.name = fs::path(options.model).lexically_normal().filename().string();
  if (suite.name.empty()) suite.name = options.model;
  suite.model = options.model;
  suite.golden = options.golden;
  suite.numerics_name = options.numerics;
  if (suite.numerics_name.empty()) {
    const ModelConfig model = load_model_config(suite.model);
    suite.numerics_name = GoldenFile::read(suite.golden, model, make_model_plan(model)).mode;
  }
  suite.numerics = parse_numerics(suite.numerics_name);
  suite.name += '/' + suite.numerics_name;
  const auto bounds = config.bounds.find(suite.numerics_name);
  if (bounds == config.bounds.end()) {
    throw ConfigError({"no bounds for these numerics", where, "bounds named " + suite.numerics_name,
                       "none", "add them to the configuration, or give another with --config"});
  }
  suite.bounds = bounds->second;
  suite.gates.tokens = true;
  suite.gates.logits = suite.bounds.logits.has_value();
  const ModelConfig model = load_model_config(suite.model);
  const GoldenFile golden = GoldenFile::read(suite.golden, model, make_model_plan(model));
  for (const GoldenPrompt& prompt : golden.prompts) {
    suite.gates.traces |= suite.bounds.traces && !prompt.prefill.empty();
    suite.gates.layers |= prompt.prefill.feeds_layers && prompt.decode0.feeds_layers;
  }
  require_bounds_for_gates(suite, where);
  return suite;
}

std::optional<double> chosen_fp8_max(const Options& options, const Environment& environment) {
  if (options.fp8_max != 0) return static_cast<double>(options.fp8_max);
  if (environment.fp8_max()) return static_cast<double>(*environment.fp8_max());
  return std::nullopt;
}

TextStyle terminal_style() {
  const Paint paint(STDOUT_FILENO);
  return {[paint](std::string_view text) { return paint.green(text); },
          [paint](std::string_view text) { return paint.red(text); },
          [paint](std::string_view text) { return paint.dim(text); },
          [paint](std::string_view text) { return paint.bold(text); }};
}

ExitCode run(const Options& options, const Environment& environment) {
  const fs::path root = options.root.empty() ? find_data_root() : fs::path(options.root);
  const fs::path config_path =
      options.config.empty() ? root / kConfigInRoot : fs::path(options.config);
  const CheckConfig config = load_check_config(config_path, root);
  std::vector<Suite> suites = config.suites;
  if (!options.model.empty() || !options.golden.empty()) {
    suites = {suite_from_options(options, config, config_path.string())};
  } else if (!options.numerics.empty()) {
    throw ConfigError({"--numerics belongs to --model and --golden", "check",
                       "--model and --golden", "none",
                       "choose configured suites with --suite 'PATTERN'"});
  }
  if (options.list) {
    for (const Suite& suite : suites) std::cout << suite.name << '\n';
    return ExitCode::kMatch;
  }

  RunOptions run_options;
  run_options.suite_patterns = options.suites;
  run_options.prompt_pattern = options.prompt;
  run_options.chunk = options.chunk;
  run_options.fp8_max = chosen_fp8_max(options, environment);
  if (!options.arithmetic.empty()) {
    run_options.arithmetic = parse_arithmetic(options.arithmetic);
  }
  run_options.time = options.time;
  install_host_kernels();
  run_options.device = select_device(environment);
  const bool live = isatty(STDERR_FILENO) != 0;
  run_options.progress = [live](const std::string& line) {
    if (live) std::cerr << "\r\x1b[K" << line << std::flush;
  };
  const auto clear_progress = [live] {
    if (live) std::cerr << "\r\x1b[K" << std::flush;
  };
  CheckReport report;
  try {
    report = run_check(suites, run_options);
  } catch (...) {
    clear_progress();
    throw;
  }
  clear_progress();
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
  app.add_option("--suite", options->suites,
                 "Suites to run: a name or a pattern with * and ?; may be repeated (default: all)")
      ->type_name("GLOB")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--prompt", options->prompt,
                 "Prompts to run: a name or a pattern; claims are then not checked")
      ->type_name("GLOB");
  app.add_flag("--list", options->list, "Print the names of the suites and stop");
  app.add_option(
         "--config", options->config,
         std::string("Suites, gates and bounds (default: ") + kConfigInRoot + " in the data root)")
      ->type_name("FILE");
  app.add_option(
         "--root", options->root,
         "Data root, where relative paths of the configuration start (default: the installed "
         "data, else the source tree)")
      ->type_name("DIR");
  app.add_option("--model", options->model, "Checkpoint folder to check instead of the suites")
      ->type_name("DIR");
  app.add_option("--golden", options->golden, "golden-MODE.json for --model")->type_name("FILE");
  app.add_option("--numerics", options->numerics,
                 "plain, quant or official, for --model (default: the golden's mode)")
      ->type_name("NAME");
  app.add_option("--arithmetic", options->arithmetic,
                 "canonical (host kernels; the default) or reference (plain ATen, fp64 inside)")
      ->type_name("NAME");
  app.add_option("--chunk", options->chunk, "Prompt tokens a forward (default: the whole prompt)")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  app.add_option(
         "--fp8-max", options->fp8_max,
         "Largest magnitude of the fp8 quantisers (default: DEEPINFER_NEURON_FP8_MAX, else 448, "
         "at which the goldens were made)")
      ->type_name("448|240|224")
      ->check(CLI::IsMember({448, 240, 224}));
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
    "  deepinfer-sim check --junit check.xml --json > check.json\n"
    "\n"
    "A prompt is 9/9 when its first nine greedy tokens are the golden's. A token that differs is a "
    "near\n"
    "tie if the golden margin is at most twice the logit bound (or the noise floor, where no "
    "bound\n"
    "holds), else a failure. A suite whose claimed paths never ran is vacuous.\n"
    "Exit codes: 0 all match; 1 a mismatch; 2 wrong usage, configuration or files; 6 vacuous.",
    setup};

}  // namespace deepinfer
