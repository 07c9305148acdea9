// Chooses the instruction sets that Highway compiles kernels for: include it before any Highway
// header.
//
// A kernel file is written once and compiled for each of them by Highway's foreach_target.h:
//
//   #include "sim/kernels/highway_targets.h"
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "sim/kernels/NAME.cpp"
//   #include <hwy/foreach_target.h>
//   #include <hwy/highway.h>
//   HWY_BEFORE_NAMESPACE();
//   namespace deepinfer::HWY_NAMESPACE {
//   #if HWY_NATIVE_FMA
//   ... kernels, and `constexpr NameTable kNameTable = {...}` of their addresses
//   #endif
//   }
//   HWY_AFTER_NAMESPACE();
//   #if HWY_ONCE
//   namespace deepinfer {
//   const NameTable& name_table(Target target) {
//     DEEPINFER_SIM_SELECT_TARGET(target, kNameTable);   // returns from the function, or falls
//     through return kScalarNameTable;
//   }
//   }
//   #endif
//
// The choice is an argument and not Highway's global state, so that tests can run two targets side
// by side. Targets without fma (Highway's fallbacks) compile to nothing: the scalar twin is plain
// C++.
#pragma once

// All but the fallback, AVX2, AVX-512 and NEON. 1 << 29 is NEON without AES, which newer versions
// of Highway take for a plain AArch64 build, where 1.0.3 takes NEON.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS \
  (~(HWY_SCALAR | HWY_EMU128 | HWY_AVX2 | HWY_AVX3 | HWY_NEON | (1LL << 29)))

#include <hwy/detect_targets.h>

#include "sim/kernels/target.h"

#if HWY_TARGETS & HWY_AVX3
#define DEEPINFER_SIM_HAVE_AVX512 1
#define DEEPINFER_SIM_CASE_AVX512(name) \
  if (deepinfer_target == ::deepinfer::Target::kAvx512) return N_AVX3::name;
#else
#define DEEPINFER_SIM_HAVE_AVX512 0
#define DEEPINFER_SIM_CASE_AVX512(name)
#endif

#if HWY_TARGETS & HWY_AVX2
#define DEEPINFER_SIM_HAVE_AVX2 1
#define DEEPINFER_SIM_CASE_AVX2(name) \
  if (deepinfer_target == ::deepinfer::Target::kAvx2) return N_AVX2::name;
#else
#define DEEPINFER_SIM_HAVE_AVX2 0
#define DEEPINFER_SIM_CASE_AVX2(name)
#endif

#if HWY_TARGETS & HWY_NEON
#define DEEPINFER_SIM_HAVE_NEON 1
#define DEEPINFER_SIM_CASE_NEON(name) \
  if (deepinfer_target == ::deepinfer::Target::kNeon) return N_NEON::name;
#elif HWY_TARGETS & (1LL << 29)
#define DEEPINFER_SIM_HAVE_NEON 1
#define DEEPINFER_SIM_CASE_NEON(name) \
  if (deepinfer_target == ::deepinfer::Target::kNeon) return N_NEON_WITHOUT_AES::name;
#else
#define DEEPINFER_SIM_HAVE_NEON 0
#define DEEPINFER_SIM_CASE_NEON(name)
#endif

// Returns `name` of the namespace that was compiled for vector_target(target). Falls through for
// kScalar. Use it in namespace deepinfer, after the last inclusion (HWY_ONCE).
#define DEEPINFER_SIM_SELECT_TARGET(target, name)                                               \
  do {                                                                                          \
    [[maybe_unused]] const auto deepinfer_target = ::deepinfer::vector_target(target);          \
    DEEPINFER_SIM_CASE_AVX512(name) DEEPINFER_SIM_CASE_AVX2(name) DEEPINFER_SIM_CASE_NEON(name) \
  } while (false)
