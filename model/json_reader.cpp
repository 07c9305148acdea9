#include "model/json_reader.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "platform/nearest_name.h"

namespace deepinfer {
namespace {

using Kind = JsonValue::Kind;

// Builds a JsonValue from the library's events and stops at the first breach of a limit. The
// library's own tree is not used: it keeps the last of two equal keys and turns large integers into
// doubles.
class TreeBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  TreeBuilder(const std::string& where, const JsonLimits& limits, JsonValue& root)
      : where_(where), limits_(limits), root_(root) {}

  bool null() override { return add({}); }
  bool boolean(bool value) override {
    JsonValue node;
    node.kind = Kind::kBool;
    node.boolean = value;
    return add(std::move(node));
  }
  bool number_integer(number_integer_t value) override { return add(integer_node(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value <= static_cast<number_unsigned_t>(std::numeric_limits<int64_t>::max())) {
      return add(integer_node(static_cast<int64_t>(value)));
    }
    return add(number_node(static_cast<double>(value), std::to_string(value)));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    return add(number_node(value, text));
  }
  bool string(string_t& value) override {
    JsonValue node;
    node.kind = Kind::kString;
    node.text = std::move(value);
    return add(std::move(node));
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Kind::kObject); }
  bool key(string_t& key) override {
    stack_.back()->members.push_back({std::move(key), {}});
    return true;
  }
  bool end_object() override {
    const auto& members = stack_.back()->members;
    std::vector<std::string_view> keys;
    keys.reserve(members.size());
    for (const auto& member : members) keys.push_back(member.key);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) {
      throw CheckpointError({.what = "duplicate key " + quote_name(*twice) + " in a JSON object",
                             .where = where_,
                             .expected = "every key once",
                             .found = "the key at least twice; readers disagree which one counts",
                             .remedy = "write the file again"});
    }
    stack_.pop_back();
    return true;
  }
  bool start_array(std::size_t) override { return open(Kind::kArray); }
  bool end_array() override {
    stack_.pop_back();
    return true;
  }
  bool parse_error(std::size_t position, const std::string& last_token,
                   const nlohmann::json::exception& error) override {
    std::string message = error.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error ..."
    if (const size_t end = message.find("] "); end != std::string::npos) message.erase(0, end + 2);
    if (const size_t last = message.find("; last read: "); last != std::string::npos) {
      message.resize(last);  // raw bytes of the file; shown escaped below
    }
    throw CheckpointError({.what = "not valid JSON",
                           .where = where_ + ", byte " + std::to_string(position),
                           .expected = "strict JSON (RFC 8259)",
                           .found = quote_name(last_token) + ": " + message,
                           .remedy = ""});
  }

 private:
  static JsonValue integer_node(int64_t value) {
    JsonValue node;
    node.kind = Kind::kInteger;
    node.integer = value;
    node.number = static_cast<double>(value);
    return node;
  }
  static JsonValue number_node(double value, std::string text) {
    JsonValue node;
    node.kind = Kind::kNumber;
    node.number = value;
    node.text = std::move(text);
    return node;
  }

  JsonValue* place(JsonValue node) {
    if (++values_ > limits_.max_values) {
      throw CheckpointError({.what = "JSON holds too many values",
                             .where = where_,
                             .expected = "at most " + std::to_string(limits_.max_values),
                             .found = "more",
                             .remedy = "this is not a file of the released form"});
    }
    if (stack_.empty()) {
      root_ = std::move(node);
      return &root_;
    }
    JsonValue& parent = *stack_.back();
    if (parent.kind == Kind::kArray) return &parent.elements.emplace_back(std::move(node));
    JsonValue& slot = parent.members.back().value;
    slot = std::move(node);
    return &slot;
  }
  bool add(JsonValue node) {
    place(std::move(node));
    return true;
  }
  // Pointers on the stack stay valid: a parent grows only while none of its children is open.
  bool open(Kind kind) {
    if (static_cast<int>(stack_.size()) >= limits_.max_depth) {
      throw CheckpointError({.what = "JSON is nested too deeply",
                             .where = where_,
                             .expected = "at most " + std::to_string(limits_.max_depth) + " levels",
                             .found = "more",
                             .remedy = "this is not a file of the released form"});
    }
    JsonValue node;
    node.kind = kind;
    stack_.push_back(place(std::move(node)));
    return true;
  }

