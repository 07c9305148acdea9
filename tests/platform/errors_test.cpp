// Error messages, exit codes and the always-on assertion.
#include "platform/errors.h"

#include <stdexcept>
#include <string>

#include <doctest/doctest.h>

namespace deepinfer {
namespace {

TEST_CASE("a message has the parts that are given, in order") {
  CHECK(format_error({.what = "w", .where = {}, .expected = {}, .found = {}, .remedy = {}}) == "w");
  CHECK(format_error({.what = "w", .where = "x", .expected = "e", .found = "f", .remedy = "r"}) ==
        "w\n  where: x\n  expected: e\n  found: f\n  to do: r");
}

TEST_CASE("each type has its exit code and keeps its parts") {
  const ErrorParts parts{.what = "w", .where = "x", .expected = {}, .found = {}, .remedy = {}};
  CHECK(ConfigError(parts).exit_code() == ExitCode::kBadInput);
  CHECK(CheckpointError(parts).exit_code() == ExitCode::kBadInput);
  CHECK(GoldenFileError(parts).exit_code() == ExitCode::kBadInput);
  CHECK(UnsupportedError(parts).exit_code() == ExitCode::kBadInput);
  CHECK(GoldenMismatch(parts).exit_code() == ExitCode::kMismatch);
  CHECK(VacuousRun(parts).exit_code() == ExitCode::kVacuous);
  CHECK(ConfigError(parts).parts().where == "x");
  CHECK(std::string(ConfigError(parts).what()) == "w\n  where: x");
}

TEST_CASE("a failed assertion prints condition, place and values; a true one evaluates nothing") {
  int evaluated = 0;
  DEEPINFER_ASSERT(true, "values " << ++evaluated);
  CHECK(evaluated == 0);
  try {
    const int rows = 3;
    DEEPINFER_ASSERT(rows == 4, "rows " << rows);
    FAIL("did not throw");
  } catch (const std::logic_error& error) {
    const std::string text = error.what();
    CHECK(text.find("rows == 4 is false (rows 3)") != std::string::npos);
    CHECK(text.find("errors_test.cpp:") != std::string::npos);
  }
}

}  // namespace
}  // namespace deepinfer
