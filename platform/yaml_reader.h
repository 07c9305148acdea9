// Strict YAML for configs: typed values, no duplicate or unknown keys, errors that name file and
// line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <yaml-cpp/yaml.h>

#include "platform/errors.h"

namespace deepinfer {

// A value and where it stands. Every getter throws ConfigError naming file, line, path, expected
// and found.
class YamlNode {
 public:
  // One document. Throws ConfigError: unreadable file, not YAML, no or several documents.
  static YamlNode load(const std::filesystem::path& path);
  static YamlNode parse(const std::string& text, const std::string& source);

  std::string where() const;  // "FILE:LINE, suites[3].bounds"

  // Fails on a key outside `required` and `optional` (naming the nearest one) and on a missing
  // required one.
  void expect_keys(const std::vector<std::string_view>& required,
                   const std::vector<std::string_view>& optional = {}) const;
  std::vector<std::pair<std::string, YamlNode>> members() const;  // of a map, in file order
  std::vector<YamlNode> elements() const;                         // of a list
  YamlNode at(std::string_view key) const;                        // missing: an error
  std::optional<YamlNode> find(std::string_view key) const;

  std::string string() const;  // a scalar that is not empty
  int64_t integer(int64_t low, int64_t high) const;
  double number(double low, double high) const;
  bool is_map() const { return node_.IsMap(); }

  [[noreturn]] void fail(std::string what, std::string expected, std::string remedy = "") const;
  // The same with the text of `found` given.
  [[noreturn]] void fail_found(std::string what, std::string expected, std::string found,
                               std::string remedy = "") const;

 private:
  YamlNode(YAML::Node node, std::string source, std::string path)
      : node_(std::move(node)), source_(std::move(source)), path_(std::move(path)) {}
  YamlNode child(const YAML::Node& node, const std::string& path) const;
  std::string describe() const;
  // Plain text of an unquoted scalar; fails otherwise.
  std::string plain_scalar(const std::string& expected) const;

  YAML::Node node_;
  std::string source_;
  std::string path_;
};

}  // namespace deepinfer
