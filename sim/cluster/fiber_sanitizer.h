// Announces switches between fibers to AddressSanitizer, which follows stacks; nothing otherwise.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define DEEPINFER_SIM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define DEEPINFER_SIM_ASAN 1
#endif
#endif

#if defined(DEEPINFER_SIM_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace deepinfer {

// The stack of a fiber, or of the thread that a worker's loop runs on (whose bounds are learnt at
// the first switch away from it).
struct FiberStack {
  const void* bottom = nullptr;
  size_t size = 0;
  void* fake = nullptr;  // AddressSanitizer's own stack, kept while the fiber is left

#if defined(DEEPINFER_SIM_ASAN)
  // Before the memory of a stack is used and after: what comes to lie at its addresses must find no
  // trace of the frames that were left on it.
  static void clear(const void* bottom, size_t size) {
    __asan_unpoison_memory_region(bottom, size);
  }
  void leave_for(const FiberStack& next) {
    __sanitizer_start_switch_fiber(&fake, next.bottom, next.size);
  }
  void arrive() { __sanitizer_finish_switch_fiber(fake, nullptr, nullptr); }
  // First entry of this fiber, from `from`.
  void begin(FiberStack& from) {
    const void* from_bottom = nullptr;
    size_t from_size = 0;
    __sanitizer_finish_switch_fiber(nullptr, &from_bottom, &from_size);
    from.bottom = from_bottom;
    from.size = from_size;
  }
  // Leaves this fiber for good.
  void end_for(const FiberStack& next) {
    __sanitizer_start_switch_fiber(nullptr, next.bottom, next.size);
  }
#else
  static void clear(const void*, size_t) {}
  void leave_for(const FiberStack&) {}
  void arrive() {}
  void begin(FiberStack&) {}
  void end_for(const FiberStack&) {}
#endif
};

}  // namespace deepinfer
