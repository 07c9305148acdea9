// Places, links, and the table of replica groups that the runtime takes.
#include "sim/topology/topology.h"

#include <filesystem>

#include <doctest/doctest.h>

#include "platform/errors.h"
#include "sim/cluster/cluster.h"
#include "sim/topology/topology_config.h"

namespace deepinfer {
namespace {

Topology load(const std::string& name) {
  return load_topology(std::filesystem::path(DEEPINFER_SIM_SOURCE_DIR) / "configs/topologies" /
                       (name + ".yaml"));
}

// Groups of `size` ranks each, member i of group g at g * start + i * step.
ReplicaGroups strided(int64_t groups, int64_t size, int64_t start, int64_t step) {
  ReplicaGroups list(static_cast<size_t>(groups));
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t i = 0; i < size; ++i) list[static_cast<size_t>(g)].push_back(g * start + i * step);
  }
  return list;
}

TEST_CASE("trn2.48xlarge: places and links (trn2.md 1.3)") {
  const Topology node = load("trn2.48xlarge");
  CHECK(node.ranks() == 64);
  CHECK(node.core_memory_bytes == int64_t{24} << 30);
  const CorePlace place = node.place_of(23);  // device 5, core 3
  CHECK(place.device == 5);
  CHECK(place.core == 3);
  CHECK(place.row == 1);
  CHECK(place.column == 1);
  CHECK(node.rank_at(0, 5, 3) == 23);
  CHECK(node.neighbours(0) == std::vector<int64_t>{1, 3, 4, 12});
  CHECK(node.neighbours(5) == std::vector<int64_t>{1, 4, 6, 9});
  CHECK(load("trn2.3xlarge").neighbours(0).empty());
}

TEST_CASE("known-good and known-bad groups of trn2.48xlarge (trn2.md 3.1)") {
  const Topology node = load("trn2.48xlarge");
  const auto accepted = [&](const ReplicaGroups& groups) { return node.check(groups).accepted; };
  CHECK(accepted(strided(1, 64, 0, 1)));  // the world
  CHECK(accepted(strided(16, 4, 4, 1)));  // a device
  CHECK(accepted(strided(32, 2, 2, 1)));  // half a device
  CHECK(accepted(strided(64, 1, 1, 1)));
  CHECK(accepted(strided(8, 8, 8, 1)));    // two neighbouring devices
  CHECK(accepted(strided(4, 16, 16, 1)));  // a row
  CHECK(accepted(strided(4, 16, 1, 4)));   // a core of each device
  CHECK(node.check(strided(4, 16, 1, 4)).rule == "one core of each device");
  // The 8x8 mesh that is not contiguous everywhere: device pairs {0, 3}, {1, 2} of each row, joined
  // around the torus.
  ReplicaGroups mesh;
  for (int64_t row = 0; row < 4; ++row) {
    for (const auto& pair : {std::pair{0, 3}, std::pair{1, 2}}) {
      mesh.emplace_back();
      for (const int64_t device : {4 * row + pair.first, 4 * row + pair.second}) {
        for (int64_t core = 0; core < 4; ++core) mesh.back().push_back(4 * device + core);
      }
    }
  }
  CHECK(accepted(mesh));

  const auto reason = [&](const ReplicaGroups& groups) {
    const GroupVerdict verdict = node.check(groups);
    CHECK_FALSE(verdict.accepted);
    return verdict.reason;
  };
  // 8 ranks strided over devices: one core of every second device.
  CHECK(reason(strided(8, 8, 1, 8)).find("is none of") != std::string::npos);
  CHECK(reason({{0, 1}, {2, 3, 4, 5}}).find("hold 6 of 64") != std::string::npos);
  ReplicaGroups uneven = strided(1, 60, 0, 1);
  uneven.push_back({60, 61, 62, 63});
  CHECK(reason(uneven).find("one size") != std::string::npos);
  ReplicaGroups diagonal;  // devices 0 and 5 are no neighbours
  for (int64_t pair = 0; pair < 8; ++pair) {
    diagonal.emplace_back();
    const int64_t first = pair < 4 ? pair : pair + 4,
                  second = first + 4 + ((first % 4) == 3 ? -3 : 1);
    for (const int64_t device : {first, second}) {
      for (int64_t core = 0; core < 4; ++core) diagonal.back().push_back(4 * device + core);
    }
  }
  CHECK(reason(diagonal).find("is none of") != std::string::npos);
  CHECK(reason({{0, 64}}).find("does not exist") != std::string::npos);
  CHECK(reason({{0, 0}}).find("twice") != std::string::npos);
}

