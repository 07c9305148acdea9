// The floating-point mode that a caller of a kernel may have set.
#pragma once

#include <cstdint>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#define DEEPINFER_SIM_HAVE_CALLER_MODE 1
#elif defined(__aarch64__)
#define DEEPINFER_SIM_HAVE_CALLER_MODE 1
#endif

#ifdef DEEPINFER_SIM_HAVE_CALLER_MODE
namespace deepinfer {

// MXCSR or FPCR: rounding, flushing, and on x86 the exception flags too.
#if defined(__x86_64__)
inline uint64_t caller_mode() { return _mm_getcsr(); }
inline void set_caller_mode(uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
// Flush and denormals-are-zero; round down; round up with an old inexact flag.
inline std::vector<uint64_t> strange_modes() {
  constexpr uint64_t kMasked = 0x1F80;
  return {kMasked | 0x8040, kMasked | 0x2000, kMasked | 0x4000 | 0x0020};
}
#else
inline uint64_t caller_mode() {
  uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode)::"memory");
  return mode;
}
inline void set_caller_mode(uint64_t mode) { asm volatile("msr fpcr, %0" ::"r"(mode) : "memory"); }
// FZ; RMode down; RMode up with default NaNs.
inline std::vector<uint64_t> strange_modes() {
  return {uint64_t{1} << 24, uint64_t{2} << 22, uint64_t{1} << 22 | uint64_t{1} << 25};
}
#endif

}  // namespace deepinfer
#endif  // DEEPINFER_SIM_HAVE_CALLER_MODE
