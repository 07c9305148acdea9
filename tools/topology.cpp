// `deepinfer-sim topology`: where ranks are, and which replica groups the runtime takes.
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include <nlohmann/json.hpp>

#include "platform/nearest_name.h"
#include "sim/topology/topology_config.h"
#include "tools/commands.h"
#include "tools/data_root.h"

namespace deepinfer {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct Options {
  std::string topology;
  std::string groups;
  bool json = false;
};

// A file, or the name of one in configs/topologies.
Topology find_topology(const std::string& name) {
  if (fs::path(name).extension() == ".yaml") return load_topology(name);
  const fs::path folder = find_data_root() / "configs" / "topologies";
  const std::vector<std::string> names = topology_names(folder);
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    std::string known;
    for (const std::string& one : names) known += (known.empty() ? "" : ", ") + one;
    throw ConfigError({.what = "unknown topology",
                       .where = "topology NAME",
                       .expected = known + ", or a .yaml file",
                       .found = name,
                       .remedy = did_you_mean(name, names)});
  }
  return load_topology(folder / (name + ".yaml"));
}

ReplicaGroups parse_groups(const std::string& text) {
  const auto fail = [&] {
    throw ConfigError({.what = "not a list of replica groups",
                       .where = "--groups",
                       .expected = "a list of lists of ranks, such as [[0,1],[2,3]]",
                       .found = text});
  };
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_array() || json.empty()) fail();
  ReplicaGroups groups;
  for (const auto& group : json) {
    if (!group.is_array() || group.empty()) fail();
    groups.emplace_back();
    for (const auto& rank : group) {
      if (!rank.is_number_unsigned() || rank.get<uint64_t>() > INT32_MAX) fail();
      groups.back().push_back(rank.get<int64_t>());
    }
  }
  return groups;
}

ordered_json rule_json(const GroupRule& rule) {
  ordered_json json = {{"name", rule.name}, {"kind", group_rule_name(rule.kind)}};
  if (rule.kind == GroupRuleKind::kRectangle) json["rectangles"] = rule.rectangles;
  return json;
}

// Schema 1: {schema, name, nodes, device_rows, device_columns, cores_per_device, core_memory_bytes,
// ranks:
// [{rank, node, device, core, row, column}], links: [[device, device]] of one node, replica_groups:
// [{name, kind, rectangles}], check: null | {groups, accepted, rule, reason}}.
ordered_json topology_json(const Topology& topology) {
  ordered_json json = {{"schema", 1},
                       {"name", topology.name},
                       {"nodes", topology.nodes},
                       {"device_rows", topology.device_rows},
                       {"device_columns", topology.device_columns},
                       {"cores_per_device", topology.cores_per_device},
                       {"core_memory_bytes", topology.core_memory_bytes},
                       {"ranks", ordered_json::array()},
                       {"links", ordered_json::array()},
                       {"replica_groups", ordered_json::array()},
                       {"check", nullptr}};
  for (int64_t rank = 0; rank < topology.ranks(); ++rank) {
    const CorePlace place = topology.place_of(rank);
    json["ranks"].push_back({{"rank", rank},
                             {"node", place.node},
                             {"device", place.device},
                             {"core", place.core},
                             {"row", place.row},
                             {"column", place.column}});
  }
  for (int64_t device = 0; device < topology.devices_per_node(); ++device) {
    for (const int64_t other : topology.neighbours(device)) {
      if (device < other) json["links"].push_back({device, other});
    }
  }
  for (const GroupRule& rule : topology.rules) json["replica_groups"].push_back(rule_json(rule));
  return json;
}

