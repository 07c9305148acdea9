// Measures the kernels that are not GEMMs, each beside a named peer in the same run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/kernels/target.h"

namespace deepinfer {

// One kernel on data that fits a second-level cache (unless its name says otherwise), on the
// calling thread.
struct RowsBenchEntry {
  std::string kernel;
  std::string shape;
  std::string peer;         // "memcpy of the bytes written", or empty: measured alone
  int64_t elements = 0;     // results of one call
  double seconds = 0;       // a call, median
  double peer_seconds = 0;  // median, 0 without a peer
  double ratio = 0;         // median over pairs of peer / kernel time: above 1 the kernel is faster
  double elements_per_second() const { return static_cast<double>(elements) / seconds; }
};

// Kernel and peer take turns, `pairs` times (asserted positive).
std::vector<RowsBenchEntry> bench_rows(Target target, int pairs = 51);

}  // namespace deepinfer
