// Runs a model on the simulated cluster: where model and sim meet.
#pragma once

#include "golden/check_run.h"
#include "model/mesh.h"
#include "platform/replicas.h"
#include "sim/cluster/executor.h"

namespace deepinfer {

// Where the time of a run on one worker went, in seconds of all ranks together.
struct RankTimes {
  double computing = 0;  // between collectives, comparisons included
  double comparing = 0;  // of that, hashing results and comparing them with other ranks'
};

struct RankRun {
  ParallelSizes sizes;
  ReplicaMode replicated = ReplicaMode::kEvery;
  ExecutorOptions executor;
  RankTimes* times = nullptr;  // not owned; null: not measured
};

// A runner whose bodies run on rank 0 of a cluster of run.sizes.ranks() ranks, which share the
// model's weights. Bodies throw what run_cluster throws.
ModelRunner make_rank_runner(const RankRun& run);

}  // namespace deepinfer
