// The executor for ThreadSanitizer: a thread for each rank.
#pragma once

#include <cstdint>
#include <memory>

#include "sim/cluster/executor.h"

namespace deepinfer {

std::unique_ptr<Executor> make_thread_executor(int64_t ranks);

}  // namespace deepinfer
