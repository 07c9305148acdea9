// The random stream: published vectors, and streams that do not depend on one another.
#include "platform/random.h"

#include <set>
#include <vector>

#include <doctest/doctest.h>

namespace deepinfer {
namespace {

std::vector<uint32_t> words(RandomStream random, int count) {
  std::vector<uint32_t> drawn;
  for (int i = 0; i < count; ++i) drawn.push_back(random.word());
  return drawn;
}

TEST_CASE("FNV-1a, by its authors' vectors") {
  CHECK(fnv1a64("") == 0xCBF29CE484222325);
  CHECK(fnv1a64("a") == 0xAF63DC4C8601EC8C);
  CHECK(fnv1a64("foobar") == 0x85944171F73967E8);
  CHECK(fnv1a64("bar", fnv1a64("foo")) == fnv1a64("foobar"));
}

TEST_CASE("Philox4x32-10, by Random123's vectors") {
  // kat_vectors: counter and key 0
  CHECK(words(RandomStream(0, uint64_t{0}, 0), 4) ==
        std::vector<uint32_t>{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8});
  // The layout of counter and key: the same block made by hand.
  r123::Philox4x32::ctr_type counter = {{1, 7, 0x89ABCDEF, 0x01234567}};
  r123::Philox4x32::key_type key = {{0x33334444, 0x11112222}};
  const r123::Philox4x32::ctr_type block = r123::Philox4x32()(counter, key);
  const std::vector<uint32_t> drawn =
      words(RandomStream(0x1111222233334444, uint64_t{0x0123456789ABCDEF}, 7), 8);
  CHECK(std::vector<uint32_t>(drawn.begin() + 4, drawn.end()) ==
        std::vector<uint32_t>{block[0], block[1], block[2], block[3]});
}

TEST_CASE("streams by seed, purpose and case") {
  std::set<std::vector<uint32_t>> different;
  for (const uint64_t seed : {uint64_t{1}, uint64_t{2}, uint64_t{1} << 40}) {
    for (const char* purpose : {"linear", "rope", ""}) {
      for (const uint32_t number : {0u, 1u, 1u << 31}) {
        different.insert(words(RandomStream(seed, purpose, number), 8));
        CHECK(words(RandomStream(seed, purpose, number), 8) ==
              words(RandomStream(seed, fnv1a64(purpose), number), 8));
      }
    }
  }
  CHECK(different.size() == 27);
}

TEST_CASE("ranges") {
  RandomStream random(1, "ranges", 0);
  std::set<int64_t> seen;
  float smallest = 1, largest = -1;
  for (int i = 0; i < 4000; ++i) {
    const int64_t value = random.below(7);
    CHECK((value >= 0 && value < 7));
    seen.insert(value);
    const float x = random.uniform();
    CHECK((x > -1 && x < 1 && x != 0));
    smallest = std::min(smallest, x);
    largest = std::max(largest, x);
    CHECK(random.below(1) == 0);
  }
  CHECK(seen.size() == 7);
  CHECK(smallest < -0.99f);
  CHECK(largest > 0.99f);
  CHECK(random.below(int64_t{1} << 32) >= 0);
}

}  // namespace
}  // namespace deepinfer
