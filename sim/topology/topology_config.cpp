#include "sim/topology/topology_config.h"

#include <algorithm>
#include <array>

#include "platform/nearest_name.h"
#include "platform/yaml_reader.h"

namespace deepinfer {
namespace {

constexpr std::array kKinds = {GroupRuleKind::kWorld, GroupRuleKind::kWithinDevice,
                               GroupRuleKind::kRectangle, GroupRuleKind::kCorePerDevice};
// Far above any machine; keeps products of sizes in range.
constexpr int64_t kMostOfEach = 1024;

GroupRuleKind read_kind(const YamlNode& node) {
  const std::string name = node.string();
  std::vector<std::string> names;
  for (const GroupRuleKind kind : kKinds) {
    if (name == group_rule_name(kind)) return kind;
    names.emplace_back(group_rule_name(kind));
  }
  node.fail("unknown kind of group", "world, within_device, rectangle or core_per_device",
            did_you_mean(name, names));
}

GroupRule read_rule(const YamlNode& node, const Topology& topology) {
  node.expect_keys({"name", "kind"}, {"rectangles"});
  GroupRule rule;
  rule.name = node.at("name").string();
  rule.kind = read_kind(node.at("kind"));
  const auto rectangles = node.find("rectangles");
  if (rectangles.has_value() != (rule.kind == GroupRuleKind::kRectangle)) {
    node.fail_found("sizes of rectangles", "rectangles for kind rectangle, and only there",
                    rectangles ? "rectangles for another kind" : "none");
  }
  if (!rectangles) return rule;
  for (const YamlNode& element : rectangles->elements()) {
    const std::vector<YamlNode> sides = element.elements();
    if (sides.size() != 2) {
      element.fail_found("not a rectangle", "[rows, columns]",
                         std::to_string(sides.size()) + " numbers");
    }
    rule.rectangles.emplace_back(sides[0].integer(1, topology.device_rows),
                                 sides[1].integer(1, topology.device_columns));
  }
  return rule;
}

Topology read(const YamlNode& node) {
  node.expect_keys({"schema", "name", "nodes", "device_rows", "device_columns", "cores_per_device",
                    "core_memory_gib", "replica_groups"});
  node.at("schema").integer(1, 1);
  Topology topology;
  topology.name = node.at("name").string();
  topology.nodes = node.at("nodes").integer(1, kMostOfEach);
  topology.device_rows = node.at("device_rows").integer(1, kMostOfEach);
  topology.device_columns = node.at("device_columns").integer(1, kMostOfEach);
  topology.cores_per_device = node.at("cores_per_device").integer(1, kMostOfEach);
  topology.core_memory_bytes = node.at("core_memory_gib").integer(1, kMostOfEach) << 30;
  for (const YamlNode& rule : node.at("replica_groups").elements()) {
    topology.rules.push_back(read_rule(rule, topology));
  }
  return topology;
}

}  // namespace

Topology load_topology(const std::filesystem::path& path) { return read(YamlNode::load(path)); }
Topology parse_topology(const std::string& text, const std::string& source) {
  return read(YamlNode::parse(text, source));
}

std::vector<std::string> topology_names(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".yaml") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace deepinfer
