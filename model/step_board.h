// How rank 0 tells the other ranks what the next step is: through memory of the host that all
// ranks share (systems.md X1).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "platform/communicator.h"

namespace deepinfer {

// What one step does. Followers know nothing else of requests; they have no scheduler and no
// sampler.
struct StepMetadata {
  struct Chunk {
    int64_t request = 0;        // number given by rank 0
    int64_t context_limit = 0;  // tokens that the request may come to
    std::vector<int64_t> tokens;
  };
  std::vector<Chunk> chunks;      // of all prompts whole: a prompt chunk runs on every rank
  std::vector<int64_t> finished;  // requests whose caches are dropped before the step
  bool all_rows = false;          // as ForwardOptions
  bool observed = false;
  bool counted = false;  // followers count what they cover
  bool last = false;     // no step: followers return
};

// Step n, counted from 0, is published by rank 0 and read by every other rank; each does so once
// for every n, ascending. Thread rule: as a Communicator's.
class StepBoard {
 public:
  // Both wait for each other in a barrier of the world. What `read` returns stays until the rank
  // reads step n + 1.
  void publish(int64_t n, StepMetadata step, Communicator& communicator);
  const StepMetadata& read(int64_t n, Communicator& communicator) const;

 private:
  // Rank 0 writes step n + 1 while followers may still read step n, and never step n + 2 before all
  // have come for step n + 1.
  std::array<StepMetadata, 2> steps_;
};

}  // namespace deepinfer
