// A rank's end of the simulated cluster's communicator.
#pragma once

#include <cstdint>
#include <memory>

#include "platform/communicator.h"

namespace deepinfer::internal {

class Rendezvous;

// Must not outlive the rendezvous.
std::unique_ptr<Communicator> make_rank_communicator(Rendezvous& rendezvous, int64_t rank);

}  // namespace deepinfer::internal
