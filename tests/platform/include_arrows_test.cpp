// Walks the includes of all sources and fails on an arrow that points up (architecture.md,
// "Folders").
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace {

namespace fs = std::filesystem;

// A folder and the folders that it may include, itself among them.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"platform", {"platform"}},
    {"sim", {"sim", "platform"}},
    {"model", {"model", "platform"}},
    {"golden", {"golden", "model", "platform"}},
    {"tools", {"tools", "golden", "model", "sim", "platform"}},
    {"tests", {"tests", "tools", "golden", "model", "sim", "platform"}},
};

// Sources without libtorch, by path without extension: those of the targets base and checkpoint,
// which are fuzzed and linted alone.
const std::set<std::string>& torch_free() {
  static const std::set<std::string> stems = [] {
    std::set<std::string> found;
    std::istringstream list(DEEPINFER_SIM_TORCH_FREE);
    std::string stem;
    while (std::getline(list, stem, ',')) found.insert(stem);
    return found;
  }();
  return stems;
}

bool is_source(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".h" || extension == ".cpp";
}

struct Include {
  std::string target;
  bool quoted;  // "..." and not <...>
};

std::vector<Include> includes_of(std::istream& text) {
  static const std::regex pattern(R"re(^\s*#\s*include\s*(["<])([^">]+)[">])re");
  std::vector<Include> includes;
  std::string line;
  while (std::getline(text, line)) {
    std::smatch match;
    if (std::regex_search(line, match, pattern)) includes.push_back({match[2], match[1] == "\""});
  }
  return includes;
}

// True for a header of libtorch, or one of ours that includes such a header at any depth.
bool leads_to_torch(const std::string& header) {
  const std::string folder = header.substr(0, header.find('/'));
  if (folder == "torch" || folder == "ATen" || folder == "c10") return true;
  if (kMayInclude.count(folder) == 0) return false;
  std::ifstream text(fs::path(DEEPINFER_SIM_SOURCE_DIR) / header);
  const std::vector<Include> includes = includes_of(text);
  return std::any_of(includes.begin(), includes.end(),
                     [](const Include& include) { return leads_to_torch(include.target); });
}

// What is wrong with `includes` in `file` ("model/config.h"); empty if nothing.
std::vector<std::string> violations(const std::string& file, const std::vector<Include>& includes) {
  std::vector<std::string> found;
  const std::string folder = file.substr(0, file.find('/'));
  // Kernels work on spans; so do the two libraries that are built without libtorch.
  const bool must_be_torch_free =
      file.starts_with("sim/kernels/") || torch_free().count(file.substr(0, file.rfind('.'))) != 0;
  for (const Include& include : includes) {
    const std::string target = include.target.substr(0, include.target.find('/'));
    const bool ours = kMayInclude.count(target) != 0;
    if (include.quoted && !ours) {
      found.push_back(file + " includes \"" + include.target +
                      "\", which is no path from the root");
    }
    if (ours && kMayInclude.at(folder).count(target) == 0) {
      found.push_back(file + " includes " + include.target + ": " + folder + " may not know " +
                      target);
    }
    if (must_be_torch_free && leads_to_torch(include.target)) {
      found.push_back(file + " includes " + include.target + ", but must do without libtorch");
    }
  }
  return found;
}

TEST_CASE("no include points up") {
  const fs::path root = DEEPINFER_SIM_SOURCE_DIR;
  int files = 0;
  int arrows = 0;
  for (const auto& [folder, allowed] : kMayInclude) {
    if (!fs::exists(root / folder)) continue;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      const std::string file = fs::relative(entry.path(), root).generic_string();
      // The consumer is a project of its own that sees only what is installed.
      if (file.starts_with("tests/consumer/")) continue;
      std::ifstream text(entry.path());
      const std::vector<Include> includes = includes_of(text);
      ++files;
      arrows += static_cast<int>(std::count_if(includes.begin(), includes.end(),
                                               [](const Include& i) { return i.quoted; }));
      for (const std::string& violation : violations(file, includes)) FAIL_CHECK(violation);
    }
  }
  CHECK(files > 20);
  CHECK(arrows > 20);
}

TEST_CASE("arrows that point up are noticed") {
  const auto count = [](const std::string& file, const std::string& target, bool quoted = true) {
    return violations(file, {{target, quoted}}).size();
  };
  CHECK(count("platform/device.cpp", "model/config.h") == 1);
  CHECK(count("model/transformer.cpp", "sim/cluster/cluster.h") == 1);
  CHECK(count("model/transformer.cpp", "golden/compare.h") == 1);
  CHECK(count("golden/compare.cpp", "tools/terminal.h") == 1);
  CHECK(count("sim/cluster/cluster.cpp", "model/config.h") == 1);
  CHECK(count("platform/device.cpp", "tests/random_seed.h") == 1);
  CHECK(count("platform/device.cpp", "device.h") == 1);
  CHECK(count("platform/formats.cpp", "ATen/ATen.h", false) == 1);
  CHECK(count("platform/formats.cpp", "platform/device.h") == 1);
  CHECK(count("platform/formats.h", "model/transformer.h") == 2);
  CHECK(count("sim/kernels/gemm.cpp", "ATen/ATen.h", false) == 1);
  CHECK(count("platform/formats.cpp", "platform/errors.h") == 0);
  CHECK(count("platform/device.cpp", "ATen/ATen.h", false) == 0);
  CHECK(count("tools/check.cpp", "sim/cluster/cluster.h") == 0);
  CHECK(count("golden/compare.cpp", "model/config.h") == 0);
}

}  // namespace
