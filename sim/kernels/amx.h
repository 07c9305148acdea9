// Permission to use the AMX tile registers, and their set-up for a scope.
#pragma once

namespace deepinfer {

// True if the processor has AMX-BF16 (and the AVX-512 subset that our AMX kernels use around it),
// the operating system saves tile registers, and the kernel has given this process permission to
// use them. The first call asks for the permission, which holds for all threads of the process.
bool amx_permitted();

// Configures the eight tile registers as 16 rows of 64 bytes for the calling thread, and releases
// them at the end of the scope. Needs amx_permitted().
class AmxScope {
 public:
  AmxScope();
  ~AmxScope();
  AmxScope(const AmxScope&) = delete;
  AmxScope& operator=(const AmxScope&) = delete;
};

}  // namespace deepinfer
