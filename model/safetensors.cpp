#include "model/safetensors.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/json_reader.h"
#include "platform/errors.h"
#include "platform/nearest_name.h"

namespace deepinfer {
namespace {

// The format's own limit on a header, from its reference implementation.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr uint64_t kLengthBytes = 8;  // little-endian length before the header
constexpr size_t kMaxRank = 16;
constexpr size_t kMaxIndexBytes = size_t{256} << 20;

struct TypeEntry {
  StoredType type;
  std::string_view name;
  int64_t bytes;
};
constexpr std::array<TypeEntry, 16> kTypes = {{{StoredType::kBool, "BOOL", 1},
                                               {StoredType::kU8, "U8", 1},
                                               {StoredType::kI8, "I8", 1},
                                               {StoredType::kF8E4M3, "F8_E4M3", 1},
                                               {StoredType::kF8E5M2, "F8_E5M2", 1},
                                               {StoredType::kF8E8M0, "F8_E8M0", 1},
                                               {StoredType::kI16, "I16", 2},
                                               {StoredType::kU16, "U16", 2},
                                               {StoredType::kF16, "F16", 2},
                                               {StoredType::kBF16, "BF16", 2},
                                               {StoredType::kI32, "I32", 4},
                                               {StoredType::kU32, "U32", 4},
                                               {StoredType::kF32, "F32", 4},
                                               {StoredType::kI64, "I64", 8},
                                               {StoredType::kU64, "U64", 8},
                                               {StoredType::kF64, "F64", 8}}};

const TypeEntry& type_entry(StoredType type) {
  const auto index = static_cast<size_t>(type);
  DEEPINFER_ASSERT(index < kTypes.size() && kTypes[index].type == type, "type " << index);
  return kTypes[index];
}

StoredType parse_type(const JsonNode& node) {
  const std::string& name = node.string();
  std::vector<std::string_view> names;
  for (const TypeEntry& entry : kTypes) {
    if (entry.name == name) return entry.type;
    names.push_back(entry.name);
  }
  node.fail("unknown dtype",
            "a dtype of the safetensors format; nearest: " + nearest_name(name, names));
}

std::string size_text(uint64_t bytes) { return std::to_string(bytes) + " bytes"; }

// Reads one entry of the header: type, shape and offsets (relative to the payload), checked alone.
TensorInfo parse_entry(const JsonNode& node, const std::string& name) {
  node.expect_keys({"dtype", "shape", "data_offsets"});
  TensorInfo info;
  info.name = name;
  info.type = parse_type(node.at("dtype"));
  const JsonNode shape = node.at("shape");
  info.shape = shape.integers(0, std::numeric_limits<int64_t>::max(), kMaxRank);
  const JsonNode offsets = node.at("data_offsets");
  const auto range = offsets.integers(0, std::numeric_limits<int64_t>::max(), 2);
  if (range.size() != 2) offsets.fail("data_offsets is not a pair", "[begin, end]");
  if (range[1] < range[0]) {
    throw CheckpointError(
        {.what = "tensor ends before it begins",
         .where = offsets.where(),
         .expected = "begin <= end",
         .found = "[" + std::to_string(range[0]) + ", " + std::to_string(range[1]) + "]",
         .remedy = "write the file again"});
  }
  info.begin = static_cast<uint64_t>(range[0]);
  info.end = static_cast<uint64_t>(range[1]);

  uint64_t bytes = static_cast<uint64_t>(item_bytes(info.type));
  bool overflow = false;
  for (const int64_t size : info.shape) {
    overflow |= __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes);
  }
  // A zero may follow the sizes that overflowed; such a shape is refused all the same.
  if (overflow || bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    throw CheckpointError({.what = "shape product overflows 64 bits",
                           .where = shape.where(),
                           .expected = "a tensor below 2^63 bytes",
                           .found = shape_text(info.shape),
                           .remedy = "write the file again"});
  }
  if (info.bytes() != bytes) {
    throw CheckpointError({.what = "tensor size does not match its dtype and shape",
                           .where = node.where(),
                           .expected = size_text(bytes) + " for " +
                                       std::string(stored_type_name(info.type)) + " " +
                                       shape_text(info.shape),
                           .found = size_text(info.bytes()) + " between its data_offsets",
                           .remedy = "write the file again"});
  }
  return info;
}

void check_metadata(const JsonNode& node) {
  node.expect_object();
  for (const auto& member : node.value().members) {
    JsonNode(member.value, node.source(), node.path() + "." + quote_name(member.key)).string();
  }
}

// Tensors sorted by offset must tile the payload exactly: no overlap, no gap, nothing behind the
// last.
void check_layout(const std::vector<TensorInfo>& tensors, uint64_t payload_bytes,
                  const std::string& where) {
  const auto place = [&where](const TensorInfo& tensor) {
    return where + ", tensor " + quote_name(tensor.name);
  };
  uint64_t covered = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.begin < covered) {
      throw CheckpointError({.what = "tensors overlap",
                             .where = place(tensor),
                             .expected = "begin at byte " + std::to_string(covered) +
                                         " of the payload, where the previous tensor ends",
                             .found = std::to_string(tensor.begin),
                             .remedy = "write the file again"});
    }
    if (tensor.begin > covered) {
      if (tensor.end > payload_bytes) {
        throw CheckpointError({.what = "data_offsets lie past the end of the file",
                               .where = place(tensor),
                               .expected = "an end of at most " + std::to_string(payload_bytes),
                               .found = std::to_string(tensor.end),
                               .remedy = "write the file again"});
      }
      throw CheckpointError({.what = "bytes between tensors belong to none",
                             .where = place(tensor),
                             .expected = "begin at byte " + std::to_string(covered) +
                                         " of the payload, where the previous tensor ends",
                             .found = std::to_string(tensor.begin),
                             .remedy = "write the file again"});
    }
    covered = tensor.end;
  }
  if (covered > payload_bytes) {
    throw CheckpointError({.what = "file is truncated",
                           .where = where,
                           .expected = size_text(covered) + " of payload, by its header",
                           .found = size_text(payload_bytes),
                           .remedy = "copy or download the file again"});
  }
  if (covered < payload_bytes) {
    throw CheckpointError({.what = "bytes after the last tensor belong to none",
                           .where = where,
                           .expected = size_text(covered) + " of payload, by its header",
                           .found = size_text(payload_bytes),
                           .remedy = "write the file again"});
  }
}

class Descriptor {
 public:
  explicit Descriptor(const std::filesystem::path& path)
      // Non-blocking, so that a FIFO in the folder cannot hang the program.
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

int64_t item_bytes(StoredType type) { return type_entry(type).bytes; }
std::string_view stored_type_name(StoredType type) { return type_entry(type).name; }

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t size : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(size);
  }
  return text + "]";
}

std::vector<TensorInfo> parse_safetensors_header(std::string_view header, uint64_t payload_begin,
                                                 uint64_t file_bytes, const std::string& where) {
  DEEPINFER_ASSERT(payload_begin <= file_bytes, payload_begin << " > " << file_bytes);
  if (header.empty() || header.front() != '{') {
    throw CheckpointError({.what = "header is not JSON",
                           .where = where + ", header",
                           .expected = "an object that begins with '{' at byte 8",
                           .found = quote_name(header.substr(0, 16)),
                           .remedy = "this is not a safetensors file, or its start is damaged"});
  }
  // Some writers pad with NUL; the format pads with spaces. Told apart from a NUL inside the text.
  if (header.back() == '\0') {
    throw CheckpointError({.what = "header is padded with NUL bytes",
                           .where = where + ", header",
                           .expected = "spaces after the closing brace",
                           .found = "0x00",
                           .remedy = "write the file again with a writer that pads with spaces"});
  }
  const JsonLimits limits = {.max_bytes = kMaxHeaderBytes, .max_values = 2'000'000, .max_depth = 4};
  const JsonValue tree = parse_json(header, where + ", header", limits);
  const JsonNode root(tree, where);
  root.expect_object();

  std::vector<TensorInfo> tensors;
  tensors.reserve(tree.members.size());
  for (const auto& [key, value] : tree.members) {
    if (key == "__metadata__") {
      check_metadata(JsonNode(value, where, key));
      continue;
    }
    tensors.push_back(parse_entry(JsonNode(value, where, "tensor " + quote_name(key)), key));
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  check_layout(tensors, file_bytes - payload_begin, where);
  for (TensorInfo& tensor : tensors) {
    tensor.begin += payload_begin;
    tensor.end += payload_begin;
  }
  return tensors;
}

struct SafetensorsFile::Impl {
  explicit Impl(std::filesystem::path p) : path(std::move(p)), file(path) {}
  ~Impl() {
    if (mapping != nullptr) ::munmap(mapping, file_bytes);
  }

  CheckpointError error(std::string what, std::string expected, std::string found,
                        std::string remedy = "") const {
    return CheckpointError({.what = std::move(what),
                            .where = path.string(),
                            .expected = std::move(expected),
                            .found = std::move(found),
                            .remedy = std::move(remedy)});
  }

  uint64_t current_bytes() const {
    struct stat info = {};
    if (::fstat(file.get(), &info) != 0) {
      throw error("cannot read the size of the file", "a readable file", std::strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) {
      throw error("not a regular file", "a safetensors file",
                  S_ISDIR(info.st_mode) ? "a folder" : "a special file");
    }
    return static_cast<uint64_t>(info.st_size);
  }

  void check_unchanged() const {
    const uint64_t now = current_bytes();
    if (now != file_bytes) {
      throw error("file changed its size while in use", size_text(file_bytes), size_text(now),
                  "do not write to a checkpoint that is being read");
    }
  }

  void read_at(uint64_t offset, char* out, uint64_t count) const {
    while (count > 0) {
      const auto chunk = static_cast<size_t>(std::min<uint64_t>(count, uint64_t{1} << 30));
      const ssize_t got = ::pread(file.get(), out, chunk, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw error("cannot read file", "readable bytes", std::strerror(errno));
      if (got == 0) {
        check_unchanged();
        throw error("file ended while it was read", size_text(file_bytes), size_text(offset));
      }
      offset += static_cast<uint64_t>(got);
      out += got;
      count -= static_cast<uint64_t>(got);
    }
  }

  void open() {
    if (file.get() < 0) {
      throw error("cannot open file", "a readable safetensors file", std::strerror(errno),
                  "check the folder's name and its permissions");
    }
    file_bytes = current_bytes();
    if (file_bytes < kLengthBytes + 2) {
      throw error("file is too short to be safetensors", "at least " + size_text(kLengthBytes + 2),
                  size_text(file_bytes), "copy or download the file again");
    }
    std::array<unsigned char, kLengthBytes> raw = {};
    read_at(0, reinterpret_cast<char*>(raw.data()), raw.size());
    uint64_t length = 0;
    for (size_t i = 0; i < raw.size(); ++i) length |= uint64_t{raw[i]} << (8 * i);
    if (length > file_bytes - kLengthBytes) {
      throw error("header is longer than the file",
                  "at most " + size_text(file_bytes - kLengthBytes), size_text(length),
                  "the file is cut short, or is not safetensors");
    }
    if (length > kMaxHeaderBytes) {
      throw error("header is too long", "at most " + size_text(kMaxHeaderBytes), size_text(length),
                  "this is not a safetensors file");
    }
    std::string header(static_cast<size_t>(length), '\0');
    read_at(kLengthBytes, header.data(), length);
    payload_begin = kLengthBytes + length;
    tensors = parse_safetensors_header(header, payload_begin, file_bytes, path.string());
    by_name.reserve(tensors.size());
    for (const TensorInfo& tensor : tensors) by_name.emplace(tensor.name, &tensor);
  }

  void check_range(const TensorInfo& info) const {
    DEEPINFER_ASSERT(
        payload_begin <= info.begin && info.begin <= info.end && info.end <= file_bytes,
        info.name << " " << info.begin << ".." << info.end << " of " << file_bytes);
  }

  const std::byte* map() {
    const std::lock_guard lock(mutex);
    check_unchanged();
    if (mapping == nullptr) {
      void* address = ::mmap(nullptr, file_bytes, PROT_READ, MAP_SHARED, file.get(), 0);
      if (address == MAP_FAILED) {
        throw error("cannot map file into memory", "a mapping of " + size_text(file_bytes),
                    std::strerror(errno), "check the limit on virtual memory (ulimit -v)");
      }
      mapping = address;
    }
    return static_cast<const std::byte*>(mapping);
  }

  std::filesystem::path path;
  Descriptor file;
  uint64_t file_bytes = 0;
  uint64_t payload_begin = 0;
  std::vector<TensorInfo> tensors;
  std::unordered_map<std::string_view, const TensorInfo*> by_name;
  std::mutex mutex;  // guards mapping
  void* mapping = nullptr;
};

SafetensorsFile::SafetensorsFile(std::filesystem::path path)
    : impl_(std::make_unique<Impl>(std::move(path))) {
  impl_->open();
}
SafetensorsFile::~SafetensorsFile() = default;

const std::filesystem::path& SafetensorsFile::path() const { return impl_->path; }
uint64_t SafetensorsFile::file_bytes() const { return impl_->file_bytes; }
const std::vector<TensorInfo>& SafetensorsFile::tensors() const { return impl_->tensors; }

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto at = impl_->by_name.find(name);
  return at == impl_->by_name.end() ? nullptr : at->second;
}

std::span<const std::byte> SafetensorsFile::view(const TensorInfo& info) const {
  impl_->check_range(info);
  return {impl_->map() + info.begin, static_cast<size_t>(info.bytes())};
}

void SafetensorsFile::read(const TensorInfo& info, uint64_t offset,
                           std::span<std::byte> out) const {
  impl_->check_range(info);
  DEEPINFER_ASSERT(offset <= info.bytes() && out.size() <= info.bytes() - offset,
                   info.name << ": " << offset << " + " << out.size());
  impl_->read_at(info.begin + offset, reinterpret_cast<char*>(out.data()), out.size());
}

bool SafetensorsFile::mapped() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->mapping != nullptr;
}

struct TensorStore::Impl {
  struct Place {
    const TensorInfo* info;
    const SafetensorsFile* file;
  };

  std::filesystem::path directory;
  std::vector<std::unique_ptr<SafetensorsFile>> files;
  std::unordered_map<std::string_view, Place> tensors;
  uint64_t payload_bytes = 0;

  void add_file(const std::filesystem::path& path) {
    files.push_back(std::make_unique<SafetensorsFile>(path));
    const SafetensorsFile& file = *files.back();
    for (const TensorInfo& info : file.tensors()) {
      const auto [at, fresh] = tensors.emplace(info.name, Place{&info, &file});
      if (!fresh) {
        throw CheckpointError({.what = "tensor is in two shards",
                               .where = path.string() + ", tensor " + quote_name(info.name),
                               .expected = "every tensor once",
                               .found = "also in " + at->second.file->path().filename().string(),
                               .remedy = "copy or download the shards again"});
      }
      payload_bytes += info.bytes();
    }
  }

  void open() {
    namespace fs = std::filesystem;
    const fs::path single = directory / "model.safetensors";
    const fs::path index = directory / "model.safetensors.index.json";
    std::error_code ignored;
    if (!fs::is_directory(directory, ignored)) {
      throw CheckpointError({.what = "checkpoint folder does not exist",
                             .where = directory.string(),
                             .expected = "a folder with config.json and safetensors",
                             .found = fs::exists(directory, ignored) ? "a file" : "nothing",
                             .remedy = "check the path"});
    }
    const bool has_single = fs::exists(single, ignored);
    const bool has_index = fs::exists(index, ignored);
    if (!has_single && !has_index) {
      throw CheckpointError({.what = "folder holds no safetensors checkpoint",
                             .where = directory.string(),
                             .expected = "model.safetensors or model.safetensors.index.json",
                             .found = "neither",
                             .remedy = "check the path, or finish the download"});
    }
    if (has_single && has_index) {
      throw CheckpointError({.what = "folder holds two checkpoints",
                             .where = directory.string(),
                             .expected = "model.safetensors or model.safetensors.index.json",
                             .found = "both",
                             .remedy = "remove the one that is not wanted"});
    }
    if (has_single) {
      add_file(single);
    } else {
      open_shards(index);
    }
  }

  void open_shards(const std::filesystem::path& index_path) {
    const std::string where = index_path.string();
    const std::string text = read_text_file(where, kMaxIndexBytes);
    const JsonValue tree = parse_json(
        text, where, {.max_bytes = kMaxIndexBytes, .max_values = 2'000'000, .max_depth = 8});
    const JsonNode root(tree, where);
    root.expect_keys({"metadata", "weight_map"});
    const JsonNode map = root.at("weight_map");
    map.expect_object();

    std::map<std::string, SafetensorsFile*> shards;  // in order of their names
    for (const auto& [name, value] : map.value().members) {
      const std::string& shard = JsonNode(value, where, "weight_map." + quote_name(name)).string();
      const bool plain = !shard.empty() && shard != "." && shard != ".." &&
                         shard.find('/') == std::string::npos &&
                         shard.find('\0') == std::string::npos;
      if (!plain) {
        throw CheckpointError({.what = "index names a shard outside the folder",
                               .where = where + ", weight_map." + quote_name(name),
                               .expected = "a file name without folders",
                               .found = quote_name(shard),
                               .remedy = ""});
      }
      shards.emplace(shard, nullptr);
    }
    for (auto& [shard, file] : shards) {
      std::error_code ignored;
      if (!std::filesystem::exists(directory / shard, ignored)) {
        throw CheckpointError({.what = "index names a missing shard",
                               .where = where,
                               .expected = "file " + quote_name(shard) + " in the folder",
                               .found = "no such file",
                               .remedy = "finish the download"});
      }
      add_file(directory / shard);
      file = files.back().get();
    }
    check_map(map, shards);
    if (auto metadata = root.find("metadata")) check_total(*metadata);
  }

  void check_map(const JsonNode& map, const std::map<std::string, SafetensorsFile*>& shards) const {
    size_t matched = 0;
    std::unordered_set<std::string_view> listed;
    for (const auto& [name, value] : map.value().members) {
      listed.insert(name);
      const auto at = tensors.find(name);
      const std::string place = map.source() + ", tensor " + quote_name(name);
      if (at == tensors.end()) {
        throw CheckpointError({.what = "tensor of the index is in no shard",
                               .where = place,
                               .expected = "the tensor in " + quote_name(value.text),
                               .found = "no shard holds it",
                               .remedy = "copy or download the shards and their index again"});
      }
      if (at->second.file != shards.at(value.text)) {
        throw CheckpointError({.what = "tensor is in another shard than the index says",
                               .where = place,
                               .expected = quote_name(value.text),
                               .found = quote_name(at->second.file->path().filename().string()),
                               .remedy = "copy or download the shards and their index again"});
      }
      ++matched;
    }
    if (matched == tensors.size()) return;
    for (const auto& file : files) {
      for (const TensorInfo& info : file->tensors()) {
        if (listed.count(info.name) != 0) continue;
        throw CheckpointError({.what = "tensor of a shard is not in the index",
                               .where = file->path().string() + ", tensor " + quote_name(info.name),
                               .expected = "every tensor in weight_map",
                               .found = "no entry",
                               .remedy = "copy or download the shards and their index again"});
      }
    }
  }

  // Written by some tools as a fraction; compared as a number, exact below 2^53.
  void check_total(const JsonNode& metadata) const {
    metadata.expect_object();
    const auto total = metadata.find("total_size");
    if (!total) return;
    const bool equal = total->value().kind == JsonValue::Kind::kInteger
                           ? total->integer() == static_cast<int64_t>(payload_bytes)
                           : total->number() == static_cast<double>(payload_bytes);
    if (!equal) {
      total->fail("total_size of the index is not the size of all tensors",
                  size_text(payload_bytes), "copy or download the shards and their index again");
    }
  }
};

TensorStore::TensorStore(const std::filesystem::path& directory) : impl_(std::make_unique<Impl>()) {
  impl_->directory = directory;
  impl_->open();
}
TensorStore::~TensorStore() = default;

TensorStore::Located TensorStore::find(std::string_view name) const {
  const auto at = impl_->tensors.find(name);
  if (at == impl_->tensors.end()) return {};
  return {at->second.info, at->second.file};
}

std::vector<std::string> TensorStore::names() const {
  std::vector<std::string> names;
  names.reserve(impl_->tensors.size());
  for (const auto& [name, place] : impl_->tensors) names.emplace_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

int64_t TensorStore::shard_count() const { return static_cast<int64_t>(impl_->files.size()); }
uint64_t TensorStore::payload_bytes() const { return impl_->payload_bytes; }
const std::filesystem::path& TensorStore::directory() const { return impl_->directory; }

}  // namespace deepinfer
