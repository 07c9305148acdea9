// Which implementation of the ops a scope computes with: canonical host kernels, or the plain-ATen
// reference.
#pragma once

#include <string_view>

namespace deepinfer {

enum class Arithmetic {
  kCanonical,  // the kernels of the tensors' device; on the host those of sim/
               // (sim/kernels/CANONICAL.md)
  kReference,  // platform/reference, fp64 inside an op
};

// "canonical" or "reference"; parse throws ConfigError that names the nearest.
std::string_view arithmetic_name(Arithmetic arithmetic);
Arithmetic parse_arithmetic(std::string_view name);

// Arithmetic of this thread's ops: the innermost scope's, else canonical.
Arithmetic current_arithmetic();

// Like libtorch's own guards: for the calling thread, until the end of the scope.
class ArithmeticScope {
 public:
  explicit ArithmeticScope(Arithmetic arithmetic);
  ~ArithmeticScope();
  ArithmeticScope(const ArithmeticScope&) = delete;
  ArithmeticScope& operator=(const ArithmeticScope&) = delete;

 private:
  Arithmetic outer_;
};

// Whether canonical host kernels are registered in this process. Without them every op is the
// reference.
bool host_kernels_installed();
namespace internal {
void mark_host_kernels_installed();
}

}  // namespace deepinfer
