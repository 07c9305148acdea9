// Seeds of random tests: printed when used, and taken back from TEST_SEED.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>

namespace deepinfer {

// The seed in the environment variable TEST_SEED, else `usual`. Prints how to repeat the run.
inline uint64_t random_seed(uint64_t usual) {
  const char* given = std::getenv("TEST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 0) : usual;
  std::cout << "random data: repeat with TEST_SEED=" << seed << "\n";
  return seed;
}

}  // namespace deepinfer
