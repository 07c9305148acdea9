// `deepinfer-sim bench kernels`: each host kernel beside a named peer, in one process and one run.
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <torch/version.h>
#include <unistd.h>

#include "golden/check_run.h"
#include "platform/nearest_name.h"
#include "sim/kernels/target.h"
#include "sim/ops/bench/aten_bench.h"
#include "tools/bench_collectives.h"
#include "tools/bench_ranks.h"
#include "tools/commands.h"
#include "tools/terminal.h"

namespace deepinfer {
namespace {

using nlohmann::ordered_json;

struct Options {
  std::string what;
  std::vector<std::string> kernels;  // names or patterns; empty: all
  std::vector<std::string> targets;  // empty: all that are available, except scalar
  int pairs = KernelBenchOptions().pairs;
  int64_t ranks = CollectiveBenchCommand().ranks;
  int64_t workers = 0;
  bool together = false;
  bool list = false;
  bool json = false;
};

constexpr std::string_view kWhat[] = {"kernels", "collectives", "ranks"};

// What there is to measure; the program grows further ones.
void check_what(const std::string& what) {
  if (std::find(std::begin(kWhat), std::end(kWhat), what) != std::end(kWhat)) return;
  throw ConfigError({.what = "unknown benchmark " + what,
                     .where = "deepinfer-sim bench",
                     .expected = "kernels, collectives or ranks",
                     .found = {},
                     .remedy = did_you_mean(what, kWhat)});
}

// The cases whose kernel a name or pattern matches.
std::vector<KernelBenchCase> chosen_cases(const std::vector<std::string>& patterns) {
  std::vector<KernelBenchCase> all = kernel_bench_cases();
  std::vector<std::string> names;
  for (const KernelBenchCase& bench : all) {
    if (names.empty() || names.back() != bench.kernel) names.push_back(bench.kernel);
  }
  for (const std::string& pattern : patterns) {
    const bool found = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return matches_pattern(pattern, name);
    });
    if (found) continue;
    const bool is_pattern = pattern.find_first_of("*?[") != std::string::npos;
    throw ConfigError(
        {.what = is_pattern ? "no kernel matches " + pattern : "unknown kernel " + pattern,
         .where = "--kernel",
         .expected = "a name or a pattern of `deepinfer-sim bench kernels --list`",
         .found = {},
         .remedy = is_pattern ? "" : did_you_mean(pattern, names)});
  }
  if (patterns.empty()) return all;
  std::erase_if(all, [&](const KernelBenchCase& bench) {
    return std::none_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
      return matches_pattern(pattern, bench.kernel);
    });
  });
  return all;
}

// "1.23e+04" is hard to compare: three digits, without an exponent.
std::string three_digits(double value) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(value < 10 ? 2 : value < 100 ? 1 : 0) << value;
  return text.str();
}

// Left-aligned columns, two spaces apart; the last one as it is.
std::string line_of(const std::vector<std::string>& cells, const std::vector<size_t>& widths) {
  std::ostringstream line;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i + 1 == cells.size()) {
      line << cells[i];
    } else {
      line << std::left << std::setw(static_cast<int>(widths[i] + 2)) << cells[i];
    }
  }
  return line.str() + "\n";
}

// Of kernel names and shapes.
std::pair<size_t, size_t> widths_of(const std::vector<KernelBenchCase>& cases) {
  size_t kernel = 6, shape = 5;
  for (const KernelBenchCase& bench : cases) {
    kernel = std::max(kernel, bench.kernel.size());
    shape = std::max(shape, bench.shape.size());
  }
  return {kernel, shape};
}

// {"schema": 1, "kernels": [{"kernel", "header", "shape", "peer", "targets": ["avx512", ...]}]}
// with one entry for each kernel, shape and peer.
void print_list(const std::vector<KernelBenchCase>& cases, const KernelBenchOptions& bench_options,
                bool json) {
  const auto targets_of = [&](const KernelBenchCase& bench) {
    std::vector<std::string> names;
    if (bench.targets == BenchTargets::kOneForAll) return std::vector<std::string>{"any"};
    for (const Target target : bench_targets(bench, bench_options)) {
      names.emplace_back(target_name(target));
    }
    return names;
  };
  if (json) {
    ordered_json kernels = ordered_json::array();
    for (const KernelBenchCase& bench : cases) {
      kernels.push_back({{"kernel", bench.kernel},
                         {"header", bench.header},
                         {"shape", bench.shape},
                         {"peer", bench.peer},
                         {"targets", targets_of(bench)}});
    }
    std::cout << ordered_json{{"schema", 1}, {"kernels", kernels}}.dump(2) << "\n";
    return;
  }
  const auto [kernel_width, shape_width] = widths_of(cases);
  const std::vector<size_t> widths = {kernel_width, shape_width, 0};
  std::cout << Paint(STDOUT_FILENO).bold(line_of({"kernel", "shape", "peer"}, widths));
  for (const KernelBenchCase& bench : cases) {
    std::cout << line_of({bench.kernel, bench.shape, bench.peer}, widths);
  }
}

