// Who is told of every op that a rank has computed.
#pragma once

#include <ATen/core/Tensor.h>

namespace deepinfer {

class OpObserver {
 public:
  virtual ~OpObserver() = default;
  // Output `index` of a call of `op` ("deepinfer::linear"), in the order of calls.
  virtual void computed(const char* op, int index, const at::Tensor& output) = 0;
};

// The calling thread's observer, null for none.
OpObserver* current_op_observer();

// Like libtorch's own guards: for the calling thread, until the end of the scope.
class OpObserverScope {
 public:
  explicit OpObserverScope(OpObserver* observer);
  ~OpObserverScope();
  OpObserverScope(const OpObserverScope&) = delete;
  OpObserverScope& operator=(const OpObserverScope&) = delete;

 private:
  OpObserver* outer_;
};

}  // namespace deepinfer
