// `deepinfer-sim lint` as a user runs it: what it says, in which form, with which exit code.
#include <chrono>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "tests/support/checkpoint_files.h"
#include "tests/support/full_size.h"
#include "tests/support/hostile_checkpoints.h"
#include "tests/support/messages.h"
#include "tests/tools/run_program.h"

namespace deepinfer::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
const std::string kRoot = DEEPINFER_SIM_SOURCE_DIR;

// Status of one check in the JSON report.
std::string status_of(const json& report, const std::string& check) {
  for (const auto& entry : report["checks"]) {
    if (entry["check"] == check) return entry["status"];
  }
  return "absent";
}

// Largest peak memory of any child of this process so far.
int64_t children_peak_bytes() {
  struct rusage usage = {};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;  // Linux counts in KiB
}

bool write_or_skip(const fs::path& folder,
                   const std::function<std::string(const std::string&)>& rename = {}) {
  try {
    write_full_size(folder, kRoot + "/configs/models/deepseek-v4.1-flash/config.json", rename);
    return true;
  } catch (const NoSparseFiles& error) {
    MESSAGE("skipped: " << folder << " cannot hold sparse files of this size (" << error.why
                        << ")");
    return false;
  }
}

}  // namespace

// First in this file: the peak is that of the largest child until then.
TEST_CASE("lint --headers-only accepts the full-size model in seconds and little memory") {
  const TempFolder folder;
  if (!write_or_skip(folder.path())) return;
  const auto start = std::chrono::steady_clock::now();
  const ProgramResult result = run_program({"lint", folder.path().string(), "--headers-only"});
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const int64_t peak = children_peak_bytes();
  CAPTURE(result.out);
  CHECK(result.exit_code == 0);
  CHECK(contains(result.out, "96,085 tensors, 510,286,023,000 bytes, 48 shards"));
  CHECK(contains(result.out, "token map not checked"));
  CHECK(contains(result.out, "no findings"));
  CHECK(result.err == "");
  CHECK(seconds < 30);
  CHECK(peak < int64_t{1} << 30);
  MESSAGE("lint --headers-only of the full-size model: " << seconds << " s, " << (peak >> 20)
                                                         << " MiB at most");

  const ProgramResult as_json =
      run_program({"lint", folder.path().string(), "--headers-only", "--json"});
  CHECK(as_json.exit_code == 0);
  const json report = json::parse(as_json.out);
  CHECK(report["ok"] == true);
  CHECK(report["tensors"] == 96085);
  CHECK(report["payload_bytes"] == 510286023000);
  CHECK(report["shards"] == 48);
  CHECK(status_of(report, "config") == "passed");
  CHECK(status_of(report, "headers") == "passed");
  CHECK(status_of(report, "tensors") == "passed");
  CHECK(status_of(report, "values") == "not checked");
  CHECK(status_of(report, "token_map") == "not checked");
}

TEST_CASE("lint --headers-only refuses the full-size model with one tensor renamed") {
  const TempFolder folder;
  if (!write_or_skip(folder.path(), [](const std::string& name) {
        return name == "mtp.2.ffn.gate.bias_vl" ? "mtp.2.ffn.gate.bias_v1" : name;
      })) {
    return;
  }
  const ProgramResult result = run_program({"lint", folder.path().string(), "--headers-only"});
  CAPTURE(result.out);
  CHECK(result.exit_code == 2);
  CHECK(contains(result.out, "mtp.2.ffn.gate.bias_vl"));
  CHECK(contains(result.out, "mtp.2.ffn.gate.bias_v1"));
  CHECK(contains(result.out, "2 findings"));
}

TEST_CASE("lint accepts the golden checkpoints whole") {
  for (const char* name : {"tiny", "tiny-fp8", "steady", "wide"}) {
    CAPTURE(name);
    const ProgramResult result = run_program({"lint", kRoot + "/golden/data/" + name, "--json"});
    CHECK(result.exit_code == 0);
    const json report = json::parse(result.out);
    for (const char* check : {"config", "headers", "tensors", "values", "token_map"}) {
      CHECK(status_of(report, check) == "passed");
    }
  }
}

TEST_CASE("each lie ends the program with exit code 2 and its own message") {
  for (const Lie& lie : hostile_checkpoints()) {
    CAPTURE(lie.name);
    const TempFolder folder;
    lie.write(folder.path());
    const ProgramResult result = run_program({"lint", folder.path().string()});
    CAPTURE(result.out);
    CHECK(result.exit_code == 2);
    const bool no_meta = !fs::exists(folder / "engram_meta.json");
    CHECK(contains(result.out, no_meta ? "engram_meta.json is missing" : lie.what));
    CHECK(contains(result.out, lie.names));
  }
}

TEST_CASE("a broken part does not hide what can still be checked") {
  EditedCheckpoint checkpoint("tiny-fp8");
  EditedCheckpoint::replace(checkpoint.config, "\"silu\"", "\"gelu\"");
  const TempFolder folder;
  checkpoint.write(folder.path());
  const json report = json::parse(run_program({"lint", folder.path().string(), "--json"}).out);
  CHECK(report["ok"] == false);
  CHECK(status_of(report, "config") == "failed");
  CHECK(status_of(report, "headers") == "passed");
  CHECK(status_of(report, "tensors") == "not checked");
  CHECK(status_of(report, "token_map") == "not checked");
  CHECK(report["findings"][0]["found"] == "\"gelu\"");
}

TEST_CASE("--max-findings limits what is printed, not what is counted") {
  EditedCheckpoint checkpoint("tiny-fp8");
  for (int layer = 0; layer < 8; ++layer) {
    checkpoint.remove("layers." + std::to_string(layer) + ".attn.kv_norm.weight");
  }
  const TempFolder folder;
  checkpoint.write(folder.path());
  const ProgramResult result =
      run_program({"lint", folder.path().string(), "--json", "--max-findings", "3"});
  CHECK(result.exit_code == 2);
  const json report = json::parse(result.out);
  CHECK(report["total_findings"] == 8);
  CHECK(report["findings"].size() == 3);
  CHECK(contains(run_program({"lint", folder.path().string(), "--max-findings", "3"}).out,
                 "5 more (--max-findings)"));
  CHECK(run_program({"lint", folder.path().string(), "--max-findings", "0"}).exit_code == 2);
}

TEST_CASE("a folder that does not exist is a usage error on stderr") {
  const ProgramResult result = run_program({"lint", "/does/not/exist"});
  CHECK(result.exit_code == 2);
  CHECK(result.out == "");
  CHECK(contains(result.err, "checkpoint folder does not exist"));
  CHECK(run_program({"lint"}).exit_code == 2);
}

TEST_CASE("lint --help has examples") {
  const ProgramResult result = run_program({"lint", "--help"});
  CHECK(result.exit_code == 0);
  CHECK(contains(result.out, "--headers-only"));
  CHECK(contains(result.out, "deepinfer-sim lint golden/data/tiny-fp8"));
}

}  // namespace deepinfer::test
