// Writes DeepSeek-V4.1-Flash at full size as sparse files: true headers, payload of holes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace deepinfer::test {

// A tensor of the released checkpoint, from the tables of model.md 2.3-2.6 with their literal
// numbers: written apart from model/tensor_inventory.cpp, so that the two check each other.
struct ReleasedTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
};
std::vector<ReleasedTensor> released_tensors();

inline constexpr int kReleasedShards = 48;

// Thrown where the file system cannot hold such files: no sparse files, or too small a limit.
struct NoSparseFiles {
  std::string why;
};

// Writes config.json, 48 shards (Engram tables in 47 and 48) and the index into `folder`. `rename`
// changes a tensor's name in its shard and in the index. Throws NoSparseFiles.
void write_full_size(const std::filesystem::path& folder, const std::filesystem::path& config,
                     const std::function<std::string(const std::string&)>& rename = {});

}  // namespace deepinfer::test
