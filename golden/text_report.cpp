// The check's report for people: tables of prompts, layers and coverage, and one line at the end.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <sstream>

#include "golden/check_report.h"

namespace deepinfer {
namespace {

std::string scientific(double value) {
  if (std::isinf(value)) return "inf";
  if (value == 0) return "0";
  char text[32];
  std::snprintf(text, sizeof text, "%.2e", value);
  return text;
}

std::string decimal(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string ratio_text(int64_t part, int64_t whole) {
  return std::to_string(part) + '/' + std::to_string(whole);
}

std::string tokens_text(const GenerationResult& generation) {
  return ratio_text(generation.matched(), kCountedTokens);
}

// Bounded steps only, where there are any: their bound is what the figure is to be read against.
std::string logits_text(const GenerationResult& generation) {
  const StepComparison* worst = generation.largest_difference(generation.bounded_steps() > 0);
  return worst == nullptr ? "-" : scientific(worst->difference);
}

std::string bound_text(const GenerationResult& generation) {
  const int64_t bounded = generation.bounded_steps();
  if (bounded == 0) return "none";
  std::string text = scientific(generation.largest_difference(true)->tolerance);
  const auto steps = static_cast<int64_t>(generation.steps.size());
  if (bounded < steps) text += " (" + ratio_text(bounded, steps) + " steps)";
  return text;
}

std::string first_difference_text(const Suite& suite, const PromptReport& prompt) {
  if (prompt.generation.first_difference) {
    const FirstDifference& first = *prompt.generation.first_difference;
    return first.forward + ' ' + first.layer_text() + ' ' + first.name;
  }
  if (prompt.layers && prompt.layers->first_failure() != nullptr) {
    const LayerComparison& layer = *prompt.layers->first_failure();
    return (layer.layer == kFinalLayer ? "" : "layer ") + layer.layer_text();
  }
  // "none" is a finding: only where something was compared against a bound.
  const bool compared = (suite.bounds.traces && !prompt.generation.prefill.empty()) ||
                        (suite.gates.layers && prompt.layers);
  return compared ? "none" : "-";
}

std::string result_text(const Suite& suite, const PromptReport& prompt) {
  if (!prompt.failures.empty()) return "FAILED";
  if (suite.information_only()) return "information only";
  return prompt.generation.near_ties() == 0 ? "ok" : "ok, near tie";
}

void write_prompts(const CheckReport& report, const TextStyle& style, std::ostream& out) {
  bool timed = false;
  for (const SuiteReport& suite : report.suites) {
    for (const PromptReport& prompt : suite.prompts) timed = timed || prompt.plain_seconds;
  }
  std::vector<std::string> heading = {"suite",      "prompt", "tokens",           "margin",
                                      "logit diff", "bound",  "first difference", "seconds"};
  if (timed) {
    for (const char* name : {"unwatched", "plain", "reference", "ref. ratio"})
      heading.emplace_back(name);
  }
  heading.emplace_back("result");
  Table table(heading);
  double unwatched = 0, reference = 0;
  for (const SuiteReport& suite : report.suites) {
    for (const PromptReport& prompt : suite.prompts) {
      const GenerationResult& generation = prompt.generation;
      std::vector<std::string> cells = {suite.suite.name,
                                        prompt.name,
                                        tokens_text(generation),
                                        scientific(generation.smallest_margin()),
                                        logits_text(generation),
                                        bound_text(generation),
                                        first_difference_text(suite.suite, prompt),
                                        decimal(generation.seconds, 3)};
      if (timed) {
        cells.push_back(decimal(*prompt.unwatched_seconds, 3));
        cells.push_back(decimal(*prompt.plain_seconds, 3));
        cells.push_back(decimal(*prompt.reference_seconds, 3));
        cells.push_back(decimal(*prompt.reference_seconds / *prompt.unwatched_seconds, 1));
        unwatched += *prompt.unwatched_seconds;
        reference += *prompt.reference_seconds;
      }
      cells.push_back(result_text(suite.suite, prompt));
      table.add(cells, !prompt.failures.empty()         ? style.bad
                       : suite.suite.information_only() ? style.quiet
                                                        : style.good);
    }
  }
  table.write(style, out);
  if (timed) {
    out << "  The same forwards unwatched took " << decimal(unwatched, 2)
        << " s, by the reference ops " << decimal(reference, 2)
        << " s: " << decimal(reference / unwatched, 1) << " times as long.\n";
  }
}

std::string selections_text(int64_t different, int64_t rows) {
  return rows == 0 ? "-" : ratio_text(different, rows);
}

// "99.98 %", rounded down, so that only all of them are 100 %.
std::string share_text(int64_t part, int64_t whole) {
  if (whole == 0) return "-";
  const double percent = 100 * static_cast<double>(part) / static_cast<double>(whole);
  return decimal(std::floor(percent * 100) / 100, 2) + " %";
}

std::vector<std::string> layer_cells(const LayerComparison& layer, bool has_row_bound) {
  return {scientific(layer.median),
          scientific(layer.row_median),
          scientific(layer.largest),
          ratio_text(layer.bit_equal_rows, layer.rows),
          share_text(layer.within_bf16_ulp, layer.stream_values),
          has_row_bound ? ratio_text(layer.rows_within, layer.rows) : "-",
          selections_text(layer.different_selections, layer.selection_rows),
          std::to_string(layer.different_addresses),
          scientific(layer.coefficient_largest),
          layer.failures.empty() ? "ok" : "FAILED"};
}

// The worst of a prompt's layers in each column.
LayerComparison worst_layer(const std::vector<LayerComparison>& layers) {
  LayerComparison worst = layers.front();
  for (const LayerComparison& layer : layers) {
    worst.median = std::max(worst.median, layer.median);
    worst.row_median = std::max(worst.row_median, layer.row_median);
    worst.largest = std::max(worst.largest, layer.largest);
    worst.bit_equal_rows = std::min(worst.bit_equal_rows, layer.bit_equal_rows);
    if (layer.within_bf16_ulp * worst.stream_values <
        worst.within_bf16_ulp * layer.stream_values) {  // the smaller share
      worst.within_bf16_ulp = layer.within_bf16_ulp;
      worst.stream_values = layer.stream_values;
    }
    worst.rows_within = std::min(worst.rows_within, layer.rows_within);
    worst.coefficient_largest = std::max(worst.coefficient_largest, layer.coefficient_largest);
    if (&layer == &layers.front()) continue;
    worst.different_selections += layer.different_selections;
    worst.selection_rows += layer.selection_rows;
    worst.different_addresses += layer.different_addresses;
    worst.failures.insert(worst.failures.end(), layer.failures.begin(), layer.failures.end());
  }
  return worst;
}

void write_layers(const CheckReport& report, bool each_layer, const TextStyle& style,
                  std::ostream& out) {
  Table table({"suite", "prompt", "layer", "median", "row median", "largest", "bit-equal",
               "in bf16 ulp", "in bound", "selections", "engram rows", "coefficients", "result"});
  for (const SuiteReport& suite : report.suites) {
    const bool gates = suite.suite.gates.layers;
    const bool has_row_bound = suite.suite.bounds.layers.row_difference.has_value();
    for (const PromptReport& prompt : suite.prompts) {
      if (!prompt.layers) continue;
      const auto add = [&](const LayerComparison& layer, const std::string& name) {
        std::vector<std::string> cells = {suite.suite.name, prompt.name, name};
        for (std::string& cell : layer_cells(layer, has_row_bound))
          cells.push_back(std::move(cell));
        if (!gates) cells.back() = "information only";
        table.add(cells, !gates ? style.quiet : layer.failures.empty() ? style.good : style.bad);
      };
      if (each_layer) {
        for (const LayerComparison& layer : prompt.layers->layers) add(layer, layer.layer_text());
      } else {
        add(worst_layer(prompt.layers->layers),
            "worst of " + std::to_string(prompt.layers->layers.size()));
      }
    }
  }
  if (table.empty()) return;
  out << '\n'
      << style.title("Layer by layer on golden inputs, prompt and first decode step:") << '\n';
  table.write(style, out);
  out << "  Of |stream difference|: median over the prompt's rows, largest median of one row, "
         "largest.\n"
         "  bit-equal: rows whose streams all round to the same bf16. in bf16 ulp: share of the "
         "streams\'\n"
         "  values that are within one bf16 ulp. selections: rows with "
         "another top-k\n"
         "  set or other experts. coefficients: largest difference of collapse weights, gates and "
         "expert\n"
         "  weights. \"final\" follows from the last layer's own output.\n";
}

// One path's count over the run, and the suites that claim it.
struct PathSummary {
  int64_t count = 0;
  int64_t suites = 0;  // that ran it
  int64_t claims = 0;
};

void write_coverage(const CheckReport& report, const TextStyle& style, std::ostream& out) {
  out << '\n' << style.title("Paths that ran:") << '\n';
  Table table({"path", "count", "in suites", "claimed by", "what"});
  for (const PathInfo& info : all_paths()) {
    PathSummary summary;
    for (const SuiteReport& suite : report.suites) {
      const int64_t count = suite.coverage.count(info.path);
      summary.count += count;
      summary.suites += count > 0;
      const auto& claims = suite.suite.claims;
      summary.claims += std::find(claims.begin(), claims.end(), info.path) != claims.end();
    }
    const auto suites = static_cast<int64_t>(report.suites.size());
    table.add({std::string(info.name), std::to_string(summary.count),
               ratio_text(summary.suites, suites), ratio_text(summary.claims, suites),
               std::string(info.what)});
  }
  table.write(style, out);

  out << '\n' << style.title("Expert choices by layer, fewest-most of an expert:") << '\n';
  for (const SuiteReport& suite : report.suites) {
    std::ostringstream line;
    for (const auto& [layer, hits] : suite.coverage.expert_hits()) {
      if (hits.empty()) continue;
      const auto [fewest, most] = std::minmax_element(hits.begin(), hits.end());
      line << "  " << layer << ": " << *fewest << '-' << *most;
    }
    out << suite.suite.name << line.str() << '\n';
  }
}

void write_findings(const CheckReport& report, const TextStyle& style, std::ostream& out) {
  const auto write = [&](const std::string& where, const std::string& text) {
    out << "  " << where << ": " << text << '\n';
  };
  std::ostringstream failures, explained, vacuous;
  for (const SuiteReport& suite : report.suites) {
    for (const PromptReport& prompt : suite.prompts) {
      const std::string where = suite.suite.name + ' ' + prompt.name;
      for (const std::string& text : prompt.failures)
        failures << "  " << where << ": " << text << '\n';
      for (const std::string& text : prompt.explained) {
        explained << "  " << where << ": " << text << '\n';
      }
    }
    for (const std::string& text : suite.vacuous) {
      vacuous << "  " << suite.suite.name << ": " << text << '\n';
    }
  }
  for (const std::string& text : report.vacuous) vacuous << "  " << text << '\n';
  if (!explained.str().empty()) {
    out << '\n' << style.title("Tokens that differ without failing:") << '\n' << explained.str();
  }
  if (!failures.str().empty()) {
    out << '\n' << style.bad("Failures:") << '\n' << failures.str();
  }
  if (!vacuous.str().empty()) {
    out << '\n' << style.bad("Vacuous:") << '\n' << vacuous.str();
  }
  bool has_title = false;
  for (const SuiteReport& suite : report.suites) {
    if (suite.claims_checked) continue;
    if (!has_title) out << '\n' << style.title("Claims not checked:") << '\n';
    has_title = true;
    write(suite.suite.name,
          "only " +
              ratio_text(static_cast<int64_t>(suite.prompts.size()), suite.prompts_in_golden) +
              " prompts ran");
  }
  if (!report.notes.empty()) out << '\n';
  for (const std::string& note : report.notes) out << "note: " << note << '\n';
}

}  // namespace

std::string summary_line(const CheckReport& report) {
  const CheckCounts counts = report.counts();
  const auto plural = [](int64_t count, const char* name) {
    return std::to_string(count) + ' ' + name + (count == 1 ? "" : "s");
  };
  std::string line = plural(counts.suites, "suite") + ", " + plural(counts.prompts, "prompt") +
                     ": " + std::to_string(counts.at_nine) + " at 9/9, " +
                     std::to_string(counts.failed) + " failed, " + std::to_string(counts.vacuous) +
                     " vacuous";
  if (counts.near_ties > 0) line += ", " + plural(counts.near_ties, "near tie");
  if (counts.information_only > 0) {
    line += ", " + std::to_string(counts.information_only) + " information only";
  }
  return line;
}

void write_text(const CheckReport& report, const TextOptions& options, std::ostream& out) {
  const TextStyle& style = options.style;
  write_prompts(report, style, out);
  write_layers(report, options.layers, style, out);
  write_coverage(report, style, out);
  write_findings(report, style, out);
  const bool good = report.exit_code() == ExitCode::kMatch;
  out << '\n' << (good ? style.good : style.bad)(summary_line(report)) << '\n';
}

}  // namespace deepinfer
