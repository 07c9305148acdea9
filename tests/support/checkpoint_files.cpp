#include "tests/support/checkpoint_files.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include <nlohmann/json.hpp>
#include <unistd.h>

namespace deepinfer::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

std::string length_field(uint64_t length) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(length >> (8 * i) & 0xff);
  return out;
}

}  // namespace

TempFolder::TempFolder() {
  std::string pattern = (fs::temp_directory_path() / "deepinfer_sim_XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp " + pattern);
  path_ = pattern;
}
TempFolder::~TempFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void write_file(const fs::path& path, std::string_view content) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path.string());
}

std::string raw_safetensors(uint64_t declared_header_bytes, std::string_view header,
                            std::string_view payload) {
  return length_field(declared_header_bytes).append(header).append(payload);
}
std::string raw_safetensors(std::string_view header, std::string_view payload) {
  return raw_safetensors(header.size(), header, payload);
}

std::string header_of(const std::vector<RawTensor>& tensors, std::string_view extra) {
  std::string text = "{";
  text.append(extra);
  uint64_t offset = 0;
  for (const RawTensor& tensor : tensors) {
    if (text.size() > 1 && text.back() != ',') text += ',';
    const ordered_json entry = {{"dtype", tensor.dtype},
                                {"shape", tensor.shape},
                                {"data_offsets", {offset, offset + tensor.bytes.size()}}};
    text += ordered_json(tensor.name).dump() + ":" + entry.dump();
    offset += tensor.bytes.size();
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');  // writers align the payload to 8 bytes
  return text;
}

std::string safetensors_of(const std::vector<RawTensor>& tensors) {
  std::string payload;
  for (const RawTensor& tensor : tensors) payload += tensor.bytes;
  return raw_safetensors(header_of(tensors), payload);
}

std::vector<RawTensor> tensors_of(const fs::path& path) {
  const std::string file = read_file(path);
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= uint64_t{static_cast<unsigned char>(file[i])} << (8 * i);
  const auto header = ordered_json::parse(file.substr(8, length));
  std::vector<std::pair<uint64_t, RawTensor>> found;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const uint64_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    found.push_back({begin,
                     {.name = name,
                      .dtype = entry["dtype"],
                      .shape = entry["shape"],
                      .bytes = file.substr(8 + length + begin, end - begin)}});
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<RawTensor> tensors;
  for (auto& [begin, tensor] : found) tensors.push_back(std::move(tensor));
  return tensors;
}

EditedCheckpoint::EditedCheckpoint(std::string_view golden_name) {
  const fs::path folder = fs::path(DEEPINFER_SIM_SOURCE_DIR) / "golden" / "data" / golden_name;
  tensors = tensors_of(folder / "model.safetensors");
  config = read_file(folder / "config.json");
  meta = read_file(folder / "engram_meta.json");
}

RawTensor& EditedCheckpoint::tensor(std::string_view name) {
  for (RawTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  throw std::runtime_error("no tensor " + std::string(name));
}

void EditedCheckpoint::rename(std::string_view from, std::string_view to) {
  tensor(from).name = to;
}

void EditedCheckpoint::remove(std::string_view name) {
  const RawTensor* gone = &tensor(name);
  tensors.erase(tensors.begin() + (gone - tensors.data()));
}

void EditedCheckpoint::replace(std::string& text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  if (at == std::string::npos) throw std::runtime_error("no text " + std::string(from));
  text.replace(at, from.size(), to);
}

void EditedCheckpoint::write_json(const fs::path& folder) const {
  write_file(folder / "config.json", config);
  write_file(folder / "engram_meta.json", meta);
}

void EditedCheckpoint::write(const fs::path& folder) const {
  write_json(folder);
  write_file(folder / "model.safetensors", safetensors_of(tensors));
}

void EditedCheckpoint::write_sharded(const fs::path& folder, int shards) const {
  write_json(folder);
  const size_t share =
      (tensors.size() + static_cast<size_t>(shards) - 1) / static_cast<size_t>(shards);
  ordered_json map = ordered_json::object();
  uint64_t total = 0;
  for (int shard = 1; shard <= shards; ++shard) {
    const size_t begin = std::min(tensors.size(), share * static_cast<size_t>(shard - 1));
    const size_t end = std::min(tensors.size(), begin + share);
    const std::vector<RawTensor> part(tensors.begin() + static_cast<std::ptrdiff_t>(begin),
                                      tensors.begin() + static_cast<std::ptrdiff_t>(end));
    for (const RawTensor& tensor : part) {
      map[tensor.name] = shard_name(shard, shards);
      total += tensor.bytes.size();
    }
    write_file(folder / shard_name(shard, shards), safetensors_of(part));
  }
  const ordered_json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  write_file(folder / "model.safetensors.index.json", index.dump(1));
}

std::string shard_name(int shard, int shards) {
  char name[64];
  std::snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", shard, shards);
  return name;
}

}  // namespace deepinfer::test
