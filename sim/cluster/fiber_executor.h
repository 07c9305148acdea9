// The executor of every day: ranks are fibers, a few dozen nanoseconds apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "sim/cluster/executor.h"

namespace deepinfer {

std::unique_ptr<Executor> make_fiber_executor(int64_t ranks, int64_t workers,
                                              std::optional<uint64_t> schedule, size_t stack_bytes);

}  // namespace deepinfer
