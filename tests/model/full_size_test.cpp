// Headers of DeepSeek-V4.1-Flash at full size are read in seconds and little memory.
#include "tests/support/full_size.h"

#include <chrono>
#include <sstream>
#include <string>

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "model/checkpoint.h"
#include "tests/support/checkpoint_files.h"
#include "tests/support/messages.h"

namespace deepinfer::test {
namespace {

namespace fs = std::filesystem;
const fs::path kConfig =
    fs::path(DEEPINFER_SIM_SOURCE_DIR) / "configs/models/deepseek-v4.1-flash/config.json";

// What a process of its own saw, and what it cost.
struct Outcome {
  std::string text;
  double seconds = 0;
  int64_t peak_bytes = 0;
  bool ended_well = false;
};

Outcome validate_in_a_process(const fs::path& folder) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const auto start = std::chrono::steady_clock::now();
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::ostringstream text;
    try {
      const ModelConfig config = load_model_config(folder);
      const TensorStore store(folder);
      const ValidateResult result = validate_checkpoint(store, config, {.headers_only = true});
      text << result.tensors << " tensors, " << result.payload_bytes << " bytes, " << result.shards
           << " shards, " << result.total_findings << " findings";
      for (const Finding& finding : result.findings) {
        text << "\n" << finding.what << ": " << finding.where << ": " << finding.remedy;
      }
    } catch (const std::exception& error) {
      text << error.what();
    }
    const std::string out = text.str();
    const bool written =
        ::write(ends[1], out.data(), out.size()) == static_cast<ssize_t>(out.size());
    ::_exit(written ? 0 : 1);
  }
  ::close(ends[1]);
  Outcome outcome;
  char buffer[4096];
  for (ssize_t count; (count = ::read(ends[0], buffer, sizeof buffer)) > 0;) {
    outcome.text.append(buffer, static_cast<size_t>(count));
  }
  ::close(ends[0]);
  int status = 0;
  struct rusage usage = {};
  REQUIRE(::wait4(child, &status, 0, &usage) == child);
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  outcome.peak_bytes = static_cast<int64_t>(usage.ru_maxrss) * 1024;  // Linux counts in KiB
  outcome.ended_well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return outcome;
}

// False, with a message, where the file system has no sparse files of that size.
bool write_or_skip(const fs::path& folder,
                   const std::function<std::string(const std::string&)>& rename = {}) {
  try {
    write_full_size(folder, kConfig, rename);
    return true;
  } catch (const NoSparseFiles& error) {
    MESSAGE("skipped: " << folder << " cannot hold sparse files of this size (" << error.why
                        << ")");
    return false;
  }
}

}  // namespace

TEST_CASE("the headers of the full-size checkpoint are accepted") {
  const TempFolder folder;
  if (!write_or_skip(folder.path())) return;
  const Outcome outcome = validate_in_a_process(folder.path());
  CHECK(outcome.ended_well);
  CHECK(outcome.text == "96085 tensors, 510286023000 bytes, 48 shards, 0 findings");
  CHECK(outcome.peak_bytes < int64_t{1} << 30);
  CHECK(outcome.seconds < 30);
  MESSAGE(outcome.text << " in " << outcome.seconds << " s, " << (outcome.peak_bytes >> 20)
                       << " MiB at most");
}

TEST_CASE("the full-size checkpoint with one tensor renamed is refused") {
  const TempFolder folder;
  const std::string old_name = "layers.23.ffn.experts.200.w2.scale";
  const std::string new_name = "layers.23.ffn.experts.200.w2.scales";
  if (!write_or_skip(folder.path(),
                     [&](const std::string& name) { return name == old_name ? new_name : name; })) {
    return;
  }
  const Outcome outcome = validate_in_a_process(folder.path());
  CHECK(outcome.ended_well);
  CHECK(contains(outcome.text, "2 findings"));
  CHECK(contains(outcome.text, "weight has no scale"));
  CHECK(contains(outcome.text, "unexpected tensor"));
  CHECK(contains(outcome.text, "nearest expected name: \"" + old_name + "\""));
}

}  // namespace deepinfer::test
