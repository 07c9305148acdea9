#include "tools/data_root.h"

#include <string>
#include <vector>

#include "platform/errors.h"

namespace deepinfer {

std::filesystem::path find_data_root() {
  namespace fs = std::filesystem;
  constexpr const char* kFileInRoot = "configs/check.yaml";
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  std::vector<fs::path> candidates;
  if (!error) candidates.push_back(program.parent_path().parent_path() / DEEPINFER_SIM_DATA_DIR);
  candidates.emplace_back(DEEPINFER_SIM_SOURCE_DIR);
  std::string tried;
  for (const fs::path& candidate : candidates) {
    if (fs::exists(candidate / kFileInRoot, error)) return candidate;
    tried += (tried.empty() ? "" : ", ") + candidate.string();
  }
  throw ConfigError({"the program's data were not found", tried,
                     std::string("a folder with ") + kFileInRoot + " and golden/data", "none",
                     "install the program with its data, or name the folder or file yourself"});
}

}  // namespace deepinfer
