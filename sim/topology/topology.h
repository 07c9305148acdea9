// Where ranks are: cores, devices, nodes, links; and which replica groups the runtime takes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "platform/communicator.h"

namespace deepinfer {

// Place of a rank: rank = (node * devices per node + device) * cores per device + core.
struct CorePlace {
  int64_t node = 0;
  int64_t device = 0;  // in its node
  int64_t core = 0;    // in its device
  int64_t row = 0;     // of the device in its node's torus
  int64_t column = 0;
};

enum class GroupRuleKind {
  kWorld,          // every rank
  kWithinDevice,   // cores of one device
  kRectangle,      // all cores of neighbouring devices, rows x columns around the torus
  kCorePerDevice,  // the core of one number on every device of a node
};
// As written in YAML: "world", "within_device", "rectangle", "core_per_device".
std::string_view group_rule_name(GroupRuleKind kind);

// One row of the table of accepted groups.
struct GroupRule {
  std::string name;
  GroupRuleKind kind = GroupRuleKind::kWorld;
  std::vector<std::pair<int64_t, int64_t>> rectangles;  // rows, columns
};

struct GroupVerdict {
  bool accepted = false;
  std::string
      rule;  // that the groups obey, if accepted: names, in the order of the groups, each once
  std::string reason;  // if not: which group, and why
};

// Plain data with its arithmetic. Invariant: sizes are positive.
struct Topology {
  std::string name;
  int64_t nodes = 1;
  int64_t device_rows = 1;
  int64_t device_columns = 1;
  int64_t cores_per_device = 1;
  int64_t core_memory_bytes = 0;
  std::vector<GroupRule> rules;

  int64_t devices_per_node() const { return device_rows * device_columns; }
  int64_t ranks_per_node() const { return devices_per_node() * cores_per_device; }
  int64_t ranks() const { return nodes * ranks_per_node(); }

  CorePlace place_of(int64_t rank) const;  // asserts that the rank exists
  int64_t rank_at(int64_t node, int64_t device, int64_t core) const;
  // Devices of the same node that a link joins with `device`, each once, ascending.
  std::vector<int64_t> neighbours(int64_t device) const;

  // Whether the runtime takes a list of replica groups that together hold every rank once (what
  // else is wrong with a list, Communicator::group says).
  GroupVerdict check(const ReplicaGroups& groups) const;
};

// Throws CollectiveError in the runtime's words if the topology refuses the list; `where` is said
// too.
void require_accepted(const Topology& topology, const ReplicaGroups& groups,
                      const std::string& where);

}  // namespace deepinfer
