// Sets the floating-point mode of canonical arithmetic for a scope (CANONICAL.md C1.1, C1.2).
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace deepinfer {

// Flush denormal operands and results, round to nearest even, mask all exceptions; the mode found
// is restored at the end of the scope, exception flags included. The mode belongs to a thread:
// every thread that computes opens its own scope.
//
// The compiler does not know that the mode changes arithmetic, and may move floating-point code
// across the change within one function. So open the scope in a function that calls the kernel, not
// in the kernel's own body.
//
// x86 flushes results that are subnormal after rounding, as C1.2 says. AArch64's FZ looks before
// rounding: a result just below 2^-126 that rounds up to it is flushed there. UnderflowWatch tells.
class FloatScope {
 public:
#if defined(__x86_64__)
  FloatScope() : saved_(_mm_getcsr()) { _mm_setcsr(kFlushRoundNearest); }
  ~FloatScope() { _mm_setcsr(saved_); }
#elif defined(__aarch64__)
  FloatScope() : saved_(read()), saved_flags_(read_flags()) { write(kFlushRoundNearest); }
  ~FloatScope() {
    write(saved_);
    asm volatile("msr fpsr, %0" ::"r"(saved_flags_) : "memory");
  }
#else
  FloatScope() = default;
  ~FloatScope() = default;
#endif
  FloatScope(const FloatScope&) = delete;
  FloatScope& operator=(const FloatScope&) = delete;

 private:
#if defined(__x86_64__)
  // MXCSR: FTZ (bit 15), RC = 00, all six exception masks (bits 12:7), DAZ (bit 6).
  static constexpr unsigned kFlushRoundNearest = 0x8000u | 0x1F80u | 0x0040u;
  unsigned saved_;
#elif defined(__aarch64__)
  // FPCR: FZ (bit 24), RMode = 00, no trap bits, no default NaN.
  static constexpr uint64_t kFlushRoundNearest = uint64_t{1} << 24;
  static uint64_t read() {
    uint64_t value;
    asm volatile("mrs %0, fpcr" : "=r"(value)::"memory");
    return value;
  }
  static void write(uint64_t value) { asm volatile("msr fpcr, %0" ::"r"(value) : "memory"); }
  static uint64_t read_flags() {
    uint64_t value;
    asm volatile("mrs %0, fpsr" : "=r"(value)::"memory");
    return value;
  }
  uint64_t saved_, saved_flags_;
#endif
};

// Tells whether a result was flushed to zero between two points, on AArch64, where such a result
// may differ from C1.2 and must be computed again in software. Elsewhere it never says so.
class UnderflowWatch {
 public:
#if defined(__aarch64__)
  void start() { asm volatile("msr fpsr, %0" ::"r"(read() & ~kUnderflow) : "memory"); }
  bool seen() const { return (read() & kUnderflow) != 0; }
  static constexpr bool kCanSee = true;

 private:
  static constexpr uint64_t kUnderflow = 1 << 3;  // FPSR.UFC, which a flushed result sets
  static uint64_t read() {
    uint64_t value;
    asm volatile("mrs %0, fpsr" : "=r"(value)::"memory");
    return value;
  }
#else
  void start() {}
  bool seen() const { return false; }
  static constexpr bool kCanSee = false;
#endif
};

}  // namespace deepinfer
