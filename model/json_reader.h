// Strict JSON for files that a run depends on: exact integers, no duplicate keys, errors that name
// the place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "platform/errors.h"

namespace deepinfer {

// What a text may cost before it is refused.
struct JsonLimits {
  size_t max_bytes = size_t{16} << 20;
  size_t max_values = 2'000'000;  // scalars, arrays and objects together
  int max_depth = 16;             // nested arrays and objects
};

// One parsed value. Integers keep all 64 bits; a number keeps the text it was written as.
struct JsonValue {
  enum class Kind : uint8_t { kNull, kBool, kInteger, kNumber, kString, kArray, kObject };
  struct Member;

  Kind kind = Kind::kNull;
  bool boolean = false;
  int64_t integer = 0;              // kInteger: fits int64
  double number = 0;                // kInteger and kNumber
  std::string text;                 // kString: the value; kNumber: as written
  std::vector<JsonValue> elements;  // kArray
  std::vector<Member> members;      // kObject, in file order
};
struct JsonValue::Member {
  std::string key;
  JsonValue value;
};

// A name from a file, in quotes, with control and non-ASCII bytes escaped and the middle of a long
// one left out: safe to print whatever the file holds.
std::string quote_name(std::string_view text);

// A value and where it stands, for reading with checks. Holds references into the parsed text: the
// root JsonValue must outlive it. Every getter throws CheckpointError naming file, path, expected
// and found.
class JsonNode {
 public:
  JsonNode(const JsonValue& value, std::string source, std::string path = "")
      : value_(&value), source_(std::move(source)), path_(std::move(path)) {}

  const JsonValue& value() const { return *value_; }
  const std::string& path() const { return path_; }      // "text_config.vocab_size", "" at the root
  const std::string& source() const { return source_; }  // the file
  std::string where() const;                             // "FILE, text_config.vocab_size"

  void expect_object() const;
  std::optional<JsonNode> find(std::string_view key) const;  // of an object
  JsonNode at(std::string_view key) const;                   // of an object; missing: an error
  // Fails on the first key outside `known`, naming the nearest one.
  void expect_keys(const std::vector<std::string_view>& known) const;

  int64_t integer(int64_t low = std::numeric_limits<int64_t>::min(),
                  int64_t high = std::numeric_limits<int64_t>::max()) const;
  double number() const;  // an integer or a fraction, finite
  bool boolean() const;
  const std::string& string() const;
  // An array of integers, each in [low, high], at most `max_count` of them.
  std::vector<int64_t> integers(int64_t low, int64_t high, size_t max_count) const;
  // A decimal string (or an integer) that fits int64: how engram_meta.json writes its multipliers.
  int64_t decimal() const;
  // The elements of an array, at most `max_count` of them.
  std::vector<JsonNode> elements(size_t max_count) const;

  bool is_null() const { return value_->kind == JsonValue::Kind::kNull; }
  std::string describe() const;  // the value, shortened, for "found"
  [[noreturn]] void fail(std::string what, std::string expected, std::string remedy = "") const;

 private:
  const JsonValue* value_;
  std::string source_;
  std::string path_;
};

// Parses strict JSON (RFC 8259 without duplicate keys, byte order mark or NUL bytes) within
// `limits`. `where` names the source. Throws CheckpointError; nothing of the JSON library escapes.
JsonValue parse_json(std::string_view text, const std::string& where,
                     const JsonLimits& limits = {});

// Reads a whole regular file of at most `max_bytes`. Throws CheckpointError.
std::string read_text_file(const std::string& path, size_t max_bytes);

}  // namespace deepinfer
