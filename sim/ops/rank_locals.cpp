#include "sim/ops/rank_locals.h"

#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace deepinfer {

struct RankLocals::State {
  c10::impl::LocalDispatchKeySet keys;
  c10::AutogradState autograd;
  internal::ThreadState platform;
};

RankLocals::State RankLocals::of_thread() {
  return {c10::impl::tls_local_dispatch_key_set(), c10::AutogradState::get_tls_state(),
          internal::thread_state()};
}

void RankLocals::set_thread(const State& state) {
  c10::impl::_force_tls_local_dispatch_key_set(state.keys);
  c10::AutogradState::set_tls_state(state.autograd);
  internal::thread_state() = state.platform;
}

RankLocals::RankLocals(int64_t ranks)
    : states_(static_cast<size_t>(ranks) + 1, of_thread()), threads_(at::get_num_threads()) {}

RankLocals::~RankLocals() {
  if (at::get_num_threads() != threads_) at::set_num_threads(threads_);
}

void RankLocals::leave(int64_t rank) {
  states_[static_cast<size_t>(rank)] = of_thread();
  set_thread(states_.back());
}

void RankLocals::enter(int64_t rank) {
  if (at::get_num_threads() != 1) at::set_num_threads(1);
  set_thread(states_[static_cast<size_t>(rank)]);
}

}  // namespace deepinfer
