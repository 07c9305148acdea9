// Program: gives each file of the named folders to a fuzz target, for compilers without libFuzzer.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.h"

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : fs::directory_iterator(argv[i])) files.push_back(entry.path());
  }
  if (files.empty()) {
    std::cerr << "usage: replay FOLDER...  (with at least one file in them)\n";
    return 2;
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& path : files) {
    std::ifstream in(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    if (!in) {
      std::cerr << "cannot read " << path << "\n";
      return 2;
    }
    std::cerr << path.filename().string() << "\n";  // the last line names the file that crashed
    // A copy of exactly that size, so that a sanitizer sees a read past the end.
    const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
  }
  std::cout << files.size() << " files\n";
  return 0;
}
