// A callable handle of one torch custom op: looks the op up once, then calls it through the
// dispatcher.
#pragma once

#include <mutex>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "platform/arithmetic.h"
#include "platform/op_observer.h"

namespace deepinfer {

namespace internal {
// Defined beside the registrations, so that a program that calls any op links all of them.
void keep_op_registrations();

inline void show(OpObserver& observer, const char* op, const at::Tensor& output) {
  observer.computed(op, 0, output);
}
template <class... Tensors>
void show(OpObserver& observer, const char* op, const std::tuple<Tensors...>& outputs) {
  std::apply(
      [&](const Tensors&... output) {
        int index = 0;
        (observer.computed(op, index++, output), ...);
      },
      outputs);
}
}  // namespace internal

template <class Signature>
class Op;

// Thread rule: calls may be concurrent.
template <class Result, class... Args>
class Op<Result(Args...)> {
 public:
  using Signature = Result(Args...);
  explicit constexpr Op(const char* name) : name_(name) {}
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;

  Result operator()(Args... args) const {
    std::call_once(once_, [this] {
      internal::keep_op_registrations();
      handle_.emplace(
          c10::Dispatcher::singleton().findSchemaOrThrow(name_, "").template typed<Signature>());
    });
    OpObserver* const observer = current_op_observer();
    if constexpr (!std::is_void_v<Result>) {
      if (observer != nullptr) {
        Result result = call(std::forward<Args>(args)...);
        internal::show(*observer, name_, result);
        return result;
      }
    }
    return call(std::forward<Args>(args)...);
  }

  const char* name() const { return name_; }

 private:
  Result call(Args... args) const {
    // The ops have no gradients; below autograd, meta tensors work on every libtorch version.
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    if (current_arithmetic() == Arithmetic::kReference) {
      // The reference stands behind every backend that has no kernels of its own; this one never
      // has.
      return handle_->redispatch(c10::DispatchKeySet(c10::DispatchKey::PrivateUse3),
                                 std::forward<Args>(args)...);
    }
    return handle_->call(std::forward<Args>(args)...);
  }

  const char* name_;
  mutable std::once_flag once_;
  mutable std::optional<c10::TypedOperatorHandle<Signature>> handle_;
};

}  // namespace deepinfer
