// Any bytes as a safetensors file: either a CheckpointError, or tensors that lie inside the file.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "model/safetensors.h"
#include "platform/errors.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

// The input as a file without a disk, opened again by its path.
class MemoryFile {
 public:
  MemoryFile(const uint8_t* data, size_t size) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    size_t done = 0;
    while (fd_ >= 0 && done < size) {
      const ssize_t count = ::write(fd_, data + done, size - done);
      if (count <= 0) std::abort();
      done += static_cast<size_t>(count);
    }
    if (fd_ < 0) std::abort();
  }
  ~MemoryFile() { ::close(fd_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

void check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const MemoryFile memory(data, size);
  try {
    const deepinfer::SafetensorsFile file(memory.path());
    uint64_t covered = 0;
    uint64_t seen = 0;
    for (const deepinfer::TensorInfo& info : file.tensors()) {
      // They tile the payload: what is accepted is read whole, once, inside the file.
      if (covered != 0) check(info.begin == covered);
      covered = info.end;
      check(info.end <= size);
      auto bytes = static_cast<uint64_t>(deepinfer::item_bytes(info.type));
      for (const int64_t extent : info.shape) bytes *= static_cast<uint64_t>(extent);
      check(bytes == info.bytes());
      check(file.find(info.name) == &info);
      const auto view = file.view(info);
      check(view.size() == bytes);
      for (const std::byte byte : view) seen += static_cast<uint64_t>(byte);
      std::vector<std::byte> copy(view.size());
      file.read(info, 0, copy);
      check(std::equal(copy.begin(), copy.end(), view.begin()));
    }
    if (covered != 0) check(covered == size);
    check(seen <= 255 * static_cast<uint64_t>(size));
  } catch (const deepinfer::CheckpointError&) {
  }
  return 0;
}
