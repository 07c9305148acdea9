// A callable handle of one torch custom op: looks the op up once, then calls it through the
// dispatcher.
#pragma once

#include <mutex>
#include <optional>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "platform/arithmetic.h"

namespace deepinfer {

namespace internal {
// Defined beside the registrations, so that a program that calls any op links all of them.
void keep_op_registrations();
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

  const char* name() const { return name_; }

 private:
  const char* name_;
  mutable std::once_flag once_;
  mutable std::optional<c10::TypedOperatorHandle<Signature>> handle_;
};

}  // namespace deepinfer
