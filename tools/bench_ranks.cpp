#include "tools/bench_ranks.h"

#include <algorithm>
#include <chrono>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

#include "golden/generation_check.h"
#include "golden/golden_file.h"
#include "golden/sweep.h"
#include "platform/process_memory.h"
#include "sim/ops/host_ops.h"
#include "tools/data_root.h"
#include "tools/rank_runner.h"

namespace deepinfer {
namespace {

using nlohmann::ordered_json;

struct Measurement {
  std::vector<double> seconds, overhead, comparing;  // a turn each; shares of the time
  int64_t peak_bytes = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One turn of all prompts by `run`.
void measure(Measurement& measurement, const RankTimes* times, const std::function<void()>& run) {
  const bool has_peak = reset_peak_resident();
  const auto start = std::chrono::steady_clock::now();
  run();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  measurement.seconds.push_back(seconds);
  if (has_peak) measurement.peak_bytes = std::max(measurement.peak_bytes, peak_resident_bytes());
  if (times == nullptr) return;
  measurement.comparing.push_back(times->comparing / seconds);
  measurement.overhead.push_back(1 - (times->computing - times->comparing) / seconds);
}

// Every axis alone, the two that share ranks, and all three.
std::vector<ParallelSizes> meshes(int64_t ranks) {
  std::vector<ParallelSizes> meshes = {
      {ranks, 1, 1}, {1, ranks, 1}, {1, 1, ranks}, {1, ranks, ranks}};
  if (ranks % 8 == 0) meshes.push_back({8, ranks / 8, ranks});
  return meshes;
}

std::string percent(double share) { return std::to_string(std::lround(share * 100)) + " %"; }
std::string mebibytes(int64_t bytes) { return std::to_string(bytes >> 20); }

}  // namespace

ExitCode run_rank_bench(const RankBenchCommand& command) {
  install_host_kernels();
  at::set_num_threads(1);
  const std::filesystem::path folder = find_data_root() / "golden" / "data" / "wide";
  const auto model = TextModel::load(folder, Numerics::official());
  const GoldenFile golden =
      GoldenFile::read(folder / "golden-official.json", model->config(), model->plan());
  std::vector<const GoldenPrompt*> prompts;
  for (const GoldenPrompt& prompt : golden.prompts) prompts.push_back(&prompt);
  const auto work = [&](const TextModel& running) {
    if (command.together) {
      generate_together(running, prompts);
    } else {
      for (const GoldenPrompt* prompt : prompts) time_generation(running, *prompt, 0);
    }
  };
  const std::vector<ParallelSizes> sizes = meshes(command.ranks);
  Measurement alone;
  std::vector<Measurement> every(sizes.size()), once(sizes.size());
  for (int turn = 0; turn < command.pairs; ++turn) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      measure(alone, nullptr, [&] { work(*model); });
      for (const ReplicaMode mode : {ReplicaMode::kEvery, ReplicaMode::kOnce}) {
        RankTimes times;
        RankRun run;
        run.sizes = sizes[i];
        run.replicated = mode;
        run.executor.workers = 1;
        run.times = &times;
        measure(mode == ReplicaMode::kEvery ? every[i] : once[i], &times,
                [&] { make_rank_runner(run)(*model, nullptr, work); });
      }
    }
  }
  const double one_rank = median(alone.seconds);
  if (command.json) {
    ordered_json json = {{"schema", 1},
                         {"ranks", command.ranks},
                         {"pairs", command.pairs},
                         {"together", command.together}};
    for (const GoldenPrompt& prompt : golden.prompts) json["prompts"].push_back(prompt.name);
    json["one_rank"] = {{"seconds", one_rank}, {"peak_bytes", alone.peak_bytes}};
    for (size_t i = 0; i < sizes.size(); ++i) {
      json["meshes"].push_back({{"tp", sizes[i].tensor},
                                {"cp", sizes[i].context},
                                {"ep", sizes[i].expert},
                                {"every",
                                 {{"seconds", median(every[i].seconds)},
                                  {"overhead", median(every[i].overhead)},
                                  {"comparing", median(every[i].comparing)},
                                  {"peak_bytes", every[i].peak_bytes}}},
                                {"once",
                                 {{"seconds", median(once[i].seconds)},
                                  {"ratio", median(once[i].seconds) / one_rank},
                                  {"overhead", median(once[i].overhead)},
                                  {"peak_bytes", once[i].peak_bytes}}}});
    }
    std::cout << json.dump(2) << "\n";
    return ExitCode::kMatch;
  }
  std::cout << "wide/official, " << golden.prompts.size() << " prompts "
            << (command.together ? "as lanes of one batch" : "one by one") << ", one worker, "
            << command.pairs << " turns; one rank " << std::fixed << std::setprecision(3)
            << one_rank << " s, peak " << mebibytes(alone.peak_bytes) << " MiB\n\n"
            << "mesh                every: s  overhead  comparing  peak MiB   once: s   ratio  "
               "overhead  peak MiB\n";
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::cout << std::left << std::setw(18) << sizes[i].text() << std::right << std::setw(10)
              << median(every[i].seconds) << std::setw(10) << percent(median(every[i].overhead))
              << std::setw(11) << percent(median(every[i].comparing)) << std::setw(10)
              << mebibytes(every[i].peak_bytes) << std::setw(10) << median(once[i].seconds)
              << std::setw(8) << std::setprecision(2) << median(once[i].seconds) / one_rank
              << std::setprecision(3) << std::setw(10) << percent(median(once[i].overhead))
              << std::setw(10) << mebibytes(once[i].peak_bytes) << "\n";
  }
  std::cout << "\nevery: each rank computes what is replicated, results are compared; once: one "
               "rank for all. overhead: executor,\ncommunicator and comparisons, of the wall-clock "
               "time. ratio: to one rank. Medians.\n";
  return ExitCode::kMatch;
}

}  // namespace deepinfer
