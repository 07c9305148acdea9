// `check` on ranks, `sweep` and `bench ranks` as their users meet them.
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/run_program.h"

namespace deepinfer {
namespace {

using nlohmann::json;

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

std::string refused(const std::vector<std::string>& arguments) {
  const ProgramResult result = run_program(arguments);
  CHECK(result.exit_code == 2);
  CHECK(result.out == "");
  CHECK(result.err.starts_with("error: "));
  return result.err;
}

TEST_CASE("check on a mesh of ranks") {
  const ProgramResult result = run_program(
      {"check", "--suite", "tiny/plain", "--prompt", "p41", "--tp", "2", "--cp", "3", "--ep", "4"});
  CHECK(result.exit_code == 0);
  CHECK(result.err == "");
  CHECK(contains(result.out, "on 12 simulated ranks: tp 2 cp 3 ep 4"));
  CHECK(result.out.ends_with("1 suite, 1 prompt: 1 at 9/9, 0 failed, 0 vacuous\n"));
  // Another schedule, executor and way to compute what is replicated: the same figures.
  const auto figures = [](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"check", "--suite", "tiny/plain", "--prompt",
                                          "p7",    "--json",  "--cp",       "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult run = run_program(arguments);
    CHECK(run.exit_code == 0);
    return json::parse(run.out).at("suites")[0].at("prompts")[0].at("steps");
  };
  const json steps = figures({});
  CHECK(steps.size() >= 9);
  CHECK(figures({"--schedule", "5"}) == steps);
  CHECK(figures({"--executor", "threads", "--replicated", "once"}) == steps);
  CHECK(figures({"--workers", "1", "--tp", "4"}) == steps);
}

TEST_CASE("sweep: a row a mesh, hashes of one rank") {
  const ProgramResult run = run_program(
      {"sweep", "--suite", "tiny/plain", "--prompt", "p7", "--sizes", "1,2,3", "--json"});
  CHECK(run.exit_code == 0);
  const json report = json::parse(run.out);
  CHECK(report.at("all_same") == true);
  const json& suite = report.at("suites").at(0);
  CHECK(suite.at("name") == "tiny/plain");
  CHECK(suite.at("prompts") == json({"p7"}));
  // 1; of 2: tp, cp, each with ep 1 or 2, and ep alone; of 3 likewise.
  CHECK(suite.at("rows").size() == 1 + 5 + 5);
  std::set<std::string> meshes;
  for (const json& row : suite.at("rows")) {
    CHECK(row.at("same") == true);
    CHECK(row.at("hash") == suite.at("alone").at("hash"));
    CHECK(row.at("matched") == json({9}));
    meshes.insert(json({row.at("tp"), row.at("cp"), row.at("ep")}).dump());
  }
  CHECK(meshes.size() == suite.at("rows").size());

  const ProgramResult text = run_program(
      {"check", "--suite", "tiny/plain", "--prompt", "p*1", "--cp", "2", "--sizes", "2,4"});
  CHECK(text.exit_code == 0);
  CHECK(contains(text.out, "logits hash"));
  CHECK(contains(text.out, "\n2      1   2   1   9/9  9/9  "));
  CHECK(contains(text.out, "all hashes agree: 6 runs in "));
}

TEST_CASE("meshes and names that do not exist are refused") {
  CHECK(contains(refused({"check", "--tp", "0"}), "--tp"));
  CHECK(contains(refused({"sweep", "--cp", "65"}), "--cp"));
  CHECK(contains(refused({"sweep", "--sizes", "2,x"}), "'x' in '2,x'"));
  CHECK(contains(refused({"sweep", "--sizes", "0"}), "--sizes"));
  CHECK(contains(refused({"sweep", "--sizes", "5", "--cp", "2"}), "no mesh has one of these"));
  CHECK(contains(refused({"check", "--cp", "2", "--replicated", "onec"}), "every or once"));
  CHECK(contains(refused({"check", "--cp", "2", "--executor", "fibres"}), "fibers"));
  CHECK(contains(refused({"check", "--sizes", "2", "--chunk", "3"}), "--chunk"));
  CHECK(contains(refused({"sweep", "--suite", "tyny"}), "tiny"));
}

TEST_CASE("bench ranks: times, overhead and memory of every mesh") {
  for (const bool together : {false, true}) {
    std::vector<std::string> arguments = {"bench",   "ranks", "--ranks", "2",
                                          "--pairs", "1",     "--json"};
    if (together) arguments.push_back("--together");
    const ProgramResult run = run_program(arguments);
    CHECK(run.exit_code == 0);
    const json report = json::parse(run.out);
    CHECK(report.at("together") == together);
    CHECK(report.at("one_rank").at("seconds") > 0);
    CHECK(report.at("meshes").size() == 4);
    for (const json& mesh : report.at("meshes")) {
      for (const char* mode : {"every", "once"}) {
        CHECK(mesh.at(mode).at("seconds") > 0);
        CHECK(mesh.at(mode).at("overhead") > 0);
        CHECK(mesh.at(mode).at("overhead") < 1);
      }
    }
  }
  CHECK(contains(refused({"bench", "ranks", "--kernel", "gemm"}), "bench kernels"));
  CHECK(contains(refused({"bench", "ranks", "--workers", "2"}), "on one worker"));
  CHECK(contains(refused({"bench", "collectives", "--together"}), "--workers"));
}

}  // namespace
}  // namespace deepinfer
