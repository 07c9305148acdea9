// What the scopes of this folder keep by thread. An executor whose tasks share threads exchanges it
// with them.
#pragma once

#include "platform/arithmetic.h"

namespace deepinfer {

class OpObserver;

namespace internal {

struct ThreadState {
  Arithmetic arithmetic = Arithmetic::kCanonical;
  OpObserver* observer = nullptr;
};
ThreadState& thread_state();

}  // namespace internal
}  // namespace deepinfer
