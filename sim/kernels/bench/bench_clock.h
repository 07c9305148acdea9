// Clocks and medians of the benches.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

#include <time.h>

namespace deepinfer {

// Seconds of the monotonic clock, or of the calling thread's processor time.
inline double bench_seconds(bool thread_time) {
  if (thread_time) {
    timespec now = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The middle value, or the mean of the two in the middle; 0 for none.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace deepinfer
