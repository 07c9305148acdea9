// Edit distance against a second, recursive definition, and the choice of the nearest name.
#include "platform/nearest_name.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/random_seed.h"

namespace deepinfer {
namespace {

// The definition, without tables: exponential, for short words.
size_t distance_by_definition(std::string_view a, std::string_view b) {
  if (a.empty() || b.empty()) return a.size() + b.size();
  const std::string_view a1 = a.substr(0, a.size() - 1);
  const std::string_view b1 = b.substr(0, b.size() - 1);
  size_t best = std::min({distance_by_definition(a1, b) + 1, distance_by_definition(a, b1) + 1,
                          distance_by_definition(a1, b1) + (a.back() == b.back() ? 0 : 1)});
  if (a.size() > 1 && b.size() > 1 && a.back() == b[b.size() - 2] && b.back() == a[a.size() - 2]) {
    best = std::min(
        best, distance_by_definition(a.substr(0, a.size() - 2), b.substr(0, b.size() - 2)) + 1);
  }
  return best;
}

TEST_CASE("edit distance of known pairs") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("abc", "") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("chekc", "check") == 1);
  CHECK(edit_distance("CHECK", "check") == 0);
  CHECK(edit_distance("ca", "abc") == 3);  // optimal string alignment edits no substring twice
}

TEST_CASE("edit distance equals its definition on random words") {
  std::mt19937_64 random(random_seed(11));
  const auto word = [&random] {
    std::string text(random() % 7, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int i = 0; i < 300; ++i) {
    const std::string a = word();
    const std::string b = word();
    CAPTURE(a);
    CAPTURE(b);
    CHECK(edit_distance(a, b) == distance_by_definition(a, b));
    CHECK(edit_distance(a, b) == edit_distance(b, a));
  }
}

TEST_CASE("the nearest name, the first of equals") {
  const std::vector<std::string> names = {"check", "lint", "env", "formats"};
  CHECK(nearest_name("chek", names) == "check");
  CHECK(nearest_name("linter", names) == "lint");
  CHECK(nearest_name("format", names) == "formats");
  CHECK(nearest_name("", names) == "env");
  CHECK(nearest_name("x", {"aa", "bb"}) == "aa");
  CHECK(nearest_name("x", std::vector<std::string>()) == "");
  CHECK(did_you_mean("evn", names) == "did you mean env?");
  CHECK(did_you_mean("evn", std::vector<std::string>()) == "");
}

}  // namespace
}  // namespace deepinfer