ordered_json result_json(const KernelBenchResult& result) {
  return {{"kernel", result.kernel},
          {"shape", result.shape},
          {"target", result.target},
          {"kernel_us", result.kernel_us},
          {"throughput", result.throughput},
          {"peer", result.peer},
          {"peer_us", result.peer_us},
          {"peer_throughput", result.peer_throughput},
          {"unit", result.unit},
          {"ratio", result.ratio},
          {"difference", result.difference ? ordered_json(*result.difference) : ordered_json()},
          {"tolerance", result.difference ? ordered_json(result.tolerance) : ordered_json()},
          {"comparable", result.comparable()}};
}

// Runs the cases and prints results as they come (JSON: at the end). JSON document:
//
//   schema        1
//   machine       features of this machine that kernels look at
//   onednn        version of the GEMM peer, or "none: ..." with the reason
//   libtorch      version of the other peer
//   threads       1
//   pairs         timed turns of kernel and peer
//   results       one object for each kernel, shape, peer and target:
//     kernel, shape, peer, target ("any": one implementation for all targets)
//     kernel_us, peer_us          processor time of a call, median
//     throughput, peer_throughput from the medians, in `unit`: "Gflop/s" or "Gvalue/s" (values that
//                                 a call goes through)
//     ratio         median over pairs of peer time / kernel time: above 1 the kernel is faster
//     difference    between the two results, relative to the largest value (indices and codes: the
//                   share that differs); null if the peer computes something else (a copy)
//     tolerance     what difference may be for the comparison to be fair, or null
//     comparable    difference <= tolerance, or null difference
ExitCode run_kernels(const Options& options, const KernelBenchOptions& bench_options) {
  std::vector<KernelBenchCase> cases = chosen_cases(options.kernels);
  if (options.list) {
    print_list(cases, bench_options, options.json);
    return ExitCode::kMatch;
  }
  std::erase_if(cases, [&](const KernelBenchCase& bench) {
    return bench_targets(bench, bench_options).empty();
  });
  if (cases.empty()) {
    throw ConfigError({.what = "nothing left to measure",
                       .where = "--kernel and --target",
                       .expected = "a kernel that has a form for the target",
                       .found = {},
                       .remedy = "`deepinfer-sim bench kernels --list --json` shows the targets"});
  }
  const AtenBenchScope scope;
  const Paint paint(STDOUT_FILENO);
  const auto [kernel_width, shape_width] = widths_of(cases);
  const std::vector<size_t> widths = {kernel_width, 6, shape_width, 9, 18, 9, 6, 0};
  if (!options.json) {
    std::cout << "machine " << machine_features() << "; oneDNN " << onednn_version()
              << "; libtorch " TORCH_VERSION "; one thread, " << options.pairs << " pairs\n\n"
              << paint.bold(line_of(
                     {"kernel", "target", "shape", "us", "throughput", "peer us", "ratio", "peer"},
                     widths));
  }
  ordered_json results = ordered_json::array();
  std::vector<std::string> unfair;
  for (const KernelBenchCase& bench : cases) {
    for (const KernelBenchResult& result : run_kernel_bench(bench, bench_options)) {
      if (!result.comparable()) {
        std::ostringstream text;
        text << result.kernel << " " << result.shape << " on " << result.target << ": "
             << *result.difference << " apart, at most " << result.tolerance;
        unfair.push_back(text.str());
      }
      if (options.json) {
        results.push_back(result_json(result));
        continue;
      }
      std::cout << line_of(
                       {result.kernel, result.target, result.shape, three_digits(result.kernel_us),
                        three_digits(result.throughput) + " " + result.unit,
                        three_digits(result.peer_us), three_digits(result.ratio), result.peer},
                       widths)
                << std::flush;
    }
  }
  if (options.json) {
    std::cout << ordered_json{{"schema", 1},
                              {"machine", machine_features()},
                              {"onednn", onednn_version()},
                              {"libtorch", TORCH_VERSION},
                              {"threads", 1},
                              {"pairs", options.pairs},
                              {"results", results}}
                     .dump(2)
              << "\n";
  } else {
    std::cout << "\nus: processor time of a call, median. ratio: peer time / kernel time, median "
                 "over pairs; above 1 the kernel is faster.\nThe target is the kernel's; a peer "
                 "takes the instructions that it chooses.\n";
  }
  for (const std::string& one : unfair) {
    std::cerr << paint.yellow("not comparable: ") << one << "\n";
  }
  return unfair.empty() ? ExitCode::kMatch : ExitCode::kMismatch;
}

