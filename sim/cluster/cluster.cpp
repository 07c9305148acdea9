#include "sim/cluster/cluster.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "platform/errors.h"
#include "sim/cluster/rank_communicator.h"
#include "sim/cluster/rendezvous.h"

namespace deepinfer {
namespace {

[[noreturn]] void rethrow(const internal::Failure& failure) {
  if (failure.rank < 0) std::rethrow_exception(failure.error);
  const std::string rank = "rank " + std::to_string(failure.rank);
  try {
    std::rethrow_exception(failure.error);
  } catch (const Error& error) {
    ErrorParts parts = error.parts();
    parts.where = parts.where.empty() ? rank : rank + ", " + parts.where;
    throw RankError(error.exit_code(), std::move(parts), failure.rank, failure.error);
  } catch (const std::exception& error) {
    std::throw_with_nested(std::runtime_error(rank + ": " + error.what()));
  }
}

}  // namespace

ClusterStatistics run_cluster(const ClusterOptions& options,
                              const std::function<void(RankContext& context)>& program,
                              TaskLocals* locals) {
  if (options.ranks < 1) {
    throw ConfigError({.what = "a cluster without ranks",
                       .where = "ClusterOptions::ranks",
                       .expected = "at least 1",
                       .found = std::to_string(options.ranks)});
  }
  if (options.topology != nullptr && options.topology->ranks() != options.ranks) {
    throw ConfigError({.what = "another number of ranks than the topology has",
                       .where = "ClusterOptions::ranks",
                       .expected = std::to_string(options.topology->ranks()) + " (" +
                                   options.topology->name + ")",
                       .found = std::to_string(options.ranks)});
  }
  internal::Rendezvous rendezvous(options);
  rendezvous.run(
      [&](int64_t rank) {
        const auto communicator = internal::make_rank_communicator(rendezvous, rank);
        RankContext context{rank, *communicator};
        program(context);
      },
      locals);
  if (rendezvous.failure().error) rethrow(rendezvous.failure());
  return rendezvous.statistics();
}

}  // namespace deepinfer
