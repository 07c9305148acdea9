#include "model/leader.h"

#include <map>
#include <string>
#include <utility>

#include "model/sequence.h"
#include "platform/errors.h"

namespace deepinfer {
namespace {

// Rank 0's model: publishes each forward before it takes part in it.
class LeaderModel final : public TextModel {
 public:
  LeaderModel(std::shared_ptr<const TextModel> own, StepBoard& board, Communicator& communicator)
      : own_(std::move(own)), board_(board), communicator_(communicator) {}

  const ModelConfig& config() const override { return own_->config(); }
  const ModelPlan& plan() const override { return own_->plan(); }
  const Numerics& numerics() const override { return own_->numerics(); }
  std::shared_ptr<const TextModel> on_rank(std::shared_ptr<const Mesh>, Communicator&,
                                           Replicas&) const override {
    DEEPINFER_ASSERT(false, "the leader of a mesh is a rank already");
    return nullptr;
  }

  SequencePtr new_sequence(int64_t max_tokens) const override {
    SequencePtr sequence = own_->new_sequence(max_tokens);
    auto request = std::make_shared<const int64_t>(next_request_++);
    live_[*request] = request;
    sequence->request = std::move(request);
    return sequence;
  }

  void check(const std::vector<Chunk>& batch) const override { own_->check(batch); }

  at::Tensor forward(const std::vector<Chunk>& batch,
                     const ForwardOptions& options) const override {
    check(batch);  // bad input is refused here, before the others know of it
    StepMetadata step;
    for (const Chunk& chunk : batch) {
      DEEPINFER_ASSERT(chunk.sequence->request, "a sequence that another model has made");
      step.chunks.push_back({*chunk.sequence->request, chunk.sequence->max_tokens(), chunk.tokens});
    }
    step.all_rows = options.all_rows;
    step.observed = options.observed || options.observer != nullptr;
    step.counted = options.coverage != nullptr;
    publish(std::move(step));
    return own_->forward(batch, options);
  }

  void end() const {
    StepMetadata step;
    step.last = true;
    publish(std::move(step));
  }

 private:
  void publish(StepMetadata step) const {
    for (auto it = live_.begin(); it != live_.end();) {
      if (!it->second.expired()) {
        ++it;
        continue;
      }
      step.finished.push_back(it->first);
      it = live_.erase(it);
    }
    board_.publish(next_step_++, std::move(step), communicator_);
  }

  std::shared_ptr<const TextModel> own_;
  StepBoard& board_;
  Communicator& communicator_;
  mutable std::map<int64_t, std::weak_ptr<const int64_t>> live_;  // requests
  mutable int64_t next_request_ = 0;
  mutable int64_t next_step_ = 0;
};

void follow(const TextModel& own, const StepBoard& board, Communicator& communicator,
            Coverage* coverage) {
  std::map<int64_t, SequencePtr> sequences;
  for (int64_t n = 0;; ++n) {
    const StepMetadata& step = board.read(n, communicator);
    if (step.last) return;
    for (const int64_t request : step.finished) sequences.erase(request);
    std::vector<Chunk> batch;
    for (const StepMetadata::Chunk& chunk : step.chunks) {
      SequencePtr& sequence = sequences[chunk.request];
      if (!sequence) sequence = own.new_sequence(chunk.context_limit);
      batch.push_back({sequence.get(), chunk.tokens});
    }
    ForwardOptions options;
    options.all_rows = step.all_rows;
    options.observed = step.observed;
    options.coverage = step.counted ? coverage : nullptr;
    own.forward(batch, options);  // whose logits the leader has too: it samples
  }
}

}  // namespace

void run_rank(const TextModel& model, ParallelRun& run, Communicator& communicator,
              Coverage* coverage, const std::function<void(const TextModel& leader)>& lead) {
  std::shared_ptr<const TextModel> own = model.on_rank(run.mesh, communicator, run.replicas);
  if (communicator.rank() != 0) {
    follow(*own, run.board, communicator, coverage);
    return;
  }
  const LeaderModel leader(std::move(own), run.board, communicator);
  lead(leader);
  leader.end();
}

}  // namespace deepinfer
