// The simulated cluster: runs one program on every rank of a world, in one process.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <utility>

#include "platform/communicator.h"
#include "platform/errors.h"
#include "sim/cluster/executor.h"
#include "sim/topology/topology.h"

namespace deepinfer {

struct ClusterOptions {
  int64_t ranks = 1;
  ExecutorOptions executor;
  // Where the ranks are: groups that its runtime refuses are errors then, and there are as many
  // ranks as it has. Null: any groups. Must outlive the run.
  const Topology* topology = nullptr;
};

// What a rank's program is given.
struct RankContext {
  int64_t rank = 0;
  Communicator& communicator;
};

struct ClusterStatistics {
  int64_t collectives = 0;  // completed, each counted once for its group
  int64_t shared = 0;       // of those, worked on by several workers
  int64_t bytes = 0;        // that members handed in
};

// A rank's program threw an Error: its parts with "rank N" put before `where`, its exit code.
struct RankError : Error {
  RankError(ExitCode exit_code, ErrorParts parts, int64_t failed_rank, std::exception_ptr original)
      : Error(exit_code, std::move(parts)), rank(failed_rank), cause(std::move(original)) {}
  int64_t rank;
  std::exception_ptr cause;
};

// Runs program(context) on every rank and returns when all have ended.
//
// If a rank throws, all others are unwound (their collectives throw something that is not a
// std::exception) and the failure is thrown here: an Error as RankError, another std::exception as
// std::runtime_error "rank N: ..." with the original nested, anything else as it is. Of several,
// that of the rank that threw first. Ranks that disagree in a collective, or wait for ever, end the
// run at once with a CollectiveError; for the latter it says of each rank where it waits and what
// it finished last. `locals` as in Executor::run.
ClusterStatistics run_cluster(const ClusterOptions& options,
                              const std::function<void(RankContext& context)>& program,
                              TaskLocals* locals = nullptr);

}  // namespace deepinfer
