#include "sim/cluster/bench/collective_bench.h"

#include <chrono>
#include <vector>

#include "sim/cluster/cluster.h"

namespace deepinfer {

CollectiveTimes bench_collectives(const CollectiveBenchOptions& options) {
  CollectiveTimes times;
  ClusterOptions cluster;
  cluster.ranks = options.ranks;
  cluster.executor.workers = options.workers;
  const auto measure = [](RankContext& context, int64_t rounds, const auto& call) {
    using Clock = std::chrono::steady_clock;
    for (int64_t i = 0; i < rounds / 10 + 1; ++i) call();  // warms up
    const auto begin = Clock::now();
    for (int64_t i = 0; i < rounds; ++i) call();
    const double us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
    return context.rank == 0 ? us / static_cast<double>(rounds) : 0.0;
  };
  run_cluster(cluster, [&](RankContext& context) {
    Communicator& comm = context.communicator;
    const GroupPtr world = comm.world();
    const double barrier = measure(context, options.barriers, [&] { comm.barrier(*world); });
    // In place, as the model reduces.
    std::vector<float> data(static_cast<size_t>(options.elements));
    const Buffer all{WireType::kFloat32, {1, options.elements}, data.data()};
    const double all_reduce =
        measure(context, options.all_reduces, [&] { comm.all_reduce_sum(all, all, *world); });
    if (context.rank == 0) times = {barrier, all_reduce};
  });
  return times;
}

}  // namespace deepinfer
