// Checkpoint folders that lie, one lie each, with the message that each must get.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace deepinfer::test {

struct Lie {
  std::string name;
  // Writes a whole checkpoint folder, sound but for the lie.
  std::function<void(const std::filesystem::path& folder)> write;
  std::string what;      // how the message begins
  std::string names;     // what it must name: tensor, file or value
  bool variant = false;  // the previous lie told of another tensor: the same message
};

const std::vector<Lie>& hostile_checkpoints();

}  // namespace deepinfer::test