  const std::string& where_;
  const JsonLimits& limits_;
  JsonValue& root_;
  std::vector<JsonValue*> stack_;
  size_t values_ = 0;
};

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return "a boolean";
    case Kind::kInteger:
      return "an integer";
    case Kind::kNumber:
      return "a number";
    case Kind::kString:
      return "a string";
    case Kind::kArray:
      return "an array";
    case Kind::kObject:
      return "an object";
  }
  return "a value";
}

std::string range_text(int64_t low, int64_t high) {
  if (low == high) return std::to_string(low);
  if (high == std::numeric_limits<int64_t>::max()) {
    if (low == std::numeric_limits<int64_t>::min()) return "an integer";
    return "an integer of at least " + std::to_string(low);
  }
  return "an integer from " + std::to_string(low) + " to " + std::to_string(high);
}

// Closes a descriptor on every way out.
struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

std::string quote_name(std::string_view text) {
  constexpr size_t kHead = 96, kTail = 32;  // longest tensor name of the release: 52 characters
  std::string out = "\"";
  const auto append = [&out](std::string_view part) {
    static const char* digits = "0123456789abcdef";
    for (const char c : part) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        out += '\\';
        out += c;
      } else if (byte >= 0x20 && byte < 0x7f) {
        out += c;
      } else {
        out.append("\\x").append(1, digits[byte >> 4]).append(1, digits[byte & 15]);
      }
    }
  };
  if (text.size() <= kHead + kTail) {
    append(text);
  } else {
    append(text.substr(0, kHead));
    out += "...";
    append(text.substr(text.size() - kTail));
  }
  return out + '"';
}

std::string JsonNode::where() const { return path_.empty() ? source_ : source_ + ", " + path_; }

std::string JsonNode::describe() const {
  switch (value_->kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return value_->boolean ? "true" : "false";
    case Kind::kInteger:
      return std::to_string(value_->integer);
    case Kind::kNumber:
      return value_->text.substr(0, 40);
    case Kind::kString:
      return quote_name(value_->text);
    case Kind::kArray:
      return "an array of " + std::to_string(value_->elements.size());
    case Kind::kObject:
      return "an object of " + std::to_string(value_->members.size()) + " keys";
  }
  return kind_name(value_->kind);
}

void JsonNode::fail(std::string what, std::string expected, std::string remedy) const {
  throw CheckpointError({.what = std::move(what),
                         .where = where(),
                         .expected = std::move(expected),
                         .found = describe(),
                         .remedy = std::move(remedy)});
}

void JsonNode::expect_object() const {
  if (value_->kind != Kind::kObject) fail("wrong JSON type", "an object");
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  expect_object();
  for (const auto& member : value_->members) {
    if (member.key != key) continue;
    std::string path = path_.empty() ? "" : path_ + ".";
    return JsonNode(member.value, source_, path.append(key));
  }
  return std::nullopt;
}

JsonNode JsonNode::at(std::string_view key) const {
  if (auto node = find(key)) return *node;
  throw CheckpointError({.what = "key " + quote_name(key) + " is missing",
                         .where = where(),
                         .expected = "the key, as in the released file",
                         .found = "no such key",
                         .remedy = ""});
}

void JsonNode::expect_keys(const std::vector<std::string_view>& known) const {
  expect_object();
  for (const auto& member : value_->members) {
    if (std::find(known.begin(), known.end(), member.key) != known.end()) continue;
    throw CheckpointError(
        {.what = "unknown key " + quote_name(member.key),
         .where = where(),
         .expected = "a known key; nearest: " + nearest_name(member.key, known),
         .found = quote_name(member.key),
         .remedy = "correct or remove the key: what it would change is not known"});
  }
}

int64_t JsonNode::integer(int64_t low, int64_t high) const {
  if (value_->kind != Kind::kInteger) fail("wrong JSON type", range_text(low, high));
  if (value_->integer < low || value_->integer > high) {
    fail("value out of range", range_text(low, high));
  }
  return value_->integer;
}

double JsonNode::number() const {
  if (value_->kind != Kind::kInteger && value_->kind != Kind::kNumber) {
    fail("wrong JSON type", "a number");
  }
  return value_->number;
}

bool JsonNode::boolean() const {
  if (value_->kind != Kind::kBool) fail("wrong JSON type", "true or false");
  return value_->boolean;
}

const std::string& JsonNode::string() const {
  if (value_->kind != Kind::kString) fail("wrong JSON type", "a string");
  return value_->text;
}

