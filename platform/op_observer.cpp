#include "platform/op_observer.h"

#include "platform/thread_state.h"

namespace deepinfer {

OpObserver* current_op_observer() { return internal::thread_state().observer; }

OpObserverScope::OpObserverScope(OpObserver* observer) : outer_(internal::thread_state().observer) {
  internal::thread_state().observer = observer;
}
OpObserverScope::~OpObserverScope() { internal::thread_state().observer = outer_; }

}  // namespace deepinfer
