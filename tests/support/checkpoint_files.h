// Writes checkpoint files for tests, sound or lying: raw headers, edited copies, sparse full-size
// sets.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer::test {

// A folder below the system's temporary one, removed at the end of its life.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// One tensor as a file spells it; nothing is checked.
struct RawTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

std::string read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, std::string_view content);

// Length field, header and payload, as given: any of them may lie.
std::string raw_safetensors(std::string_view header, std::string_view payload);
std::string raw_safetensors(uint64_t declared_header_bytes, std::string_view header,
                            std::string_view payload);

// A header that is true for `tensors`, laid out in their order. `extra` is put after the opening
// brace.
std::string header_of(const std::vector<RawTensor>& tensors, std::string_view extra = "");
// A sound file.
std::string safetensors_of(const std::vector<RawTensor>& tensors);
// Reads a sound file, in order of offsets.
std::vector<RawTensor> tensors_of(const std::filesystem::path& path);

// An edited copy of a checkpoint folder of golden/data.
class EditedCheckpoint {
 public:
  explicit EditedCheckpoint(std::string_view golden_name);

  RawTensor& tensor(std::string_view name);  // must exist
  void rename(std::string_view from, std::string_view to);
  void remove(std::string_view name);
  void add(RawTensor tensor) { tensors.push_back(std::move(tensor)); }
  // Replaces the first occurrence of `from`, which must exist.
  static void replace(std::string& text, std::string_view from, std::string_view to);

  // Writes config.json, engram_meta.json and model.safetensors.
  void write(const std::filesystem::path& folder) const;
  // The same in `shards` shards of about equal counts, with an index.
  void write_sharded(const std::filesystem::path& folder, int shards) const;

  std::vector<RawTensor> tensors;
  std::string config;
  std::string meta;

 private:
  void write_json(const std::filesystem::path& folder) const;
};

// "model-00002-of-00003.safetensors"
std::string shard_name(int shard, int shards);

}  // namespace deepinfer::test
