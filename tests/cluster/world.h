// Runs a program on a small cluster with every executor that tests use.
#pragma once

#include <functional>
#include <vector>

#include "sim/cluster/cluster.h"

namespace deepinfer {

inline std::vector<ClusterOptions> executors(int64_t ranks) {
  ClusterOptions one_worker{ranks, {}};
  one_worker.executor.workers = 1;
  ClusterOptions two_workers = one_worker;
  two_workers.executor.workers = 2;
  ClusterOptions shuffled = one_worker;
  shuffled.executor.schedule = 7;
  ClusterOptions threads = one_worker;
  threads.executor.kind = ExecutorKind::kThreads;
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