TEST_CASE("groups across the nodes of an UltraServer are symmetric") {
  const Topology server = load("trn2u.ultraserver");
  CHECK(server.ranks() == 256);
  CHECK(server.check(strided(1, 256, 0, 1)).accepted);
  CHECK(server.check(strided(4, 64, 64, 1)).accepted);  // a node
  CHECK(server.check(strided(64, 4, 4, 1)).accepted);   // devices
  // The z-ring: the same core of every node.
  CHECK(server.check(strided(64, 4, 1, 64)).accepted);
  // A device of each node, the same one.
  ReplicaGroups devices;
  for (int64_t device = 0; device < 16; ++device) {
    devices.emplace_back();
    for (int64_t node = 0; node < 4; ++node) {
      for (int64_t core = 0; core < 4; ++core)
        devices.back().push_back(64 * node + 4 * device + core);
    }
  }
  CHECK(server.check(devices).rule == "cores of one device, the same on every node");
  std::swap(devices[0][4], devices[1][4]);
  CHECK(server.check(devices).reason.find("must be symmetric") != std::string::npos);
}

TEST_CASE("a cluster on a topology refuses what its runtime refuses") {
  const Topology node = load("trn2.48xlarge");
  ClusterOptions options;
  options.ranks = 64;
  options.topology = &node;
  CHECK(run_cluster(options, [](RankContext& context) {
          Communicator& comm = context.communicator;
          comm.barrier(*comm.group(strided(4, 16, 1, 4)));
          int32_t word = 0;
          if (context.rank == 0) comm.send({WireType::kInt32, {1}, &word}, 9);
          if (context.rank == 9) comm.receive({WireType::kInt32, {1}, &word}, 0);
        }).collectives == 5);
  try {
    run_cluster(options, [](RankContext& context) {
      context.communicator.barrier(*context.communicator.group(strided(8, 8, 1, 8)));
    });
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.exit_code() == ExitCode::kCollective);
    CHECK(
        std::string(error.what()).find("NRT_INVALID: unsupported replica group on trn2.48xlarge") !=
        std::string::npos);
  }
  options.ranks = 63;
  CHECK_THROWS_AS(run_cluster(options, [](RankContext&) {}), ConfigError);
}

TEST_CASE("topology files: what is wrong is said with its line") {
  const std::string good =
      "schema: 1\nname: x\nnodes: 1\ndevice_rows: 2\ndevice_columns: 2\ncores_per_device: 4\n"
      "core_memory_gib: 24\nreplica_groups:\n  - { name: pairs, kind: rectangle, rectangles: [[1, "
      "2]] }\n";
  CHECK(parse_topology(good, "x.yaml").rules[0].rectangles[0] == std::pair<int64_t, int64_t>(1, 2));
  const auto message = [&](const std::string& from, const std::string& to) -> std::string {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    try {
      parse_topology(text, "x.yaml");
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(message("kind: rectangle", "kind: rectangel").find("did you mean rectangle?") !=
        std::string::npos);
  CHECK(message("[1, 2]", "[1, 3]").find("x.yaml:9") != std::string::npos);
  CHECK(message("[1, 2]", "[1]").find("[rows, columns]") != std::string::npos);
  CHECK(message("nodes: 1", "nodes: 0").find("x.yaml:3") != std::string::npos);
  CHECK(message("kind: rectangle", "kind: world").find("only there") != std::string::npos);
}

}  // namespace
}  // namespace deepinfer
