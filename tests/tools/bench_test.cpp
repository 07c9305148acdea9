// `deepinfer-sim bench kernels`: what it lists, what it prints, what it refuses. Never a speed.
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/run_program.h"

namespace deepinfer {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

json document_of(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"bench", "kernels", "--json"});
  const ProgramResult result = run_program(arguments);
  CHECK(result.exit_code == 0);
  CHECK(result.err == "");
  return json::parse(result.out);
}

// Standard error of a call that is refused with exit code 2.
std::string refused(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "bench");
  const ProgramResult result = run_program(arguments);
  CHECK(result.exit_code == 2);
  CHECK(result.out == "");
  return result.err;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("every kernel header has a case, and every case a peer") {
  // What kernels share, and the one that only asks for tile registers.
  const std::set<std::string> no_kernels = {
      "amx.h",           "canonical_run.h",   "software_float.h", "float_scope.h",
      "gemm_internal.h", "highway_targets.h", "kernel_tables.h",  "lanes_software.h",
      "row_view.h",      "target.h"};
  std::set<std::string> headers;
  for (const auto& entry :
       fs::directory_iterator(fs::path(DEEPINFER_SIM_SOURCE_DIR) / "sim/kernels")) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() != ".h" || name.ends_with("-inl.h")) continue;
    if (no_kernels.count(name) == 0) headers.insert("sim/kernels/" + name);
  }
  CHECK(headers.count("sim/kernels/gemm.h") == 1);
  std::set<std::string> listed;
  const json list = document_of({"--list"});
  CHECK(!list.at("kernels").empty());
  for (const json& entry : list.at("kernels")) {
    CAPTURE(entry.dump());
    listed.insert(entry.at("header").get<std::string>());
    CHECK(!entry.at("kernel").get<std::string>().empty());
    CHECK(!entry.at("peer").get<std::string>().empty());
    CHECK(!entry.at("targets").empty());
  }
  for (const std::string& header : headers) {
    CAPTURE(header);
    CHECK(listed.count(header) == 1);
  }
  for (const std::string& header : listed) {
    CAPTURE(header);
    CHECK(headers.count(header) == 1);
  }
}

TEST_CASE("results name their peer, and kernel and peer agree") {
  const json document = document_of({"--pairs", "1", "--kernel", "rms_norm", "--kernel", "exp",
                                     "--kernel", "bf16_from_*", "--kernel", "engram_hash"});
  CHECK(document.at("schema") == 1);
  CHECK(document.at("threads") == 1);
  CHECK(document.at("pairs") == 1);
  for (const char* key : {"machine", "onednn", "libtorch"}) {
    CHECK(document.at(key).is_string());
  }
  std::set<std::string> kernels;
  for (const json& result : document.at("results")) {
    CAPTURE(result.dump());
    const std::string kernel = result.at("kernel");
    kernels.insert(kernel);
    for (const char* key : {"kernel_us", "peer_us", "ratio", "throughput", "peer_throughput"}) {
      CHECK(result.at(key).get<double>() > 0);
    }
    CHECK(result.at("unit") == "Gvalue/s");
    const bool copies = kernel == "bf16_from_fp32";
    CHECK(result.at("peer").get<std::string>().starts_with(copies ? "memcpy" : "ATen: "));
    CHECK(result.at("difference").is_null() == copies);
    CHECK(result.at("comparable") == true);
    CHECK((result.at("target") == "any") == (kernel == "engram_hash"));
  }
  CHECK(kernels == std::set<std::string>{"rms_norm", "exp", "bf16_from_fp32", "engram_hash"});
}

TEST_CASE("--target chooses, and the table has a line for each result") {
  const json document =
      document_of({"--pairs", "1", "--kernel", "hc_collapse", "--target", "scalar"});
  CHECK(document.at("results").size() == 2);
  for (const json& result : document.at("results")) CHECK(result.at("target") == "scalar");

  const ProgramResult table = run_program(
      {"bench", "kernels", "--pairs", "1", "--kernel", "compress_pool", "--target", "scalar"});
  CHECK(table.exit_code == 0);
  CHECK(table.err == "");
  CHECK(table.out.starts_with("machine "));
  CHECK(contains(table.out, "one thread, 1 pairs"));
  CHECK(contains(table.out, "\ncompress_pool  scalar"));
}

TEST_CASE("collectives: times of ours and of the peer, if the build has one") {
  const ProgramResult result =
      run_program({"bench", "collectives", "--ranks", "4", "--pairs", "1", "--json"});
  CAPTURE(result.err);
  REQUIRE(result.exit_code == 0);
  const json document = json::parse(result.out);
  const bool has_peer = document.at("peer").get<std::string>().rfind("none", 0) != 0;
  CHECK(document.at("results").size() == 2);
  for (const json& entry : document.at("results")) {
    CAPTURE(entry.dump());
    CHECK(entry.at("us").get<double>() > 0);
    CHECK(entry.at("peer_us").is_null() == !has_peer);
    if (has_peer) CHECK(entry.at("ratio").get<double>() > 0);
  }
  CHECK(contains(refused({"collectives", "--kernel", "gemm"}), "an option of `bench kernels`"));
  CHECK(contains(refused({"collectives", "--ranks", "65"}), "--ranks"));
}

TEST_CASE("what does not exist is refused") {
  CHECK(contains(refused({"kernals"}), "did you mean kernels?"));
  CHECK(contains(refused({"kernels", "--kernel", "rms_nrm"}), "did you mean rms_norm?"));
  CHECK(contains(refused({"kernels", "--kernel", "nothing*"}), "no kernel matches nothing*"));
  CHECK(contains(refused({"kernels", "--target", "avx513"}), "did you mean avx512?"));
  CHECK(contains(refused({"kernels", "--pairs", "0"}), "--pairs"));
  CHECK(contains(refused({}), "WHAT"));
}

}  // namespace
}  // namespace deepinfer
