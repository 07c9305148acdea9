// Runs a program on a small cluster with every executor that tests use.
#pragma once

#include <functional>
#include <vector>

#include "sim/cluster/cluster.h"
#include "sim/cluster/fiber_sanitizer.h"

namespace deepinfer {

// ThreadSanitizer follows threads, not fibers.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DEEPINFER_SIM_TSAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(DEEPINFER_SIM_TSAN)
inline constexpr bool kFibersToo = false;
#else
inline constexpr bool kFibersToo = true;
#endif

#if defined(DEEPINFER_SIM_ASAN)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = !kFibersToo;
#endif

inline ClusterOptions world_of(int64_t ranks) {
  ClusterOptions options;
  options.ranks = ranks;
  if (!kFibersToo) options.executor.kind = ExecutorKind::kThreads;
  return options;
}

inline std::vector<ClusterOptions> executors(int64_t ranks) {
  ClusterOptions threads = world_of(ranks);
  threads.executor.kind = ExecutorKind::kThreads;
  if (!kFibersToo) return {threads};
  ClusterOptions one_worker = world_of(ranks), two_workers = one_worker, shuffled = one_worker;
  one_worker.executor.workers = 1;
  two_workers.executor.workers = 2;
  shuffled.executor.schedule = 7;
  return {one_worker, two_workers, shuffled, threads};
}

inline void on_every_executor(int64_t ranks,
                              const std::function<void(const ClusterOptions&)>& check) {
  for (const ClusterOptions& options : executors(ranks)) check(options);
}

inline ConstBuffer fp32(const std::vector<float>& values) {
  return {WireType::kFloat32, {static_cast<int64_t>(values.size())}, values.data()};
}
inline Buffer fp32(std::vector<float>& values) {
  return {WireType::kFloat32, {static_cast<int64_t>(values.size())}, values.data()};
}

}  // namespace deepinfer
