// The hash that results are compared by: every bit and every length counts.
#include "platform/hash.h"

#include <cstdint>
#include <set>
#include <vector>

#include <doctest/doctest.h>

#include "platform/random.h"
#include "tests/random_seed.h"

namespace deepinfer {
namespace {

TEST_CASE("every flipped bit and every length gives another hash") {
  RandomStream random(random_seed(11), "hash", 0);
  std::vector<uint8_t> bytes(200);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.below(256));
  std::set<uint64_t> seen;
  size_t made = 0;
  for (size_t length = 0; length <= bytes.size(); ++length) {
    seen.insert(hash_bytes(bytes.data(), length));
    ++made;
  }
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<uint8_t>(1U << bit % 8);
    seen.insert(hash_bytes(bytes.data(), bytes.size()));
    ++made;
    bytes[bit / 8] ^= static_cast<uint8_t>(1U << bit % 8);
  }
  CHECK(seen.size() == made);
}

// Two signs of fp32 values that lie a lane apart are the top bits of two words of one lane.
TEST_CASE("pairs of flipped bits do not cancel") {
  std::vector<uint64_t> words(64);
  const uint64_t whole = hash_bytes(words.data(), words.size() * 8);
  std::set<uint64_t> seen = {whole};
  size_t made = 1;
  for (size_t a = 0; a < words.size(); ++a) {
    for (size_t b = a + 1; b < words.size(); ++b) {
      for (const int bit : {0, 31, 63}) {
        words[a] ^= uint64_t{1} << bit;
        words[b] ^= uint64_t{1} << bit;
        seen.insert(hash_bytes(words.data(), words.size() * 8));
        ++made;
        words[a] ^= uint64_t{1} << bit;
        words[b] ^= uint64_t{1} << bit;
      }
    }
  }
  CHECK(seen.size() == made);
}

TEST_CASE("zeros count, and so does the seed") {
  const std::vector<uint8_t> zeros(300);
  std::set<uint64_t> seen;
  for (size_t length = 0; length <= zeros.size(); ++length) {
    seen.insert(hash_bytes(zeros.data(), length));
    seen.insert(hash_bytes(zeros.data(), length, 1));
  }
  CHECK(seen.size() == 2 * (zeros.size() + 1));
}

}  // namespace
}  // namespace deepinfer