CommandRun setup(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  app.add_option("WHAT", options->what, "What to measure: kernels, collectives or ranks")
      ->required();
  app.add_option("--kernel", options->kernels,
                 "Kernels to run: a name or a pattern with * and ?; may be repeated (default: all)")
      ->type_name("GLOB")
      ->take_all();
  app.add_option("--target", options->targets,
                 "Targets to run: amx, avx512, avx2, neon or scalar; may be repeated (default: all "
                 "of this machine, except scalar)")
      ->take_all();
  app.add_option("--pairs", options->pairs, "Timed turns of kernel and peer")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  app.add_option("--ranks", options->ranks, "collectives, ranks: number of ranks")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--workers", options->workers,
                 "collectives: threads that run them (0: one a core)")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  app.add_flag("--together", options->together,
               "ranks: prompts as lanes of one batch, as sweep runs them (default: one by one)");
  app.add_flag("--list", options->list, "List kernels, shapes and peers, and run nothing");
  app.add_flag("--json", options->json, "Print JSON");
  return [options](const CommandContext&) {
    check_what(options->what);
    if (options->what != "kernels") {
      if (!options->kernels.empty() || !options->targets.empty() || options->list) {
        throw ConfigError({.what = "an option of `bench kernels`",
                           .where = "deepinfer-sim bench " + options->what,
                           .expected = "--ranks, --pairs, --json",
                           .found = "--kernel, --target or --list"});
      }
      const bool of_ranks = options->what == "ranks";
      if (of_ranks ? options->workers != 0 : options->together) {
        throw ConfigError(
            {.what = "an option of another benchmark",
             .where = "deepinfer-sim bench " + options->what,
             .expected = std::string("--ranks, --pairs, --json, ") +
                         (of_ranks ? "--together (ranks run on one worker)" : "--workers"),
             .found = of_ranks ? "--workers" : "--together"});
      }
      if (of_ranks) {
        return run_rank_bench({.ranks = options->ranks,
                               .pairs = options->pairs,
                               .together = options->together,
                               .json = options->json});
      }
      return run_collective_bench({.ranks = options->ranks,
                                   .workers = options->workers,
                                   .pairs = options->pairs,
                                   .json = options->json});
    }
    KernelBenchOptions bench_options;
    bench_options.pairs = options->pairs;
    for (const std::string& name : options->targets) {
      bench_options.targets.push_back(parse_target(name));
      check_available(bench_options.targets.back());
    }
    return run_kernels(*options, bench_options);
  };
}

}  // namespace

const Command kBenchCommand = {
    "bench",
    "Measure host kernels and collectives beside named peers (oneDNN, memcpy, ATen, MPI), and "
    "ranks",
    "  deepinfer-sim bench kernels                        all kernels, in about a minute\n"
    "  deepinfer-sim bench collectives --pairs 3          barrier and all-reduce of 64 ranks, and "
    "MPI's\n"
    "  deepinfer-sim bench ranks --pairs 3                64 ranks of a model on one worker: "
    "overhead, memory\n"
    "  deepinfer-sim bench kernels --list                 kernels, shapes and peers\n"
    "  deepinfer-sim bench kernels --kernel 'gemm_*' --target avx512 --pairs 51\n"
    "                                                     some kernels, more closely\n"
    "  deepinfer-sim bench kernels --json                 for a script; exit code 1 if a peer's\n"
    "                                                     results are not the kernel's",
    setup};

}  // namespace deepinfer
