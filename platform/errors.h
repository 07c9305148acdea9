// Error types and process exit codes: one exception type per failure that a caller treats
// differently.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace deepinfer {

// Exit codes of the program (architecture.md, "Errors").
enum class ExitCode : int {
  kMatch = 0,         // everything asked for was done, all comparisons matched
  kMismatch = 1,      // a comparison with golden data failed
  kBadInput = 2,      // wrong usage, configuration or input file
  kCollective = 3,    // collective desync or hang
  kDeviceMemory = 4,  // a device memory limit was exceeded
  kGraphRule = 5,     // a rule for device graphs was broken
  kVacuous = 6,       // a check claimed a path that never ran
};

// The parts of a message; empty parts are left out of the text.
struct ErrorParts {
  std::string what = {};      // what is wrong
  std::string where = {};     // file, tensor, rank, layer, step
  std::string expected = {};  // what was expected
  std::string found = {};     // what was found
  std::string remedy = {};    // what to do
};

// "what\n  where: ...\n  expected: ...\n  found: ...\n  to do: ..."
std::string format_error(const ErrorParts& parts);

// Base of all typed errors. what() is format_error(parts).
class Error : public std::runtime_error {
 public:
  Error(ExitCode exit_code, ErrorParts parts)
      : std::runtime_error(format_error(parts)), exit_code_(exit_code), parts_(std::move(parts)) {}
  ExitCode exit_code() const { return exit_code_; }
  const ErrorParts& parts() const { return parts_; }

 private:
  ExitCode exit_code_;
  ErrorParts parts_;
};

// Wrong command line, environment or YAML; exit code 2.
struct ConfigError : Error {
  explicit ConfigError(ErrorParts parts) : Error(ExitCode::kBadInput, std::move(parts)) {}
};
// A checkpoint or its config.json breaks a rule; exit code 2.
struct CheckpointError : Error {
  explicit CheckpointError(ErrorParts parts) : Error(ExitCode::kBadInput, std::move(parts)) {}
};
// A golden file cannot be read, or does not describe the model; exit code 2.
struct GoldenFileError : Error {
  explicit GoldenFileError(ErrorParts parts) : Error(ExitCode::kBadInput, std::move(parts)) {}
};
// Well-formed input that asks for something this build does not do; exit code 2.
struct UnsupportedError : Error {
  explicit UnsupportedError(ErrorParts parts) : Error(ExitCode::kBadInput, std::move(parts)) {}
};
// Ranks disagree in a collective, or wait for each other for ever; exit code 3.
struct CollectiveError : Error {
  explicit CollectiveError(ErrorParts parts) : Error(ExitCode::kCollective, std::move(parts)) {}
};
// A comparison with golden data failed; exit code 1.
struct GoldenMismatch : Error {
  explicit GoldenMismatch(ErrorParts parts) : Error(ExitCode::kMismatch, std::move(parts)) {}
};
// A check claimed a path that never ran; exit code 6.
struct VacuousRun : Error {
  explicit VacuousRun(ErrorParts parts) : Error(ExitCode::kVacuous, std::move(parts)) {}
};

namespace internal {
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line,
                                   const std::string& values);
}  // namespace internal

// Always-on assertion for bugs in this program (never for bad input). Streams values:
//   DEEPINFER_ASSERT(a == b, "rows " << a << ", slots " << b);
#define DEEPINFER_ASSERT(condition, values)                                   \
  do {                                                                        \
    if (!(condition)) {                                                       \
      std::ostringstream deepinfer_assert_stream;                             \
      deepinfer_assert_stream << values;                                      \
      ::deepinfer::internal::assertion_failed(#condition, __FILE__, __LINE__, \
                                              deepinfer_assert_stream.str()); \
    }                                                                         \
  } while (false)

}  // namespace deepinfer
