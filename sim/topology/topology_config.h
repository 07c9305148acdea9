// Reads topologies from YAML.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sim/topology/topology.h"

namespace deepinfer {

// Throws ConfigError that names file and line.
Topology load_topology(const std::filesystem::path& path);
Topology parse_topology(const std::string& text, const std::string& source);

// Names (file stems) of the topologies in a folder, ascending; none if there is no such folder.
std::vector<std::string> topology_names(const std::filesystem::path& folder);

}  // namespace deepinfer
