#include "platform/process_memory.h"

#include <fstream>
#include <string>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace deepinfer {

bool reset_peak_resident() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
  std::ofstream file("/proc/self/clear_refs");
  file << 5 << std::flush;  // proc(5): resets VmHWM
  return file.good();
}

int64_t peak_resident_bytes() {
  std::ifstream file("/proc/self/status");
  std::string key;
  while (file >> key) {
    if (key == "VmHWM:") {
      int64_t kibibytes = 0;
      file >> kibibytes;
      return kibibytes * 1024;
    }
    std::getline(file, key);
  }
  return 0;
}

}  // namespace deepinfer
