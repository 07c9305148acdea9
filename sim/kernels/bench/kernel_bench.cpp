#include "sim/kernels/bench/kernel_bench.h"

#include <algorithm>
#include <cmath>

#include "platform/errors.h"
#include "sim/kernels/bench/bench_clock.h"

namespace deepinfer {
namespace {

// Of one turn, so that the clock's own cost (below a microsecond) does not count.
constexpr double kTurnSeconds = 5e-4;

// Seconds of one call, over `repeats` calls. Processor time of this thread: other work on the
// machine does not count, and both sides run on this thread alone.
double seconds_of(const std::function<void(Target)>& call, Target target, int64_t repeats) {
  const double start = bench_seconds(/*thread_time=*/true);
  for (int64_t i = 0; i < repeats; ++i) call(target);
  return (bench_seconds(/*thread_time=*/true) - start) / static_cast<double>(repeats);
}

int64_t repeats_of(const std::function<void(Target)>& call, Target target) {
  call(target);  // first use of memory and code
  const double once = std::max(seconds_of(call, target, 1), 1e-8);
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(kTurnSeconds / once)));
}

}  // namespace

std::vector<Target> bench_targets(const KernelBenchCase& bench, const KernelBenchOptions& options) {
  for (const Target target : options.targets) check_available(target);
  if (bench.targets == BenchTargets::kOneForAll) return {Target::kScalar};
  std::vector<Target> wanted = options.targets;
  if (wanted.empty()) {
    for (const Target target : available_targets()) {
      // The scalar twin is there for its bits. It is the default only where nothing else is.
      if (target != Target::kScalar || available_targets().size() == 1) wanted.push_back(target);
    }
  }
  std::erase_if(wanted, [&](Target target) {
    if (target == Target::kAmx) return bench.targets != BenchTargets::kAll;
    return target == Target::kScalar && bench.targets == BenchTargets::kFma;
  });
  return wanted;
}

std::vector<KernelBenchResult> run_kernel_bench(const KernelBenchCase& bench,
                                                const KernelBenchOptions& options) {
  DEEPINFER_ASSERT(options.pairs > 0, "pairs " << options.pairs);
  const std::vector<Target> targets = bench_targets(bench, options);
  std::vector<KernelBenchResult> results;
  if (targets.empty()) return results;
  const BenchPair pair = bench.prepare();
  for (const Target target : targets) {
    const int64_t repeats = repeats_of(pair.kernel, target);
    const int64_t peer_repeats = repeats_of(pair.peer, target);
    std::vector<double> times, peer_times, ratios;
    for (int i = 0; i <= options.pairs; ++i) {
      const bool kernel_first = i % 2 == 0;  // so that neither always finds the other's data
      double time = kernel_first ? seconds_of(pair.kernel, target, repeats) : 0;
      const double peer_time = seconds_of(pair.peer, target, peer_repeats);
      if (!kernel_first) time = seconds_of(pair.kernel, target, repeats);
      if (i == 0) continue;
      times.push_back(time);
      peer_times.push_back(peer_time);
      ratios.push_back(peer_time / time);
    }
    KernelBenchResult result;
    result.kernel = bench.kernel;
    result.shape = bench.shape;
    result.target =
        bench.targets == BenchTargets::kOneForAll ? "any" : std::string(target_name(target));
    result.peer = bench.peer;
    const double seconds = median(times), peer_seconds = median(peer_times);
    result.kernel_us = seconds * 1e6;
    result.peer_us = peer_seconds * 1e6;
    result.ratio = median(ratios);
    result.throughput = bench.work / seconds;
    result.peer_throughput = bench.work / peer_seconds;
    result.unit = bench.unit;
    if (pair.difference) result.difference = pair.difference();
    result.tolerance = bench.tolerance;
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace deepinfer
