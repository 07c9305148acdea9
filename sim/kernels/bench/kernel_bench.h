// Measures kernels beside named peers: both in one process and one run, in turns, on one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/kernels/target.h"

namespace deepinfer {

// Which targets a kernel distinguishes.
enum class BenchTargets {
  kAll,        // AMX too
  kVector,     // no AMX form
  kFma,        // no AMX form, and a peer that the scalar target does not have
  kOneForAll,  // integer code or plain additions: one implementation for every target
};

// A kernel and its peer, ready to run on the same operands. Calls are timed as they are: what is
// done once (packing weights, widening them) belongs before.
struct BenchPair {
  std::function<void(Target)> kernel;
  std::function<void(Target)> peer;
  // How far the results of the last two calls are apart; null if the peer computes something else
  // (a copy, fma chains).
  std::function<double()> difference = nullptr;
};

// One kernel on one shape against one peer.
struct KernelBenchCase {
  std::string kernel;  // "rms_norm"
  std::string header;  // that declares it: "sim/kernels/rows.h"
  std::string shape;   // "[64, 5120] bf16"
  std::string peer;    // "ATen: pow, mean, rsqrt, mul"
  BenchTargets targets = BenchTargets::kVector;
  double work = 0;   // of one call, in `unit` seconds
  std::string unit;  // "Gflop/s", "Gvalue/s"
  // Largest difference at which kernel and peer count as computing the same thing: it says that the
  // comparison is fair, not that the kernel is right.
  double tolerance = 0;
  std::function<BenchPair()> prepare;
};

// `work` of a product of [m, k] and [n, k].
inline double gemm_gflop(int64_t m, int64_t n, int64_t k) {
  return 2e-9 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

struct KernelBenchOptions {
  int pairs = 7;                // timed turns of kernel and peer; one more warms up
  std::vector<Target> targets;  // empty: all that are available, except scalar
};

struct KernelBenchResult {
  std::string kernel, shape, target, peer;  // target "any": one implementation for all
  // Processor time of one call, medians over the turns.
  double kernel_us = 0, peer_us = 0;
  double ratio = 0;  // median over pairs of peer time / kernel time: above 1 the kernel is faster
  double throughput = 0, peer_throughput = 0;  // from the medians, in `unit`
  std::string unit;
  std::optional<double> difference;  // none: the peer computes something else
  double tolerance = 0;
  // False if the peer does not compute what the kernel does: then the ratio means nothing.
  bool comparable() const { return !difference || *difference <= tolerance; }
};

// The targets that `options` leaves for a case; empty: it is left out. UnsupportedError for a
// target that is not available.
std::vector<Target> bench_targets(const KernelBenchCase& bench, const KernelBenchOptions& options);

// Runs a case on each of its targets. options.pairs > 0 (asserted).
std::vector<KernelBenchResult> run_kernel_bench(const KernelBenchCase& bench,
                                                const KernelBenchOptions& options);

}  // namespace deepinfer
