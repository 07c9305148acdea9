// The vacuity guard's counters: names, sums, and what counts as every expert hit.
#include "platform/coverage.h"

#include <set>
#include <stdexcept>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include "platform/errors.h"

namespace deepinfer {
namespace {

TEST_CASE("every path has a name of its own, and the name parses back") {
  std::set<std::string_view> names;
  for (const PathInfo& info : all_paths()) {
    CHECK(names.insert(info.name).second);
    CHECK(!info.what.empty());
    CHECK(parse_path(info.name) == info.path);
  }
  CHECK(static_cast<size_t>(Path::kDecoded) + 1 == all_paths().size());
  try {
    parse_path("window_cross");
    FAIL("accepted");
  } catch (const ConfigError& error) {
    CHECK(error.parts().remedy == "did you mean window_crossed?");
  }
}

TEST_CASE("counts start at 0 and add up") {
  Coverage coverage;
  for (const PathInfo& info : all_paths()) CHECK(coverage.count(info.path) == 0);
  coverage.add(Path::kDecoded);
  coverage.add(Path::kDecoded, 4);
  CHECK(coverage.count(Path::kDecoded) == 5);
  CHECK(coverage.count(Path::kWindowCrossed) == 0);
}

TEST_CASE("every expert hit counts layers, over all forwards and merges") {
  Coverage coverage;
  coverage.add_expert_hits(3, {1, 0, 2});
  CHECK(coverage.count(Path::kEveryExpertHit) == 0);
  coverage.add_expert_hits(4, {1, 1, 1});
  CHECK(coverage.count(Path::kEveryExpertHit) == 1);
  coverage.add_expert_hits(3, {0, 5, 0});
  CHECK(coverage.count(Path::kEveryExpertHit) == 2);

  Coverage other;
  other.add(Path::kDecoded, 2);
  other.add_expert_hits(3, {1, 1, 1});
  other.add_expert_hits(7, {0, 1, 1});
  coverage.add(Path::kDecoded, 1);
  coverage.merge(other);
  CHECK(coverage.count(Path::kDecoded) == 3);
  CHECK(coverage.count(Path::kEveryExpertHit) == 2);
  CHECK(coverage.expert_hits().at(3) == std::vector<int64_t>{2, 6, 3});
  CHECK_THROWS_AS(coverage.add_expert_hits(3, {1, 1}), std::logic_error);
}

}  // namespace
}  // namespace deepinfer
