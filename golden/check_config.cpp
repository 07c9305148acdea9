#include "golden/check_config.h"

#include <algorithm>
#include <limits>

#include "platform/errors.h"
#include "platform/nearest_name.h"
#include "platform/yaml_reader.h"

namespace deepinfer {
namespace {

constexpr double kLargest = std::numeric_limits<double>::max();

std::optional<double> optional_number(const YamlNode& node, std::string_view key, double high) {
  const auto found = node.find(key);
  return found ? std::optional<double>(found->number(0, high)) : std::nullopt;
}

LayerBounds read_layer_bounds(const YamlNode& node) {
  node.expect_keys({}, {"median", "row_median", "bit_equal_rows", "row_difference", "rows_within",
                        "values_within_bf16_ulp", "equal_selections"});
  LayerBounds bounds;
  bounds.median = optional_number(node, "median", kLargest);
  bounds.row_median = optional_number(node, "row_median", kLargest);
  bounds.bit_equal_rows = optional_number(node, "bit_equal_rows", 1);
  bounds.row_difference = optional_number(node, "row_difference", kLargest);
  bounds.rows_within = optional_number(node, "rows_within", 1);
  bounds.values_within_bf16_ulp = optional_number(node, "values_within_bf16_ulp", 1);
  bounds.equal_selections = optional_number(node, "equal_selections", 1);
  if (bounds.row_difference.has_value() != bounds.rows_within.has_value()) {
    node.fail_found("half a bound", "row_difference and rows_within together",
                    bounds.rows_within ? "rows_within only" : "row_difference only");
  }
  return bounds;
}

Bounds read_bounds(const YamlNode& node) {
  node.expect_keys({}, {"logits", "where_noise_floor_below", "traces", "layers"});
  Bounds bounds;
  bounds.logits = optional_number(node, "logits", kLargest);
  bounds.where_noise_floor_below = optional_number(node, "where_noise_floor_below", kLargest);
  bounds.traces = optional_number(node, "traces", kLargest);
  if (const auto layers = node.find("layers")) bounds.layers = read_layer_bounds(*layers);
  if (bounds.where_noise_floor_below && !bounds.logits) {
    node.fail_found("half a bound", "logits beside where_noise_floor_below", "none");
  }
  return bounds;
}

Gates read_gates(const YamlNode& node) {
  const std::vector<std::string> known = {"tokens", "logits", "traces", "layers"};
  Gates gates;
  bool* const flags[] = {&gates.tokens, &gates.logits, &gates.traces, &gates.layers};
  for (const YamlNode& element : node.elements()) {
    const std::string name = element.string();
    const auto found = std::find(known.begin(), known.end(), name);
    if (found == known.end()) {
      element.fail("unknown gate", "tokens, logits, traces or layers", did_you_mean(name, known));
    }
    bool& flag = *flags[found - known.begin()];
    if (flag) element.fail("gate named twice", "each gate once");
    flag = true;
  }
  return gates;
}

// Runs `parse`, turning its ConfigError into one that says where in the file the name stands.
template <typename Parse>
auto parse_at(const YamlNode& node, Parse parse) {
  try {
    return parse(node.string());
  } catch (const ConfigError& error) {
    ErrorParts parts = error.parts();
    parts.where = node.where();
    throw ConfigError(std::move(parts));
  }
}

std::filesystem::path read_path(const YamlNode& node, const std::filesystem::path& root) {
  const std::filesystem::path path = node.string();
  return path.is_absolute() ? path : root / path;
}

Suite read_suite(const YamlNode& node, const std::filesystem::path& root,
                 const std::map<std::string, Bounds>& bounds) {
  node.expect_keys({"name", "model", "golden", "numerics", "bounds", "gates"},
                   {"claims", "arithmetic"});
  Suite suite;
  suite.name = node.at("name").string();
  suite.model = read_path(node.at("model"), root);
  suite.golden = read_path(node.at("golden"), root);
  suite.numerics_name = node.at("numerics").string();
  suite.numerics =
      parse_at(node.at("numerics"), [](const std::string& name) { return parse_numerics(name); });
  if (const auto arithmetic = node.find("arithmetic")) {
    suite.numerics.arithmetic =
        parse_at(*arithmetic, [](const std::string& name) { return parse_arithmetic(name); });
  }
  const std::string bounds_name = node.at("bounds").string();
  const auto found = bounds.find(bounds_name);
  if (found == bounds.end()) {
    std::vector<std::string> names;
    for (const auto& item : bounds) names.push_back(item.first);
    node.at("bounds").fail("unknown bounds", "a name under the top level's bounds",
                           did_you_mean(bounds_name, names));
  }
  suite.bounds = found->second;
  suite.gates = read_gates(node.at("gates"));
  if (const auto claims = node.find("claims")) {
    for (const YamlNode& claim : claims->elements()) {
      const Path path = parse_at(claim, [](const std::string& name) { return parse_path(name); });
      if (std::find(suite.claims.begin(), suite.claims.end(), path) != suite.claims.end()) {
        claim.fail("path claimed twice", "each path once");
      }
      suite.claims.push_back(path);
    }
  }
  require_bounds_for_gates(suite, node.where());
  return suite;
}

CheckConfig read_config(const YamlNode& root_node, const std::filesystem::path& root) {
  root_node.expect_keys({"schema", "bounds", "suites"});
  root_node.at("schema").integer(1, 1);
  CheckConfig config;
  for (const auto& [name, node] : root_node.at("bounds").members()) {
    config.bounds[name] = read_bounds(node);
  }
  for (const YamlNode& node : root_node.at("suites").elements()) {
    Suite suite = read_suite(node, root, config.bounds);
    const auto same = [&](const Suite& other) { return other.name == suite.name; };
    if (std::any_of(config.suites.begin(), config.suites.end(), same)) {
      node.at("name").fail("two suites of one name", "each name once");
    }
    config.suites.push_back(std::move(suite));
  }
  if (config.suites.empty()) root_node.at("suites").fail_found("no suite", "at least one", "none");
  return config;
}

}  // namespace

void require_bounds_for_gates(const Suite& suite, const std::string& where) {
  const LayerBounds& layers = suite.bounds.layers;
  const bool has_layer_bound = layers.median || layers.row_median || layers.bit_equal_rows ||
                               layers.rows_within || layers.values_within_bf16_ulp ||
                               layers.equal_selections;
  const std::string missing = suite.gates.logits && !suite.bounds.logits   ? "logits"
                              : suite.gates.traces && !suite.bounds.traces ? "traces"
                              : suite.gates.layers && !has_layer_bound     ? "layers"
                                                                           : "";
  if (missing.empty()) return;
  throw ConfigError({"a gate without a bound", where, "bounds with " + missing, "none",
                     "add the bound, or take " + missing + " off the suite's gates"});
}

CheckConfig parse_check_config(const std::string& text, const std::string& source,
                               const std::filesystem::path& root) {
  return read_config(YamlNode::parse(text, source), root);
}

CheckConfig load_check_config(const std::filesystem::path& path,
                              const std::filesystem::path& root) {
  return read_config(YamlNode::load(path), root);
}

}  // namespace deepinfer
