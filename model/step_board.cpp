#include "model/step_board.h"

#include <utility>

namespace deepinfer {

void StepBoard::publish(int64_t n, StepMetadata step, Communicator& communicator) {
  steps_[static_cast<size_t>(n % 2)] = std::move(step);
  communicator.barrier(*communicator.world());
}

const StepMetadata& StepBoard::read(int64_t n, Communicator& communicator) const {
  communicator.barrier(*communicator.world());  // orders the read after rank 0's write
  return steps_[static_cast<size_t>(n % 2)];
}

}  // namespace deepinfer