std::vector<int64_t> JsonNode::integers(int64_t low, int64_t high, size_t max_count) const {
  if (value_->kind != Kind::kArray) fail("wrong JSON type", "an array of integers");
  if (value_->elements.size() > max_count) {
    fail("array too long", "at most " + std::to_string(max_count) + " elements");
  }
  std::vector<int64_t> out;
  out.reserve(value_->elements.size());
  for (const JsonValue& element : value_->elements) {
    if (element.kind != Kind::kInteger || element.integer < low || element.integer > high) {
      JsonNode(element, source_, path_ + "[" + std::to_string(out.size()) + "]").integer(low, high);
    }
    out.push_back(element.integer);
  }
  return out;
}

int64_t JsonNode::decimal() const {
  if (value_->kind == Kind::kInteger) return value_->integer;
  const char* expected = "an integer of 64 bits as a decimal string";
  if (value_->kind != Kind::kString) fail("wrong JSON type", expected);
  const std::string& text = value_->text;
  int64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size()) {
    fail("not a decimal integer", expected);
  }
  return out;
}

std::vector<JsonNode> JsonNode::elements(size_t max_count) const {
  if (value_->kind != Kind::kArray) fail("wrong JSON type", "an array");
  if (value_->elements.size() > max_count) {
    fail("array too long", "at most " + std::to_string(max_count) + " elements");
  }
  std::vector<JsonNode> out;
  out.reserve(value_->elements.size());
  for (const JsonValue& element : value_->elements) {
    out.emplace_back(element, source_, path_ + "[" + std::to_string(out.size()) + "]");
  }
  return out;
}

JsonValue parse_json(std::string_view text, const std::string& where, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    throw CheckpointError({.what = "JSON text is too long",
                           .where = where,
                           .expected = "at most " + std::to_string(limits.max_bytes) + " bytes",
                           .found = std::to_string(text.size()),
                           .remedy = "this is not a file of the released form"});
  }
  // The library takes a NUL byte for the end of the text and skips a byte order mark: check both
  // here.
  if (const size_t at = text.find('\0'); at != std::string_view::npos) {
    throw CheckpointError({.what = "NUL byte in JSON text",
                           .where = where + ", byte " + std::to_string(at),
                           .expected = "JSON text without NUL bytes",
                           .found = "0x00",
                           .remedy = "pad with spaces, or write the file again"});
  }
  if (text.substr(0, 3) == "\xef\xbb\xbf") {
    throw CheckpointError({.what = "JSON text begins with a byte order mark",
                           .where = where,
                           .expected = "plain UTF-8",
                           .found = "EF BB BF",
                           .remedy = "write the file without it"});
  }
  JsonValue root;
  TreeBuilder builder(where, limits, root);
  try {
    if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
      throw CheckpointError({.what = "not valid JSON",
                             .where = where,
                             .expected = "strict JSON (RFC 8259)",
                             .found = "text that ends early",
                             .remedy = ""});
    }
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError({.what = "not valid JSON",
                           .where = where,
                           .expected = "strict JSON (RFC 8259)",
                           .found = error.what(),
                           .remedy = ""});
  }
  return root;
}

std::string read_text_file(const std::string& path, size_t max_bytes) {
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  struct stat info = {};
  if (file.fd < 0 || ::fstat(file.fd, &info) != 0) {
    throw CheckpointError({.what = "cannot open file",
                           .where = path,
                           .expected = "a readable file",
                           .found = std::strerror(errno),
                           .remedy = "check the folder's name and its permissions"});
  }
  if (!S_ISREG(info.st_mode)) {
    throw CheckpointError({.what = "not a regular file",
                           .where = path,
                           .expected = "a regular file",
                           .found = S_ISDIR(info.st_mode) ? "a folder" : "a special file",
                           .remedy = ""});
  }
  if (static_cast<uint64_t>(info.st_size) > max_bytes) {
    throw CheckpointError({.what = "file is too large for what it should hold",
                           .where = path,
                           .expected = "at most " + std::to_string(max_bytes) + " bytes",
                           .found = std::to_string(info.st_size),
                           .remedy = ""});
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = ::read(file.fd, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      throw CheckpointError({.what = "file ended while it was read",
                             .where = path,
                             .expected = std::to_string(text.size()) + " bytes",
                             .found = count < 0 ? std::strerror(errno) : std::to_string(done),
                             .remedy = "wait until the copy of the checkpoint is complete"});
    }
    done += static_cast<size_t>(count);
  }
  return text;
}

}  // namespace deepinfer
