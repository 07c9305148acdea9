// What libtorch and the platform keep by thread, kept by rank instead.
#pragma once

#include <cstdint>
#include <vector>

#include "platform/thread_state.h"
#include "sim/cluster/executor.h"

namespace deepinfer {

// For run_cluster with programs that call ops: dispatch keys, grad and inference mode, arithmetic
// and op observer go with the rank, whatever fiber runs next on its thread. Ranks start in the
// state of the thread that makes this, with one intra-op thread each: the workers are the
// parallelism.
class RankLocals final : public TaskLocals {
 public:
  explicit RankLocals(int64_t ranks);
  ~RankLocals() override;
  RankLocals(const RankLocals&) = delete;
  RankLocals& operator=(const RankLocals&) = delete;

  void leave(int64_t rank) override;
  void enter(int64_t rank) override;

 private:
  struct State;
  static State of_thread();
  static void set_thread(const State& state);

  std::vector<State> states_;  // [ranks], then the state in which tasks start
  int threads_;                // of the maker's intra-op pool
};

}  // namespace deepinfer
