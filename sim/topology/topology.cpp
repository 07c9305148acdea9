#include "sim/topology/topology.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "platform/errors.h"

namespace deepinfer {
namespace {

// Whether `places` of a ring of `size` lie side by side, around its end too.
bool is_arc(const std::set<int64_t>& places, int64_t size) {
  const auto count = static_cast<int64_t>(places.size());
  if (count == size) return true;
  return std::any_of(places.begin(), places.end(), [&](int64_t first) {
    for (int64_t i = 0; i < count; ++i) {
      if (places.count((first + i) % size) == 0) return false;
    }
    return true;
  });
}

// Ranks of one node, as ranks of node 0, ascending.
using LocalRanks = std::vector<int64_t>;

bool is_rectangle(const Topology& topology, const LocalRanks& ranks, const GroupRule& rule) {
  std::map<int64_t, int64_t> cores_of_device;
  std::set<int64_t> rows, columns;
  for (const int64_t rank : ranks) {
    const CorePlace place = topology.place_of(rank);
    ++cores_of_device[place.device];
    rows.insert(place.row);
    columns.insert(place.column);
  }
  const auto size =
      std::pair(static_cast<int64_t>(rows.size()), static_cast<int64_t>(columns.size()));
  const bool whole =
      std::all_of(cores_of_device.begin(), cores_of_device.end(),
                  [&](const auto& item) { return item.second == topology.cores_per_device; });
  return whole && static_cast<int64_t>(cores_of_device.size()) == size.first * size.second &&
         is_arc(rows, topology.device_rows) && is_arc(columns, topology.device_columns) &&
         std::find(rule.rectangles.begin(), rule.rectangles.end(), size) != rule.rectangles.end();
}

bool obeys(const Topology& topology, const LocalRanks& ranks, const GroupRule& rule) {
  const CorePlace first = topology.place_of(ranks.front());
  switch (rule.kind) {
    case GroupRuleKind::kWorld:
      return static_cast<int64_t>(ranks.size()) == topology.ranks_per_node();
    case GroupRuleKind::kWithinDevice:
      return std::all_of(ranks.begin(), ranks.end(), [&](int64_t rank) {
        return topology.place_of(rank).device == first.device;
      });
    case GroupRuleKind::kRectangle:
      return is_rectangle(topology, ranks, rule);
    case GroupRuleKind::kCorePerDevice:
      return static_cast<int64_t>(ranks.size()) == topology.devices_per_node() &&
             std::all_of(ranks.begin(), ranks.end(),
                         [&](int64_t rank) { return topology.place_of(rank).core == first.core; });
  }
  DEEPINFER_ASSERT(false, "rule " << static_cast<int>(rule.kind));
}

// The rule that a group obeys, or none and `reason`.
std::optional<std::string> rule_of(const Topology& topology, const std::vector<int64_t>& group,
                                   std::string& reason) {
  std::map<int64_t, LocalRanks> by_node;
  for (const int64_t rank : group) {
    by_node[rank / topology.ranks_per_node()].push_back(rank % topology.ranks_per_node());
  }
  for (auto& item : by_node) std::sort(item.second.begin(), item.second.end());
  const LocalRanks& first = by_node.begin()->second;
  for (const auto& [node, ranks] : by_node) {
    if (ranks == first) continue;
    reason = "holds other cores of node " + std::to_string(node) + " than of node " +
             std::to_string(by_node.begin()->first) + ": groups across nodes must be symmetric";
    return std::nullopt;
  }
  if (by_node.size() > 1 && static_cast<int64_t>(by_node.size()) != topology.nodes) {
    reason = "spans " + std::to_string(by_node.size()) + " of " + std::to_string(topology.nodes) +
             " nodes: one or all";
    return std::nullopt;
  }
  for (const GroupRule& rule : topology.rules) {
    // The world is more than a node of it.
    if (rule.kind == GroupRuleKind::kWorld &&
        static_cast<int64_t>(group.size()) != topology.ranks()) {
      continue;
    }
    if (obeys(topology, first, rule)) {
      return by_node.size() == 1 || rule.kind == GroupRuleKind::kWorld
                 ? rule.name
                 : rule.name + ", the same on every node";
    }
  }
  std::string names;
  for (const GroupRule& rule : topology.rules) names += (names.empty() ? "" : "; ") + rule.name;
  reason = "is none of: " + names;
  return std::nullopt;
}

}  // namespace

std::string_view group_rule_name(GroupRuleKind kind) {
  switch (kind) {
    case GroupRuleKind::kWorld:
      return "world";
    case GroupRuleKind::kWithinDevice:
      return "within_device";
    case GroupRuleKind::kRectangle:
      return "rectangle";
    case GroupRuleKind::kCorePerDevice:
      return "core_per_device";
  }
  DEEPINFER_ASSERT(false, "rule " << static_cast<int>(kind));
}

CorePlace Topology::place_of(int64_t rank) const {
  DEEPINFER_ASSERT(rank >= 0 && rank < ranks(), "rank " << rank << " of " << ranks());
  CorePlace place;
  place.node = rank / ranks_per_node();
  place.device = rank % ranks_per_node() / cores_per_device;
  place.core = rank % cores_per_device;
  place.row = place.device / device_columns;
  place.column = place.device % device_columns;
  return place;
}

int64_t Topology::rank_at(int64_t node, int64_t device, int64_t core) const {
  return (node * devices_per_node() + device) * cores_per_device + core;
}

std::vector<int64_t> Topology::neighbours(int64_t device) const {
  const int64_t row = device / device_columns, column = device % device_columns;
  std::set<int64_t> found;
  for (const int64_t step : {int64_t{-1}, int64_t{1}}) {
    found.insert((row + step + device_rows) % device_rows * device_columns + column);
    found.insert(row * device_columns + (column + step + device_columns) % device_columns);
  }
  found.erase(device);
  return {found.begin(), found.end()};
}

GroupVerdict Topology::check(const ReplicaGroups& groups) const {
  const auto refuse = [](std::string reason) { return GroupVerdict{false, "", std::move(reason)}; };
  std::set<int64_t> seen;
  for (const auto& group : groups) {
    for (const int64_t rank : group) {
      if (rank < 0 || rank >= ranks()) {
        return refuse("rank " + std::to_string(rank) + " does not exist: " + name + " has " +
                      std::to_string(ranks()));
      }
      if (!seen.insert(rank).second)
        return refuse("rank " + std::to_string(rank) + " is there twice");
    }
  }
  if (static_cast<int64_t>(seen.size()) != ranks()) {
    return refuse("the groups hold " + std::to_string(seen.size()) + " of " +
                  std::to_string(ranks()) + " ranks: together they have to hold all");
  }
  for (const auto& group : groups) {
    if (group.size() == groups.front().size()) continue;
    return refuse("groups of " + std::to_string(groups.front().size()) + " and of " +
                  std::to_string(group.size()) + " ranks: all have to be of one size");
  }
  GroupVerdict verdict{true, "", ""};
  std::set<std::string> rules_seen;
  for (const auto& group : groups) {
    std::string reason;
    const auto rule = rule_of(*this, group, reason);
    if (!rule) return refuse(replica_groups_text({group}) + " " + reason);
    if (rules_seen.insert(*rule).second) verdict.rule += (verdict.rule.empty() ? "" : "; ") + *rule;
  }
  return verdict;
}

void require_accepted(const Topology& topology, const ReplicaGroups& groups,
                      const std::string& where) {
  const GroupVerdict verdict = topology.check(groups);
  if (verdict.accepted) return;
  throw CollectiveError(
      {.what = "NRT_INVALID: unsupported replica group on " + topology.name,
       .where = where,
       .expected = "groups that a rule of the topology's replica_groups takes",
       .found = verdict.reason,
       .remedy = "see which groups are taken: deepinfer-sim topology " + topology.name});
}

}  // namespace deepinfer
