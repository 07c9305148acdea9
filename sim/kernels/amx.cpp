// Permission to use the AMX tile registers, and their set-up for a scope.
#include "sim/kernels/amx.h"

#include <cstdint>

#include "platform/errors.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace deepinfer {

#if defined(__x86_64__) && defined(__linux__)
namespace {

// arch_prctl(2) codes and the number of the tile data component in XCR0 (Linux, arch/x86, "Dynamic
// XSTATE features in user space").
constexpr long kArchGetXcompPerm = 0x1022;
constexpr long kArchRequestXcompPerm = 0x1023;
constexpr long kTileData = 18;

bool find_amx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  const bool amx_bf16 = (edx >> 22) & 1;
  const bool amx_tile = (edx >> 24) & 1;
  const bool avx512_vbmi = (ecx >> 1) & 1;
  if (!amx_bf16 || !amx_tile || !avx512_vbmi) return false;
  if (__get_cpuid_count(1, 0, &eax, &ebx, &ecx, &edx) == 0 || ((ecx >> 27) & 1) == 0) return false;
  unsigned xcr0_low = 0, xcr0_high = 0;
  asm volatile("xgetbv" : "=a"(xcr0_low), "=d"(xcr0_high) : "c"(0));
  constexpr unsigned kTileState = 3u << 17;  // tile configuration and tile data
  if ((xcr0_low & kTileState) != kTileState) return false;
  if (syscall(SYS_arch_prctl, kArchRequestXcompPerm, kTileData) != 0) return false;
  uint64_t granted = 0;
  if (syscall(SYS_arch_prctl, kArchGetXcompPerm, &granted) != 0) return false;
  return (granted >> kTileData) & 1;
}

// Memory operand of LDTILECFG (Intel SDM, "Palette 1").
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

}  // namespace

bool amx_permitted() {
  static const bool permitted = find_amx();
  return permitted;
}

// Written as assembly, so that this file needs no compiler flag.
AmxScope::AmxScope() {
  DEEPINFER_ASSERT(amx_permitted(), "AMX kernel on a machine without AMX");
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = 64;
    config.rows[tile] = 16;
  }
  asm volatile("ldtilecfg %0" : : "m"(config));
}

AmxScope::~AmxScope() { asm volatile("tilerelease"); }

#else

bool amx_permitted() { return false; }
AmxScope::AmxScope() { DEEPINFER_ASSERT(false, "AMX kernel on a machine without AMX"); }
AmxScope::~AmxScope() = default;

#endif

}  // namespace deepinfer
