// The strict JSON reader: what RFC 8259 allows is read exactly, everything else has its own
// message.
#include "model/json_reader.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/support/checkpoint_files.h"
#include "tests/support/messages.h"

namespace deepinfer::test {
namespace {

std::string what_of(std::string_view text, const JsonLimits& limits = {}) {
  return checkpoint_error([&] { parse_json(text, "FILE", limits); }).what;
}

}  // namespace

TEST_CASE("valid text is read exactly") {
  const JsonValue tree = parse_json(
      R"({"i": 9223372036854775807, "n": -9223372036854775808, "f": 1.5e3,
          "big": 9223372036854775808,
          "s": "a\u00e9\n", "b": true, "z": null, "a": [1, [], {}]})",
      "FILE");
  const JsonNode root(tree, "FILE");
  CHECK(root.at("i").integer() == std::numeric_limits<int64_t>::max());
  CHECK(root.at("n").integer() == std::numeric_limits<int64_t>::min());
  CHECK(root.at("f").number() == 1500);
  CHECK(root.at("s").string() == "a\xc3\xa9\n");
  CHECK(root.at("b").boolean());
  CHECK(root.at("z").is_null());
  CHECK(root.at("a").elements(3).size() == 3);
  CHECK(root.at("a").elements(3)[0].path() == "a[0]");
  // One above the largest int64 is a number, but no integer; nothing is rounded behind the caller's
  // back.
  CHECK(root.at("big").number() == 9223372036854775808.0);
  CHECK(checkpoint_error([&] { root.at("big").integer(); }).found == "9223372036854775808");
  CHECK_FALSE(root.find("absent"));
}

TEST_CASE("each breach of the syntax has a message with the place") {
  const std::vector<std::pair<std::string, std::string>> texts = {
      {"", "not valid JSON"},
      {"{\"a\": 1", "not valid JSON"},
      {"{\"a\": 1} x", "not valid JSON"},
      {"{\"a\": 1,}", "not valid JSON"},
      {"[1 2]", "not valid JSON"},
      {"{a: 1}", "not valid JSON"},
      {"[01]", "not valid JSON"},
      {"[NaN]", "not valid JSON"},
      {"[1e999]", "not valid JSON"},
      {"// note\n{}", "not valid JSON"},
      {"[\"\x01\"]", "not valid JSON"},
      {"[\"\xff\"]", "not valid JSON"},
      {"[\"\\ud800\"]", "not valid JSON"},
      {"\xef\xbb\xbf{}", "JSON text begins with a byte order mark"},
      {"{\"a\": 1, \"b\": 2, \"a\": 1}", "duplicate key \"a\" in a JSON object"},
      {"[{\"a\": {\"\\u0061\": 1, \"a\": 2}}]", "duplicate key \"a\" in a JSON object"},
  };
  for (const auto& entry : texts) {
    CAPTURE(entry.first);
    CHECK(what_of(entry.first) == entry.second);
  }
  const ErrorParts parts = checkpoint_error([] { parse_json("{\"a\": tru}", "FILE"); });
  CHECK(contains(parts.where, "FILE, byte 10"));
  CHECK(contains(parts.found, "invalid literal"));
}

TEST_CASE("NUL bytes end nothing") {
  CHECK(what_of(std::string_view("{}\0", 3)) == "NUL byte in JSON text");
  CHECK(what_of(std::string_view("{}\0{}", 5)) == "NUL byte in JSON text");
  CHECK(what_of(std::string_view("{\"a\0\": 1}", 9)) == "NUL byte in JSON text");
}

TEST_CASE("limits are enforced before memory is spent") {
  CHECK(what_of("[[[[1]]]]", {.max_depth = 4}) == "");
  CHECK(what_of("[[[[1]]]]", {.max_depth = 3}) == "JSON is nested too deeply");
  CHECK(what_of(std::string(1'000'000, '[')) == "JSON is nested too deeply");
  CHECK(what_of("[1,2,3]", {.max_values = 4}) == "");
  CHECK(what_of("[1,2,3]", {.max_values = 3}) == "JSON holds too many values");
  CHECK(what_of("[1,2,3]", {.max_bytes = 7}) == "");
  CHECK(what_of("[1,2,3]", {.max_bytes = 6}) == "JSON text is too long");
}

TEST_CASE("getters say file, path, expected and found") {
  const JsonValue tree =
      parse_json(R"({"t": {"n": 1.0, "s": "x", "l": [1, 2, "3"], "d": "12", "e": "12a"}})", "FILE");
  const JsonNode root(tree, "FILE");
  const JsonNode t = root.at("t");
  ErrorParts parts = checkpoint_error([&] { t.at("n").integer(1, 9); });
  CHECK(parts.what == "wrong JSON type");
  CHECK(parts.where == "FILE, t.n");
  CHECK(parts.expected == "an integer from 1 to 9");
  CHECK(parts.found == "1.0");  // an integral value written as a fraction is no integer
  parts = checkpoint_error([&] { t.at("l").integers(0, 9, 9); });
  CHECK(parts.where == "FILE, t.l[2]");
  CHECK(parts.found == "\"3\"");
  CHECK(checkpoint_error([&] { t.at("l").integers(0, 9, 2); }).what == "array too long");
  CHECK(checkpoint_error([&] { t.at("missing"); }).what == "key \"missing\" is missing");
  CHECK(checkpoint_error([&] { t.at("s").find("x"); }).expected == "an object");
  CHECK(checkpoint_error([&] { t.at("s").number(); }).expected == "a number");
  CHECK(checkpoint_error([&] { t.at("s").boolean(); }).expected == "true or false");
  CHECK(checkpoint_error([&] { t.at("n").string(); }).expected == "a string");
  CHECK(checkpoint_error([&] { t.at("n").elements(1); }).expected == "an array");
  CHECK(t.at("d").decimal() == 12);
  CHECK(checkpoint_error([&] { t.at("e").decimal(); }).what == "not a decimal integer");
  parts = checkpoint_error([&] { t.expect_keys({"n", "s", "list", "d", "e"}); });
  CHECK(parts.what == "unknown key \"l\"");
  CHECK(parts.where == "FILE, t");
}

TEST_CASE("names from files are safe to print") {
  CHECK(quote_name("a\"\\\n\x1b\xff") == "\"a\\\"\\\\\\x0a\\x1b\\xff\"");
  const std::string long_name = quote_name(std::string(100'000, 'x'));
  CHECK(long_name.size() < 200);
  CHECK(contains(long_name, "..."));
}

TEST_CASE("only regular files of a sane size are read") {
  const TempFolder folder;
  write_file(folder / "text", "12345");
  CHECK(read_text_file((folder / "text").string(), 5) == "12345");
  CHECK(begins_with(checkpoint_error([&] { read_text_file((folder / "text").string(), 4); }).what,
                    "file is too large"));
  CHECK(checkpoint_error([&] { read_text_file((folder / "none").string(), 4); }).what ==
        "cannot open file");
  CHECK(checkpoint_error([&] { read_text_file(folder.path().string(), 4); }).what ==
        "not a regular file");
}

}  // namespace deepinfer::test
