#include "platform/yaml_reader.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <locale>
#include <set>
#include <sstream>

#include "platform/nearest_name.h"

namespace deepinfer {
namespace {

constexpr std::string_view kRemedy = "correct the configuration file";
// What no configuration of ours comes near to.
constexpr int kMaxDepth = 32;
constexpr int64_t kMaxNodes = 100'000;
constexpr size_t kMaxBytes = size_t{4} << 20;

// Bounds depth and size as a reader walks them. Aliases make one node appear many times, also
// inside itself, so that a short text can stand for an endless tree.
bool within_limits(const YAML::Node& node, int depth, int64_t& nodes_left) {
  if (depth > kMaxDepth || --nodes_left < 0) return false;
  if (node.IsSequence()) {
    for (const auto& element : node) {
      if (!within_limits(element, depth + 1, nodes_left)) return false;
    }
  } else if (node.IsMap()) {
    for (const auto& member : node) {
      if (!within_limits(member.first, depth + 1, nodes_left) ||
          !within_limits(member.second, depth + 1, nodes_left)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

YamlNode YamlNode::load(const std::filesystem::path& path) {
  std::error_code error;
  std::ifstream stream(path, std::ios::binary);
  if (!stream || std::filesystem::is_directory(path, error)) {
    throw ConfigError({"cannot open the configuration file", path.string(), "a readable YAML file",
                       "none", "check the path"});
  }
  std::string text(std::istreambuf_iterator<char>(stream), {});
  return parse(text, path.string());
}

YamlNode YamlNode::parse(const std::string& text, const std::string& source) {
  if (text.size() > kMaxBytes) {
    throw ConfigError({"the configuration file is too large", source,
                       "at most " + std::to_string(kMaxBytes) + " bytes",
                       std::to_string(text.size()) + " bytes", std::string(kRemedy)});
  }
  std::vector<YAML::Node> documents;
  try {
    documents = YAML::LoadAll(text);
  } catch (const YAML::Exception& error) {
    const std::string line = error.mark.is_null() ? "" : ":" + std::to_string(error.mark.line + 1);
    throw ConfigError({"the configuration file is not YAML", source + line, "one YAML document",
                       error.msg, std::string(kRemedy)});
  }
  if (documents.size() != 1 || !documents[0].IsMap()) {
    throw ConfigError({"wrong YAML document", source, "one document that is a map",
                       documents.size() == 1 ? "one document that is not a map"
                                             : std::to_string(documents.size()) + " documents",
                       std::string(kRemedy)});
  }
  YamlNode root(documents[0], source, "");
  int64_t nodes_left = kMaxNodes;
  if (!within_limits(documents[0], 0, nodes_left)) {
    root.fail_found(
        "the configuration file is nested too deeply or too large",
        std::to_string(kMaxDepth) + " levels and " + std::to_string(kMaxNodes) + " values", "more");
  }
  return root;
}

YamlNode YamlNode::child(const YAML::Node& node, const std::string& path) const {
  return {node, source_, path};
}

std::string YamlNode::where() const {
  std::string text = source_;
  if (!node_.Mark().is_null()) text += ':' + std::to_string(node_.Mark().line + 1);
  if (!path_.empty()) text += ", " + path_;
  return text;
}

std::string YamlNode::describe() const {
  if (node_.IsMap()) return "a map";
  if (node_.IsSequence()) return "a list";
  if (node_.IsNull()) return "nothing";
  std::string text = node_.Scalar();
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return '"' + text + '"';
}

void YamlNode::fail(std::string what, std::string expected, std::string remedy) const {
  fail_found(std::move(what), std::move(expected), describe(), std::move(remedy));
}

void YamlNode::fail_found(std::string what, std::string expected, std::string found,
                          std::string remedy) const {
  throw ConfigError({std::move(what), where(), std::move(expected), std::move(found),
                     remedy.empty() ? std::string(kRemedy) : std::move(remedy)});
}

std::vector<std::pair<std::string, YamlNode>> YamlNode::members() const {
  if (!node_.IsMap()) fail("wrong type", "a map");
  std::vector<std::pair<std::string, YamlNode>> result;
  std::set<std::string> seen;
  for (const auto& member : node_) {
    const std::string path = path_.empty() ? "" : path_ + '.';
    if (!member.first.IsScalar()) child(member.first, path_).fail("wrong key", "a name");
    const std::string key = member.first.Scalar();
    if (!seen.insert(key).second) {
      child(member.first, path + key).fail("duplicate key", "each key once");
    }
    result.emplace_back(key, child(member.second, path + key));
  }
  return result;
}

void YamlNode::expect_keys(const std::vector<std::string_view>& required,
                           const std::vector<std::string_view>& optional) const {
  std::vector<std::string_view> known = required;
  known.insert(known.end(), optional.begin(), optional.end());
  const auto present = members();
  for (const auto& member : node_) {
    const std::string key = member.first.Scalar();
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      child(member.first, path_).fail("unknown key", "a known key", did_you_mean(key, known));
    }
  }
  for (const std::string_view key : required) {
    const auto is_key = [&](const auto& member) { return member.first == key; };
    if (std::none_of(present.begin(), present.end(), is_key)) {
      fail_found("missing key", '"' + std::string(key) + '"', "none");
    }
  }
}

std::vector<YamlNode> YamlNode::elements() const {
  if (!node_.IsSequence()) fail("wrong type", "a list");
  std::vector<YamlNode> result;
  for (const auto& element : node_) {
    result.push_back(child(element, path_ + '[' + std::to_string(result.size()) + ']'));
  }
  return result;
}

std::optional<YamlNode> YamlNode::find(std::string_view key) const {
  for (const auto& [name, node] : members()) {
    if (name == key) return node;
  }
  return std::nullopt;
}

YamlNode YamlNode::at(std::string_view key) const {
  if (auto node = find(key)) return *node;
  fail_found("missing key", '"' + std::string(key) + '"', "none");
}

std::string YamlNode::string() const {
  if (!node_.IsScalar() || node_.Scalar().empty()) fail("wrong type", "a text");
  return node_.Scalar();
}

std::string YamlNode::plain_scalar(const std::string& expected) const {
  // yaml-cpp tags a quoted scalar "!", an unquoted one "?".
  if (!node_.IsScalar() || node_.Tag() == "!") fail("wrong type", expected);
  return node_.Scalar();
}

int64_t YamlNode::integer(int64_t low, int64_t high) const {
  const std::string expected =
      "an integer from " + std::to_string(low) + " to " + std::to_string(high);
  const std::string text = plain_scalar(expected);
  std::istringstream stream(text);
  int64_t value = 0;
  stream.imbue(std::locale::classic());
  if (!(stream >> value) || stream.peek() != std::istringstream::traits_type::eof() ||
      value < low || value > high) {
    fail("wrong value", expected);
  }
  return value;
}

double YamlNode::number(double low, double high) const {
  std::ostringstream expected;
  expected << "a number from " << low << " to " << high;
  const std::string text = plain_scalar(expected.str());
  std::istringstream stream(text);
  double value = 0;
  stream.imbue(std::locale::classic());
  if (!(stream >> value) || stream.peek() != std::istringstream::traits_type::eof() ||
      !std::isfinite(value) || value < low || value > high) {
    fail("wrong value", expected.str());
  }
  return value;
}

}  // namespace deepinfer
