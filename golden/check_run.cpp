#include "golden/check_run.h"

#include <algorithm>
#include <sstream>

#include "golden/planned_suite.h"

namespace deepinfer {
namespace {

// Keeps the model that was loaded last: suites that share one follow each other.
class ModelCache {
 public:
  explicit ModelCache(const RunOptions& options) : options_(options) {}

  std::shared_ptr<const TextModel> get(const std::filesystem::path& directory,
                                       const Numerics& numerics) {
    if (!model_ || directory != directory_ || !(model_->numerics() == numerics)) {
      model_.reset();
      model_ = options_.load ? options_.load(directory, numerics)
                             : TextModel::load(directory, numerics, options_.device);
      directory_ = directory;
    }
    return model_;
  }

 private:
  const RunOptions& options_;
  std::filesystem::path directory_;
  std::shared_ptr<const TextModel> model_;
};

std::string step_text(size_t step, const StepComparison& comparison) {
  std::ostringstream text;
  text << "token " << step + 1 << ": expected " << comparison.expected << ", found "
       << (comparison.found == kNoToken ? "none, logits are not finite"
                                        : std::to_string(comparison.found))
       << "; golden margin " << comparison.margin << ", tolerance " << comparison.tolerance
       << (comparison.bounded ? " (logit bound)" : " (noise floor)");
  return text.str();
}

void judge(const Suite& suite, PromptReport& report) {
  const GenerationResult& generation = report.generation;
  for (size_t step = 0; step < generation.steps.size(); ++step) {
    const StepComparison& comparison = generation.steps[step];
    if (comparison.matches() || step >= static_cast<size_t>(kCountedTokens)) continue;
    if (comparison.near_tie()) {
      report.explained.push_back("near tie: " + step_text(step, comparison));
    } else if (suite.gates.tokens) {
      report.failures.push_back(step_text(step, comparison));
    } else {
      report.explained.push_back("more than a near tie, tokens do not gate here: " +
                                 step_text(step, comparison));
    }
  }
  const StepComparison* worst = generation.largest_difference(true);
  if (suite.gates.logits && worst != nullptr && worst->exceeds_bound()) {
    std::ostringstream text;
    text << "token " << worst - generation.steps.data() + 1 << ": logit " << worst->difference_token
         << " differs by " << worst->difference << ", bound " << worst->tolerance;
    report.failures.push_back(text.str());
  }
  if (suite.gates.traces && generation.first_difference) {
    const FirstDifference& first = *generation.first_difference;
    report.failures.push_back("first difference: " + first.forward + ' ' + first.layer_text() +
                              ' ' + first.name + " row " + std::to_string(first.row) +
                              ": expected " + first.expected + ", found " + first.found);
  }
  if (suite.gates.layers && report.layers) {
    for (const LayerComparison& layer : report.layers->layers) {
      for (const std::string& failure : layer.failures) {
        report.failures.push_back("on golden inputs, layer " + layer.layer_text() + ": " + failure);
      }
    }
  }
}

void find_vacuous(SuiteReport& report) {
  for (const Path path : report.suite.claims) {
    if (report.coverage.count(path) > 0) continue;
    const auto& paths = all_paths();
    const auto info = std::find_if(paths.begin(), paths.end(),
                                   [&](const PathInfo& item) { return item.path == path; });
    report.vacuous.push_back("claims " + std::string(info->name) + " (" + std::string(info->what) +
                             "), which never happened");
  }
  const auto any = [&](auto predicate) {
    return std::any_of(report.prompts.begin(), report.prompts.end(), predicate);
  };
  if (report.suite.gates.logits &&
      !any([](const PromptReport& p) { return p.generation.bounded_steps() > 0; })) {
    report.vacuous.push_back("gates logits, but the bound holds at no step");
  }
  if (report.suite.gates.traces &&
      !any([](const PromptReport& p) { return !p.generation.prefill.empty(); })) {
    report.vacuous.push_back("gates traces, but no prompt has any");
  }
  if (report.suite.gates.layers &&
      !any([](const PromptReport& p) { return p.layers.has_value(); })) {
    report.vacuous.push_back("gates layers, but no prompt has a trace that can feed them");
  }
}

PromptReport run_prompt(const TextModel& model, const GoldenPrompt& prompt, const Suite& suite,
                        const RunOptions& options, Coverage& coverage) {
  PromptReport report;
  report.name = prompt.name;
  report.generation = check_generation(model, prompt, suite.bounds,
                                       {.chunk = options.chunk, .coverage = &coverage});
  if (prompt.prefill.feeds_layers && prompt.decode0.feeds_layers) {
    report.layers = check_layers(model, prompt, suite.bounds.layers, options.chunk);
  }
  judge(suite, report);
  return report;
}

void run_on(const RunOptions& options, const TextModel& model, Coverage* coverage,
            const std::function<void(const TextModel&)>& body) {
  if (options.run) {
    options.run(model, coverage, body);
  } else {
    body(model);
  }
}

void time_suite(const PlannedSuite& plan, const TextModel& model, const TextModel& plain,
                const TextModel& reference, const RunOptions& options, SuiteReport& report) {
  for (size_t i = 0; i < plan.prompts.size(); ++i) {
    // Alternating, the better of two: the first round also warms caches and thread pools.
    for (int round = 0; round < 2; ++round) {
      const auto keep_better = [&](std::optional<double>& best, const TextModel& timed) {
        run_on(options, timed, nullptr, [&](const TextModel& running) {
          const double seconds = time_generation(running, *plan.prompts[i], options.chunk);
          best = best ? std::min(*best, seconds) : seconds;
        });
      };
      keep_better(report.prompts[i].unwatched_seconds, model);
      keep_better(report.prompts[i].plain_seconds, plain);
      keep_better(report.prompts[i].reference_seconds, reference);
    }
  }
}

}  // namespace

bool SuiteReport::failed() const {
  return std::any_of(prompts.begin(), prompts.end(),
                     [](const PromptReport& prompt) { return !prompt.failures.empty(); });
}

CheckCounts CheckReport::counts() const {
  CheckCounts counts;
  counts.suites = static_cast<int64_t>(suites.size());
  counts.vacuous = vacuous.empty() ? 0 : 1;
  for (const SuiteReport& suite : suites) {
    counts.vacuous += !suite.vacuous.empty();
    for (const PromptReport& prompt : suite.prompts) {
      ++counts.prompts;
      counts.at_nine += prompt.generation.matched() == kCountedTokens;
      counts.failed += !prompt.failures.empty();
      if (suite.suite.information_only()) {
        ++counts.information_only;
      } else {
        counts.near_ties += prompt.generation.near_ties();
      }
    }
  }
  return counts;
}

ExitCode CheckReport::exit_code() const {
  const CheckCounts totals = counts();
  if (totals.failed > 0) return ExitCode::kMismatch;
  return totals.vacuous > 0 ? ExitCode::kVacuous : ExitCode::kMatch;
}

CheckReport run_check(const std::vector<Suite>& suites, const RunOptions& options) {
  const std::vector<PlannedSuite> planned = plan_suites(suites, options.selection);
  CheckReport report;
  const auto is_other_fp8 = [&](const PlannedSuite& plan) {
    return quantises(plan.suite.numerics) && plan.suite.numerics.fp8_max != kGoldenFp8Max;
  };
  if (std::any_of(planned.begin(), planned.end(), is_other_fp8)) {
    std::ostringstream note;
    note << "fp8_max is " << *options.selection.fp8_max << ", the goldens were made at "
         << kGoldenFp8Max
         << ": in suites with quantisers tokens are still held to the golden, numbers are only "
            "shown";
    report.notes.push_back(note.str());
  }
  ModelCache models(options);
  ModelCache plain_models(options), reference_models(options);
  for (const PlannedSuite& plan : planned) {
    SuiteReport suite;
    suite.suite = plan.suite;
    suite.prompts_in_golden = static_cast<int64_t>(plan.golden.prompts.size());
    const auto model = models.get(plan.suite.model, plan.suite.numerics);
    for (const GoldenPrompt* prompt : plan.prompts) {
      if (options.progress) options.progress(plan.suite.name + ' ' + prompt->name);
      run_on(options, *model, &suite.coverage, [&](const TextModel& running) {
        suite.prompts.push_back(run_prompt(running, *prompt, plan.suite, options, suite.coverage));
      });
    }
    if (options.time) {
      if (options.progress) options.progress(plan.suite.name + ", timing");
      Numerics plain = Numerics::plain(), reference = plan.suite.numerics;
      plain.arithmetic = plan.suite.numerics.arithmetic;
      reference.arithmetic = Arithmetic::kReference;
      time_suite(plan, *model, *plain_models.get(plan.suite.model, plain),
                 *reference_models.get(plan.suite.model, reference), options, suite);
    }
    suite.claims_checked = plan.prompts.size() == plan.golden.prompts.size();
    if (suite.claims_checked) find_vacuous(suite);
    report.suites.push_back(std::move(suite));
  }
  // By length, not by coverage: a forward cannot tell a one-token prompt chunk from a decode step.
  const auto is_chunked = [&](const PlannedSuite& plan) {
    return std::any_of(plan.prompts.begin(), plan.prompts.end(), [&](const GoldenPrompt* prompt) {
      return static_cast<int64_t>(prompt->tokens.size()) > options.chunk;
    });
  };
  if (options.chunk > 0 && std::none_of(planned.begin(), planned.end(), is_chunked)) {
    report.vacuous.push_back("--chunk " + std::to_string(options.chunk) +
                             ": no prompt is longer, so none was chunked");
  }
  return report;
}

}  // namespace deepinfer
