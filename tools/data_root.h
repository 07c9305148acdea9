// Finds the data that the program was installed with.
#pragma once

#include <filesystem>

namespace deepinfer {

// The folder that holds configs/ and golden/data: beside the installed program, else the source
// tree that it was built from. Throws ConfigError that names the places it tried.
std::filesystem::path find_data_root();

}  // namespace deepinfer
