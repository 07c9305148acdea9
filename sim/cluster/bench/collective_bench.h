// Measures the simulated cluster's collectives, for `deepinfer-sim bench collectives`.
#pragma once

#include <cstdint>

namespace deepinfer {

struct CollectiveTimes {
  double barrier_us = 0;     // of one barrier of all ranks
  double all_reduce_us = 0;  // of one fp32 sum of `elements` over all ranks
};

struct CollectiveBenchOptions {
  int64_t ranks = 64;
  int64_t elements = 5120;  // [1, 5120], what a decode step reduces
  int64_t barriers = 20000;
  int64_t all_reduces = 500;
  int64_t workers = 0;  // as ExecutorOptions
};

// Wall-clock time of a long run of each, divided by its length, after a warm-up.
CollectiveTimes bench_collectives(const CollectiveBenchOptions& options);

}  // namespace deepinfer
