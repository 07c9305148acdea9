// Runs a model on all ranks of a mesh: rank 0 leads, the others follow its steps.
#pragma once

#include <functional>
#include <memory>

#include "model/step_board.h"
#include "model/transformer.h"

namespace deepinfer {

// What the ranks of a run share.
struct ParallelRun {
  std::shared_ptr<const Mesh> mesh;
  Replicas replicas;
  StepBoard board;

  ParallelRun(const ModelConfig& config, const ParallelSizes& sizes, ReplicaMode mode)
      : mesh(std::make_shared<const Mesh>(config, sizes)),
        replicas(mode, mesh->ranks(), mesh->partitions()) {}
};

// Called by every rank of a world of run.mesh->ranks(). Rank 0 calls `lead` with a model whose
// sequences and forwards are those of the whole mesh, and ends the others when it returns; they
// take their steps from the board. `coverage` (or null) gets what a follower covers in forwards
// that the leader counts.
void run_rank(const TextModel& model, ParallelRun& run, Communicator& communicator,
              Coverage* coverage, const std::function<void(const TextModel& leader)>& lead);

}  // namespace deepinfer
