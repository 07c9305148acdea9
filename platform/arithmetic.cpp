#include "platform/arithmetic.h"

#include <array>
#include <atomic>
#include <string>

#include "platform/errors.h"
#include "platform/nearest_name.h"
#include "platform/thread_state.h"

namespace deepinfer {

namespace {
std::atomic<bool> installed{false};
constexpr std::array<std::string_view, 2> kNames = {"canonical", "reference"};
}  // namespace

std::string_view arithmetic_name(Arithmetic arithmetic) {
  return kNames[static_cast<size_t>(arithmetic)];
}

Arithmetic parse_arithmetic(std::string_view name) {
  if (name == kNames[0]) return Arithmetic::kCanonical;
  if (name == kNames[1]) return Arithmetic::kReference;
  throw ConfigError({.what = "unknown arithmetic '" + std::string(name) + "'",
                     .expected = "canonical or reference",
                     .remedy = did_you_mean(name, kNames)});
}

namespace internal {
ThreadState& thread_state() {
  thread_local ThreadState state;
  return state;
}
}  // namespace internal

Arithmetic current_arithmetic() { return internal::thread_state().arithmetic; }

ArithmeticScope::ArithmeticScope(Arithmetic arithmetic)
    : outer_(internal::thread_state().arithmetic) {
  internal::thread_state().arithmetic = arithmetic;
}
ArithmeticScope::~ArithmeticScope() { internal::thread_state().arithmetic = outer_; }

bool host_kernels_installed() { return installed.load(std::memory_order_acquire); }
namespace internal {
void mark_host_kernels_installed() { installed.store(true, std::memory_order_release); }
}  // namespace internal

}  // namespace deepinfer
