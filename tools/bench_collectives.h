// `deepinfer-sim bench collectives`: the simulated cluster beside MPI, a process a rank.
#pragma once

#include <cstdint>

#include "platform/errors.h"

namespace deepinfer {

struct CollectiveBenchCommand {
  int64_t ranks = 64;
  int64_t workers = 0;  // 0: one a core
  int pairs = 3;
  bool json = false;
};

// Prints times of a barrier and of an fp32 all-reduce of [1, 5120], and of the same by `mpirun`, in
// turns. JSON: {schema: 1, machine, ranks, workers, pairs, peer: "Open MPI ..." | "none: ...",
// results:
// [{collective, us, peer_us: null | number, ratio: null | number}]}; medians over the turns, ratio
// the median of peer time / ours. Without an MPI in the build there is no peer. Throws ConfigError
// if mpirun fails.
ExitCode run_collective_bench(const CollectiveBenchCommand& command);

}  // namespace deepinfer
