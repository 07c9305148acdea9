#include "tools/bench_collectives.h"

#include <cstdio>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/cluster/bench/collective_bench.h"
#include "sim/kernels/bench/bench_clock.h"
#include "sim/kernels/target.h"

namespace deepinfer {
namespace {

using nlohmann::ordered_json;

#if defined(DEEPINFER_SIM_MPI_PEER)
constexpr const char* kPeerProgram = DEEPINFER_SIM_MPI_PEER;
constexpr const char* kPeer = DEEPINFER_SIM_MPI_NAME;
#else
constexpr const char* kPeerProgram = nullptr;
constexpr const char* kPeer = "none: built without MPI";
#endif

// Enough for a steady mean: one barrier of oversubscribed processes takes milliseconds.
constexpr int64_t kPeerBarriers = 200, kPeerAllReduces = 40;

CollectiveTimes peer_times(const CollectiveBenchOptions& options) {
  // Containers run as root, which mpirun refuses unless it is told twice.
  const std::string command =
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -np " +
      std::to_string(options.ranks) + " '" + kPeerProgram + "' " +
      std::to_string(options.elements) + ' ' + std::to_string(kPeerBarriers) + ' ' +
      std::to_string(kPeerAllReduces);
  std::string output;
  int status = -1;
  if (std::FILE* pipe = popen(command.c_str(), "r")) {
    char part[256];
    while (std::fgets(part, sizeof(part), pipe) != nullptr) output += part;
    status = pclose(pipe);
  }
  CollectiveTimes times;
  if (status != 0 ||
      std::sscanf(output.c_str(), "%lf %lf", &times.barrier_us, &times.all_reduce_us) != 2) {
    throw ConfigError({.what = "the MPI peer failed",
                       .where = command,
                       .expected = "two times",
                       .found = output.empty() ? "no output" : output,
                       .remedy = "see that mpirun works here"});
  }
  return times;
}

struct Row {
  std::string collective;
  std::vector<double> us, peer_us, ratio;
};

std::optional<double> middle(const std::vector<double>& values) {
  return values.empty() ? std::nullopt : std::optional<double>(median(values));
}

}  // namespace

ExitCode run_collective_bench(const CollectiveBenchCommand& command) {
  CollectiveBenchOptions options;
  options.ranks = command.ranks;
  options.workers = command.workers;
  Row barrier{"barrier", {}, {}, {}},
      all_reduce{"all_reduce(sum) fp32 [1, " + std::to_string(options.elements) + "]", {}, {}, {}};
  const auto add = [](Row& row, double us, double peer_us) {
    row.us.push_back(us);
    if (peer_us <= 0) return;
    row.peer_us.push_back(peer_us);
    row.ratio.push_back(peer_us / us);
  };
  for (int pair = 0; pair < command.pairs; ++pair) {
    const CollectiveTimes own = bench_collectives(options);
    const CollectiveTimes peer = kPeerProgram != nullptr ? peer_times(options) : CollectiveTimes();
    add(barrier, own.barrier_us, peer.barrier_us);
    add(all_reduce, own.all_reduce_us, peer.all_reduce_us);
  }
  ordered_json results = ordered_json::array();
  if (!command.json) {
    std::cout << "machine " << machine_features() << "; " << command.ranks << " ranks; peer "
              << kPeer << "; " << command.pairs << " pairs\n\n"
              << std::left << std::setw(34) << "collective" << std::setw(12) << "us"
              << std::setw(12) << "peer us"
              << "ratio\n";
  }
  for (const Row& row : {barrier, all_reduce}) {
    const auto us = middle(row.us), peer_us = middle(row.peer_us), ratio = middle(row.ratio);
    const auto json = [](const std::optional<double>& value) {
      return value ? ordered_json(*value) : ordered_json();
    };
    if (command.json) {
      results.push_back({{"collective", row.collective},
                         {"us", json(us)},
                         {"peer_us", json(peer_us)},
                         {"ratio", json(ratio)}});
      continue;
    }
    const auto text = [](const std::optional<double>& value) {
      std::ostringstream out;
      if (value) out << std::fixed << std::setprecision(2) << *value;
      return value ? out.str() : std::string("-");
    };
    std::cout << std::left << std::setw(34) << row.collective << std::setw(12) << text(us)
              << std::setw(12) << text(peer_us) << text(ratio) << "\n";
  }
  if (command.json) {
    std::cout << ordered_json{{"schema", 1},
                              {"machine", machine_features()},
                              {"ranks", command.ranks},
                              {"workers", command.workers},
                              {"pairs", command.pairs},
                              {"peer", kPeer},
                              {"results", results}}
                     .dump(2)
              << "\n";
  } else {
    std::cout << "\nus: wall clock of a call, from a long run, median over the turns. ratio: peer "
                 "time / ours.\n";
  }
  return ExitCode::kMatch;
}

}  // namespace deepinfer
