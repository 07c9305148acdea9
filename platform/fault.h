// Faults that tests switch on by name, to prove that the checks notice a broken model.
#pragma once

#include <string_view>
#include <vector>

namespace deepinfer {

#if defined(DEEPINFER_SIM_FAULT_INJECTION)
namespace internal {
extern std::string_view active_fault;  // written by ScopedFault before a run, read by the model
}
// True while a ScopedFault of that name lives. Always false outside a test build.
inline bool fault(std::string_view name) {
  return !internal::active_fault.empty() && internal::active_fault == name;
}

// Switches one fault on for its lifetime; one at a time. Asserts that the name is in fault_list().
class ScopedFault {
 public:
  explicit ScopedFault(std::string_view name);
  ~ScopedFault();
  ScopedFault(const ScopedFault&) = delete;
  ScopedFault& operator=(const ScopedFault&) = delete;
};

struct FaultInfo {
  std::string_view name;
  std::string_view what;
  bool on_meshes = false;  // changes nothing on one rank
};
// Every fault that the code can be given.
const std::vector<FaultInfo>& fault_list();
#else
constexpr bool fault(std::string_view) { return false; }
#endif

}  // namespace deepinfer
