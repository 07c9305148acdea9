// Program: writes the full-size sparse checkpoint for trying tools on, `write_full_size DIR [OLD
// NEW]`.
#include <filesystem>
#include <iostream>
#include <string>

#include "tests/support/full_size.h"

int main(int argc, char** argv) {
  if (argc != 2 && argc != 4) {
    std::cerr
        << "usage: write_full_size DIR [OLD_NAME NEW_NAME]\n"
           "Writes DeepSeek-V4.1-Flash as sparse files (510 GB apparent, some 10 MB on disk), if "
           "wanted with one tensor renamed.\n";
    return 2;
  }
  try {
    std::filesystem::create_directories(argv[1]);
    const std::filesystem::path config = std::filesystem::path(DEEPINFER_SIM_SOURCE_DIR) /
                                         "configs/models/deepseek-v4.1-flash/config.json";
    const auto rename = [&](const std::string& name) {
      return argc == 4 && name == argv[2] ? std::string(argv[3]) : name;
    };
    deepinfer::test::write_full_size(argv[1], config, rename);
  } catch (const deepinfer::test::NoSparseFiles& error) {
    std::cerr << "no sparse files here: " << error.why << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
  return 0;
}