void print_topology(const Topology& topology) {
  std::cout << topology.name << ": " << topology.nodes
            << (topology.nodes == 1 ? " node, " : " nodes, ")
            << topology.nodes * topology.devices_per_node() << " devices, " << topology.ranks()
            << " ranks of " << (topology.core_memory_bytes >> 30) << " GiB\n\n";
  for (int64_t node = 0; node < topology.nodes; ++node) {
    std::cout << (topology.nodes > 1 ? "node " + std::to_string(node) + ", device: ranks"
                                     : "device: ranks")
              << "\n";
    for (int64_t row = 0; row < topology.device_rows; ++row) {
      for (int64_t column = 0; column < topology.device_columns; ++column) {
        const int64_t device = row * topology.device_columns + column;
        const int64_t first = topology.rank_at(node, device, 0);
        std::ostringstream cell;
        cell << std::setw(4) << device << ": " << first << '-'
             << first + topology.cores_per_device - 1;
        std::cout << std::left << std::setw(16) << cell.str() << std::right;
      }
      std::cout << "\n";
    }
  }
  std::cout << "\nNeighbours are joined by links, around the edges too (device: its neighbours):\n";
  for (int64_t device = 0; device < topology.devices_per_node(); ++device) {
    std::cout << std::setw(4) << device << ':';
    for (const int64_t other : topology.neighbours(device)) std::cout << ' ' << other;
    std::cout << ((device + 1) % topology.device_columns == 0 ? "\n" : "  ");
  }
  std::cout << "\nReplica groups that the runtime takes (all of one size, every rank in one):\n";
  for (const GroupRule& rule : topology.rules) {
    std::cout << "  " << rule.name;
    for (size_t i = 0; i < rule.rectangles.size(); ++i) {
      std::cout << (i == 0 ? ": " : ", ") << rule.rectangles[i].first << 'x'
                << rule.rectangles[i].second;
    }
    std::cout << "\n";
  }
  if (topology.nodes > 1) {
    std::cout << "  across nodes: the same cores of every node, which in a node obey a rule\n";
  }
}

ExitCode run(const Options& options) {
  if (options.topology.empty()) {
    if (!options.groups.empty()) {
      throw ConfigError(
          {.what = "--groups needs a topology", .where = "topology", .expected = "a NAME"});
    }
    const auto names = topology_names(find_data_root() / "configs" / "topologies");
    if (options.json) {
      std::cout << ordered_json({{"schema", 1}, {"topologies", names}}).dump(2) << "\n";
    } else {
      for (const std::string& name : names) std::cout << name << "\n";
    }
    return ExitCode::kMatch;
  }
  const Topology topology = find_topology(options.topology);
  if (options.groups.empty()) {
    if (options.json) {
      std::cout << topology_json(topology).dump(2) << "\n";
    } else {
      print_topology(topology);
    }
    return ExitCode::kMatch;
  }
  const ReplicaGroups groups = parse_groups(options.groups);
  const GroupVerdict verdict = topology.check(groups);
  if (options.json) {
    ordered_json json = topology_json(topology);
    json["check"] = {{"groups", groups},
                     {"accepted", verdict.accepted},
                     {"rule", verdict.rule},
                     {"reason", verdict.reason}};
    std::cout << json.dump(2) << "\n";
    return verdict.accepted ? ExitCode::kMatch : ExitCode::kCollective;
  }
  require_accepted(topology, groups, "--groups");
  std::cout << "accepted by " << topology.name << ": " << verdict.rule << "\n";
  return ExitCode::kMatch;
}

CommandRun setup(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  app.add_option("NAME", options->topology,
                 "A topology of configs/topologies, or a .yaml file; without one, all are listed");
  app.add_option("--groups", options->groups, "Check this list of replica groups")
      ->type_name("[[RANK,...],...]");
  app.add_flag("--json", options->json, "Print JSON (schema in tools/topology.cpp)");
  return [options](const CommandContext&) { return run(*options); };
}

}  // namespace

const Command kTopologyCommand = {
    "topology", "Print where ranks are, and check which replica groups the runtime takes",
    "  deepinfer-sim topology                             list the topologies\n"
    "  deepinfer-sim topology trn2.48xlarge               devices, ranks, links, accepted groups\n"
    "  deepinfer-sim topology trn2.3xlarge --groups '[[0,1],[2,3]]'\n"
    "\n"
    "Exit codes: 0 accepted; 2 wrong usage or file; 3 the runtime would refuse the groups.",
    setup};

}  // namespace deepinfer
