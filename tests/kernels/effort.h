// How many of the random cases of a long test to run.
#pragma once

#include <cstdint>

namespace deepinfer {

// `cases` on a processor. An emulator, tens of times slower, runs a twentieth: the code that it
// proves is the same, and exhaustive tests stay whole.
constexpr int64_t effort(int64_t cases) {
#ifdef DEEPINFER_SIM_EMULATED
  return cases / 20;
#else
  return cases;
#endif
}

}  // namespace deepinfer
