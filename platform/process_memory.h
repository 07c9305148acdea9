// How much memory the process has had resident, as the kernel counts it.
#pragma once

#include <cstdint>

namespace deepinfer {

// Gives what the allocator keeps free back to the system and starts a new peak. False where the
// system offers no way to (then peak_resident_bytes is that of the whole life of the process).
bool reset_peak_resident();
// Largest resident set since then, bytes; 0 where it cannot be read.
int64_t peak_resident_bytes();

}  // namespace deepinfer
