#include "tools/rank_runner.h"

#include <atomic>
#include <vector>

#include "model/leader.h"
#include "sim/cluster/cluster.h"
#include "sim/cluster/timed_communicator.h"
#include "sim/ops/rank_locals.h"

namespace deepinfer {

ModelRunner make_rank_runner(const RankRun& run) {
  return [run](const TextModel& model, Coverage* coverage,
               const std::function<void(const TextModel&)>& body) {
    ParallelRun shared(model.config(), run.sizes, run.replicated);
    const int64_t ranks = shared.mesh->ranks();
    RankLocals locals(ranks);
    std::vector<Coverage> covered(static_cast<size_t>(ranks));
    ClusterOptions options;
    options.ranks = ranks;
    options.executor = run.executor;
    std::atomic<double> computing = 0;
    if (run.times != nullptr) shared.replicas.time_comparisons();
    run_cluster(
        options,
        [&](RankContext& rank) {
          Coverage* const own = &covered[static_cast<size_t>(rank.rank)];
          if (run.times == nullptr) {
            run_rank(model, shared, rank.communicator, own, body);
            return;
          }
          TimedCommunicator timed(rank.communicator);
          run_rank(model, shared, timed, own, body);
          computing += timed.computing_seconds();
        },
        &locals);
    if (run.times != nullptr) *run.times = {computing, shared.replicas.comparing_seconds()};
    if (coverage == nullptr) return;
    for (const Coverage& of_rank : covered) coverage->merge(of_rank);
  };
}

}  // namespace deepinfer
