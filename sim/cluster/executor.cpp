#include "sim/cluster/executor.h"

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "platform/errors.h"
#include "platform/nearest_name.h"
#include "sim/cluster/fiber_executor.h"
#include "sim/cluster/thread_executor.h"

namespace deepinfer {

std::string_view executor_name(ExecutorKind kind) {
  return kind == ExecutorKind::kFibers ? "fibers" : "threads";
}

ExecutorKind parse_executor(std::string_view name) {
  for (const ExecutorKind kind : {ExecutorKind::kFibers, ExecutorKind::kThreads}) {
    if (name == executor_name(kind)) return kind;
  }
  throw ConfigError({.what = "unknown executor",
                     .where = "executor",
                     .expected = "fibers or threads",
                     .found = std::string(name),
                     .remedy = did_you_mean(name, std::vector<std::string>{"fibers", "threads"})});
}

std::unique_ptr<Executor> Executor::make(const ExecutorOptions& options, int64_t ranks) {
  DEEPINFER_ASSERT(ranks > 0, "ranks " << ranks);
  if (options.kind == ExecutorKind::kThreads) return make_thread_executor(ranks);
  const int64_t cores = std::max<int64_t>(std::thread::hardware_concurrency(), 1);
  const int64_t wanted = options.schedule ? 1 : options.workers > 0 ? options.workers : cores;
  const int64_t workers = std::min(wanted, ranks);
  return make_fiber_executor(ranks, workers, options.schedule, options.stack_bytes);
}

}  // namespace deepinfer
