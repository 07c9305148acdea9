#include "tools/suite_options.h"

#include <filesystem>

#include "golden/check_config.h"
#include "platform/errors.h"
#include "tools/data_root.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigInRoot = "configs/check.yaml";

// The suite that --model, --golden and --numerics describe: every comparison that the bounds of
// those numerics and the golden's data allow decides.
Suite suite_from_options(const SuiteOptions& options, const CheckConfig& config,
                         const std::string& where) {
  if (options.model.empty() || options.golden.empty()) {
    throw ConfigError({"--model and --golden belong together", "--model",
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

std::optional<double> chosen_fp8_max(const SuiteOptions& options, const Environment& environment) {
  if (options.fp8_max != 0) return static_cast<double>(options.fp8_max);
  if (environment.fp8_max()) return static_cast<double>(*environment.fp8_max());
  return std::nullopt;
}

}  // namespace

void add_suite_options(CLI::App& app, SuiteOptions& options) {
  app.add_option("--suite", options.suites,
                 "Suites to run: a name or a pattern with * and ?; may be repeated")
      ->type_name("GLOB")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--prompt", options.prompt,
                 "Prompts to run: a name or a pattern; claims are then not checked")
      ->type_name("GLOB");
  app.add_option(
         "--config", options.config,
         std::string("Suites, gates and bounds (default: ") + kConfigInRoot + " in the data root)")
      ->type_name("FILE");
  app.add_option(
         "--root", options.root,
         "Data root, where relative paths of the configuration start (default: the installed "
         "data, else the source tree)")
      ->type_name("DIR");
  app.add_option("--model", options.model, "Checkpoint folder to check instead of the suites")
      ->type_name("DIR");
  app.add_option("--golden", options.golden, "golden-MODE.json for --model")->type_name("FILE");
  app.add_option("--numerics", options.numerics,
                 "plain, quant or official, for --model (default: the golden's mode)")
      ->type_name("NAME");
  app.add_option("--arithmetic", options.arithmetic,
                 "canonical (host kernels; the default) or reference (plain ATen, fp64 inside)")
      ->type_name("NAME");
  app.add_option(
         "--fp8-max", options.fp8_max,
         "Largest magnitude of the fp8 quantisers (default: DEEPINFER_NEURON_FP8_MAX, else 448, "
         "at which the goldens were made)")
      ->type_name("448|240|224")
      ->check(CLI::IsMember({448, 240, 224}));
}

std::pair<std::vector<Suite>, SuiteSelection> load_suites(const SuiteOptions& options,
                                                          const Environment& environment,
                                                          const std::string& command) {
  const fs::path root = options.root.empty() ? find_data_root() : fs::path(options.root);
  const fs::path config_path =
      options.config.empty() ? root / kConfigInRoot : fs::path(options.config);
  const CheckConfig config = load_check_config(config_path, root);
  std::vector<Suite> suites = config.suites;
  if (!options.model.empty() || !options.golden.empty()) {
    suites = {suite_from_options(options, config, config_path.string())};
  } else if (!options.numerics.empty()) {
    throw ConfigError({"--numerics belongs to --model and --golden", command,
                       "--model and --golden", "none",
                       "choose configured suites with --suite 'PATTERN'"});
  }
  SuiteSelection selection;
  selection.suite_patterns = options.suites;
  selection.prompt_pattern = options.prompt;
  selection.fp8_max = chosen_fp8_max(options, environment);
  if (!options.arithmetic.empty()) selection.arithmetic = parse_arithmetic(options.arithmetic);
  return {std::move(suites), std::move(selection)};
}

}  // namespace deepinfer
