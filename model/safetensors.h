// Safetensors files, read without copying: headers parsed strictly, payload memory-mapped on use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

// Element types of the safetensors format that this project meets.
enum class StoredType {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64
};

int64_t item_bytes(StoredType type);
// The format's own name, such as "F8_E4M3".
std::string_view stored_type_name(StoredType type);
// "[128, 32]"
std::string shape_text(const std::vector<int64_t>& shape);

// One entry of a header. Offsets are absolute in the file, checked to lie inside it.
struct TensorInfo {
  std::string name;
  StoredType type = StoredType::kU8;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t bytes() const { return end - begin; }
};

// Parses a header. `header` is the JSON text (without the 8-byte length); `payload_begin` is
// 8 + header length, `file_bytes` the size of the file. Checks: strict JSON, no NUL padding (spaces
// are allowed), no duplicate keys, known dtype, shape product without overflow, size = product *
// item size, offsets inside the file, no overlap and no gap. Throws CheckpointError naming `where`.
std::vector<TensorInfo> parse_safetensors_header(std::string_view header, uint64_t payload_begin,
                                                 uint64_t file_bytes, const std::string& where);

// One file. The header is read at once, the payload is mapped (read-only) at the first view.
// Thread rule: concurrent view() calls are safe.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::filesystem::path path);  // throws CheckpointError
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::filesystem::path& path() const;
  uint64_t file_bytes() const;
  const std::vector<TensorInfo>& tensors() const;       // in file order (by offset)
  const TensorInfo* find(std::string_view name) const;  // null if absent
  // Bytes of one tensor, not copied. Throws CheckpointError if the file is no longer as long as it
  // was; a file cut short while the view is read still raises SIGBUS, as with every mapping.
  std::span<const std::byte> view(const TensorInfo& info) const;
  // Copies out.size() bytes from `offset` of one tensor without mapping: for one pass over
  // everything. A file cut short is a CheckpointError.
  void read(const TensorInfo& info, uint64_t offset, std::span<std::byte> out) const;
  bool mapped() const;  // whether a view has been made

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// All tensors of a checkpoint folder: `model.safetensors`, or the shards that
// `model.safetensors.index.json` names.
class TensorStore {
 public:
  // Throws CheckpointError: neither file present, a missing shard, a tensor in another shard than
  // the index says, in two shards, in the index but nowhere, or in a shard but not in the index.
  explicit TensorStore(const std::filesystem::path& directory);
  ~TensorStore();
  TensorStore(const TensorStore&) = delete;
  TensorStore& operator=(const TensorStore&) = delete;

  struct Located {
    const TensorInfo* info = nullptr;
    const SafetensorsFile* file = nullptr;
    explicit operator bool() const { return info != nullptr; }
    std::span<const std::byte> bytes() const { return file->view(*info); }
  };
  Located find(std::string_view name) const;  // empty if absent
  std::vector<std::string> names() const;     // sorted
  int64_t shard_count() const;
  uint64_t payload_bytes() const;  // sum over tensors
  const std::filesystem::path& directory() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer
