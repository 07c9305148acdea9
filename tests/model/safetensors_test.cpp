// Safetensors files and checkpoint folders: the format's corners, lazy mapping, files that change
// underneath.
#include "model/safetensors.h"

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/checkpoint_files.h"
#include "tests/support/messages.h"

namespace deepinfer::test {
namespace {

namespace fs = std::filesystem;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<RawTensor> two_tensors() {
  return {{"a", "U8", {2, 3}, "abcdef"}, {"b", "BF16", {2}, "wxyz"}};
}

}  // namespace

TEST_CASE("every dtype of the format is known by its size and name") {
  const std::vector<std::pair<std::string, int64_t>> types = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
      {"F32", 4},  {"I64", 8}, {"U64", 8}, {"F64", 8}};
  for (const auto& entry : types) {
    const std::string& name = entry.first;
    const int64_t bytes = entry.second;
    CAPTURE(name);
    const std::string header = "{\"t\":{\"dtype\":\"" + name +
                               "\",\"shape\":[3],\"data_offsets\":[0," + std::to_string(3 * bytes) +
                               "]}}";
    const auto tensors =
        parse_safetensors_header(header, 100, 100 + 3 * static_cast<uint64_t>(bytes), "FILE");
    REQUIRE(tensors.size() == 1);
    CHECK(item_bytes(tensors[0].type) == bytes);
    CHECK(stored_type_name(tensors[0].type) == name);
    CHECK(tensors[0].begin == 100);
    CHECK(tensors[0].bytes() == 3 * static_cast<uint64_t>(bytes));
  }
}

TEST_CASE("the corners of the format are read") {
  const auto parse = [](const std::string& header, uint64_t payload) {
    return parse_safetensors_header(header, 8 + header.size(), 8 + header.size() + payload, "FILE");
  };
  CHECK(parse("{}", 0).empty());
  CHECK(parse("{}      ", 0).empty());
  CHECK(parse("{\"__metadata__\":{\"format\":\"pt\"}}", 0).empty());
  // A scalar, an empty tensor between two others, and entries out of order.
  const auto tensors = parse(
      "{\"c\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[2,3]},"
      "\"b\":{\"dtype\":\"F32\",\"shape\":[4,0],\"data_offsets\":[2,2]},"
      "\"a\":{\"data_offsets\":[0,2],\"shape\":[1,2],\"dtype\":\"U8\"}}",
      3);
  REQUIRE(tensors.size() == 3);
  CHECK(tensors[0].name == "a");
  CHECK(tensors[1].name == "b");
  CHECK(tensors[2].name == "c");
  CHECK(tensors[2].shape.empty());
}

TEST_CASE("headers that break the format are refused") {
  const auto what = [](const std::string& entry, uint64_t payload) {
    const std::string header = "{\"t\":" + entry + "}";
    return checkpoint_error([&] {
             parse_safetensors_header(header, 8 + header.size(), 8 + header.size() + payload,
                                      "FILE");
           })
        .what;
  };
  CHECK(what(R"({"dtype":"U8","shape":[2]})", 2) == "key \"data_offsets\" is missing");
  CHECK(what(R"({"dtype":"U8","shape":[2],"data_offsets":[0]})", 2) ==
        "data_offsets is not a pair");
  CHECK(what(R"({"dtype":"U8","shape":[2],"data_offsets":[0,2,3]})", 2) == "array too long");
  CHECK(what(R"({"dtype":"U8","shape":[2],"data_offsets":[0,2.0]})", 2) == "wrong JSON type");
  CHECK(what(R"({"dtype":"U8","shape":[2],"data_offsets":[0,18446744073709551615]})", 2) ==
        "wrong JSON type");
  CHECK(what(R"({"dtype":"U8","shape":2,"data_offsets":[0,2]})", 2) == "wrong JSON type");
  CHECK(what(R"({"dtype":"u8","shape":[2],"data_offsets":[0,2]})", 2) == "unknown dtype");
  CHECK(what(R"({"dtype":"U8","shape":[2],"data_offsets":[0,2],"x":1})", 2) == "unknown key \"x\"");
  CHECK(what("7", 0) == "wrong JSON type");
  // Products that wrap to a small number, and one that a zero would hide.
  CHECK(what(R"({"dtype":"U8","shape":[4294967296,4294967296,2],"data_offsets":[0,0]})", 0) ==
        "shape product overflows 64 bits");
  CHECK(what(R"({"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]})", 0) ==
        "shape product overflows 64 bits");
  CHECK(what(R"({"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]})", 0) ==
        "shape product overflows 64 bits");
  const std::string metadata = "{\"__metadata__\":{\"n\":1}}";
  CHECK(checkpoint_error([&] { parse_safetensors_header(metadata, 100, 100, "FILE"); }).expected ==
        "a string");
}

TEST_CASE("every golden file is read") {
  int64_t files = 0;
  for (const auto& entry :
       fs::recursive_directory_iterator(fs::path(DEEPINFER_SIM_SOURCE_DIR) / "golden/data")) {
    if (entry.path().extension() != ".safetensors") continue;
    CAPTURE(entry.path());
    const std::vector<RawTensor> expected = tensors_of(entry.path());
    const SafetensorsFile file(entry.path());
    REQUIRE(file.tensors().size() == expected.size());
    for (const RawTensor& tensor : expected) {
      const TensorInfo* info = file.find(tensor.name);
      REQUIRE(info != nullptr);
      REQUIRE(stored_type_name(info->type) == tensor.dtype);
      REQUIRE(info->shape == tensor.shape);
      REQUIRE(text_of(file.view(*info)) == tensor.bytes);
    }
    ++files;
  }
  CHECK(files >= 15);
}

TEST_CASE("a file is mapped at the first view and not before") {
  const TempFolder folder;
  write_file(folder / "f.safetensors", safetensors_of(two_tensors()));
  const SafetensorsFile file(folder / "f.safetensors");
  REQUIRE(file.tensors().size() == 2);
  REQUIRE(file.find("b") != nullptr);
  CHECK(file.find("c") == nullptr);
  CHECK(file.file_bytes() == fs::file_size(folder / "f.safetensors"));

  std::vector<std::byte> part(2);
  file.read(*file.find("a"), 3, part);
  CHECK(text_of(part) == "de");
  CHECK_FALSE(file.mapped());
  CHECK(text_of(file.view(*file.find("a"))) == "abcdef");
  CHECK(text_of(file.view(*file.find("b"))) == "wxyz");
  CHECK(file.mapped());
}

TEST_CASE("views may be taken from several threads at once") {
  const TempFolder folder;
  write_file(folder / "f.safetensors", safetensors_of(two_tensors()));
  const SafetensorsFile file(folder / "f.safetensors");
  std::vector<std::thread> threads;
  std::vector<int> good(8, 0);
  for (size_t i = 0; i < good.size(); ++i) {
    threads.emplace_back([&, i] { good[i] = text_of(file.view(*file.find("b"))) == "wxyz"; });
  }
  for (auto& thread : threads) thread.join();
  for (const int g : good) CHECK(g == 1);
}

TEST_CASE("nothing past a tensor's or the file's end can be asked for") {
  const TempFolder folder;
  write_file(folder / "f.safetensors", safetensors_of(two_tensors()));
  const SafetensorsFile file(folder / "f.safetensors");
  TensorInfo info = *file.find("b");
  std::vector<std::byte> buffer(8);
  CHECK_THROWS_AS(file.read(info, 0, buffer), std::logic_error);
  CHECK_THROWS_AS(file.read(info, 5, std::span(buffer).first(0)), std::logic_error);
  info.end += 1;
  CHECK_THROWS_AS(file.view(info), std::logic_error);
  info.begin = 0;
  info.end = 4;
  CHECK_THROWS_AS(file.view(info), std::logic_error);
}

TEST_CASE("a file that shrinks underneath is an error, not a signal") {
  const TempFolder folder;
  const fs::path path = folder / "f.safetensors";
  write_file(path, safetensors_of(two_tensors()));
  const auto size = fs::file_size(path);
  const SafetensorsFile file(path);
  const TensorInfo& last = *file.find("b");
  fs::resize_file(path, size - 2);
  CHECK(checkpoint_error([&] { file.view(last); }).what == "file changed its size while in use");
  std::vector<std::byte> buffer(4);
  CHECK(checkpoint_error([&] { file.read(last, 0, buffer); }).what ==
        "file changed its size while in use");
  fs::resize_file(path, size);
  CHECK(text_of(file.view(last)).substr(0, 2) == "wx");
  fs::resize_file(path, size + 1);
  CHECK(checkpoint_error([&] { file.view(last); }).what == "file changed its size while in use");
}

TEST_CASE("what is no regular file is refused without waiting for it") {
  const TempFolder folder;
  CHECK(checkpoint_error([&] { SafetensorsFile f(folder / "none"); }).what == "cannot open file");
  CHECK(checkpoint_error([&] { SafetensorsFile f(folder.path()); }).what == "not a regular file");
  REQUIRE(::mkfifo((folder / "fifo").c_str(), 0600) == 0);
  CHECK(checkpoint_error([&] { SafetensorsFile f(folder / "fifo"); }).found == "a special file");
}

TEST_CASE("a header of more than 100 MB is refused before it is read") {
  const TempFolder folder;
  const fs::path path = folder / "f.safetensors";
  write_file(path, raw_safetensors(uint64_t{100'000'001}, "{", ""));
  fs::resize_file(path, 200'000'000);
  CHECK(checkpoint_error([&] { SafetensorsFile f(path); }).what == "header is too long");
}

TEST_CASE("a folder is a single file or shards with an index, with the same tensors") {
  const EditedCheckpoint checkpoint("tiny-fp8");
  const TempFolder single, sharded;
  checkpoint.write(single.path());
  checkpoint.write_sharded(sharded.path(), 5);
  const TensorStore a(single.path()), b(sharded.path());
  CHECK(a.shard_count() == 1);
  CHECK(b.shard_count() == 5);
  CHECK(a.names() == b.names());
  CHECK(a.names().size() == 1164);
  CHECK(a.payload_bytes() == b.payload_bytes());
  CHECK_FALSE(a.find("absent"));
  for (const RawTensor& tensor : checkpoint.tensors) {
    REQUIRE(text_of(a.find(tensor.name).bytes()) == tensor.bytes);
    REQUIRE(text_of(b.find(tensor.name).bytes()) == tensor.bytes);
    REQUIRE(a.find(tensor.name).info->shape == tensor.shape);
  }
  CHECK(a.directory() == single.path());
}

TEST_CASE("an index may lack metadata or write the total as a fraction") {
  const EditedCheckpoint checkpoint("tiny-fp8");
  const TempFolder folder;
  checkpoint.write_sharded(folder.path(), 2);
  const fs::path path = folder / "model.safetensors.index.json";
  std::string text = read_file(path);
  const size_t begin = text.find("\"metadata\""), end = text.find("\"weight_map\"");
  const std::string total = std::to_string(TensorStore(folder.path()).payload_bytes());
  write_file(path, text.substr(0, begin) + text.substr(end));
  CHECK_NOTHROW(TensorStore(folder.path()));
  write_file(path, text.substr(0, begin) + "\"metadata\": {\"total_size\": " + total + ".0}, " +
                       text.substr(end));
  CHECK_NOTHROW(TensorStore(folder.path()));
}

TEST_CASE("folders without a checkpoint say what is missing") {
  const TempFolder folder;
  CHECK(checkpoint_error([&] { TensorStore s(folder.path()); }).what ==
        "folder holds no safetensors checkpoint");
  CHECK(checkpoint_error([&] { TensorStore s(folder / "none"); }).what ==
        "checkpoint folder does not exist");
}

}  // namespace deepinfer::test
