// `deepinfer-sim ops` as its users meet it: the table, one case, JSON, filters, errors.
#include <algorithm>
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

ProgramResult ops(std::vector<std::string> arguments, const ProgramOptions& options = {}) {
  arguments.insert(arguments.begin(), "ops");
  return run_program(arguments, options);
}

std::string refused(const std::vector<std::string>& arguments, const ProgramOptions& options = {}) {
  const ProgramResult result = ops(arguments, options);
  CHECK(result.exit_code == 2);
  CHECK(result.out == "");
  return result.err;
}

json parsed(const std::vector<std::string>& arguments) {
  const ProgramResult result = ops(arguments);
  CHECK(result.exit_code == 0);
  CHECK(result.err == "");
  return json::parse(result.out);
}

TEST_CASE("a table with one line an op, and a summary") {
  const ProgramResult result = ops({"--op", "rms_norm", "--op", "topk*"});
  CHECK(result.exit_code == 0);
  CHECK(result.err == "");
  CHECK(result.out.starts_with("op "));
  CHECK(contains(result.out, "\nrms_norm "));
  CHECK(contains(result.out, "\ntopk_select "));
  CHECK(contains(result.out, "\ntopk_merge "));
  CHECK(!contains(result.out, "\nrope "));
  CHECK(contains(result.out, "seed 1, canonical/"));
  CHECK(contains(result.out, "canonical/scalar, held against reference and each other\n"));
  CHECK(contains(result.out, "\n3 ops, "));
  CHECK(contains(result.out, " 0 failures; digest "));
}

TEST_CASE("JSON: every op, its figures, and no cases unless one is asked for") {
  const json all = parsed({"--json", "--target", "scalar"});
  CHECK(all.at("schema") == 1);
  CHECK(all.at("seed") == 1);
  CHECK(all.at("device") == "cpu");
  CHECK(all.at("implementations") == json({"canonical/scalar"}));
  CHECK(all.at("exit_code") == 0);
  CHECK(all.at("cases").is_null());
  CHECK(all.at("failures").empty());
  CHECK(all.at("summary").at("ops") == 36);
  int64_t cases = 0;
  for (const json& op : all.at("ops")) {
    cases += op.at("cases").get<int64_t>();
    CHECK(op.at("digest").get<std::string>().size() == 16);
    CHECK(op.at("worst_bound_share").get<double>() <= 1);
    CHECK(op.at("failures") == 0);
  }
  CHECK(all.at("summary").at("cases") == cases);

  // The same bits on the fastest target: one line compares two builds or hosts.
  const json fastest = parsed({"--json"});
  CHECK(fastest.at("digest") == all.at("digest"));
  CHECK(parsed({"--json", "--seed", "2"}).at("digest") != all.at("digest"));
}

TEST_CASE("one case: inputs, every implementation, the digest of the whole run's case") {
  const ProgramResult text = ops({"--op", "sparse_attention", "--case", "4", "--seed", "3"});
  CHECK(text.exit_code == 0);
  CHECK(contains(text.out, "\nsparse_attention case 4: "));
  CHECK(contains(text.out, "\ninputs: "));
  for (const char* row : {"\nreference ", "\ncanonical/scalar ", " out ", " lse "}) {
    CHECK(contains(text.out, row));
  }
  const json one = parsed({"--op", "linear", "--case", "17", "--json"});
  REQUIRE(one.at("cases").size() == 1);
  const json& shown = one.at("cases").at(0);
  CHECK(shown.at("op") == "linear");
  CHECK(shown.at("case") == 17);
  CHECK(shown.at("inputs").size() == 2);
  CHECK(shown.at("implementations").at(0).at("name") == "reference");
  CHECK(shown.at("implementations").size() == one.at("implementations").size() + 1);
  for (size_t i = 1; i < shown.at("implementations").size(); ++i) {
    CHECK(shown.at("implementations").at(i).at("digest") == shown.at("digest"));
  }
  CHECK(parsed({"--op", "linear", "--case", "17", "--json", "--target", "scalar"})
            .at("cases")
            .at(0)
            .at("digest") == shown.at("digest"));
}

TEST_CASE("the list of cases") {
  const ProgramResult result = ops({"--list", "--op", "kv_store"});
  CHECK(result.exit_code == 0);
  CHECK(result.out.starts_with("kv_store 0  fp32 pool [9, 64] "));
  const ProgramResult all = ops({"--list"});
  CHECK(std::count(all.out.begin(), all.out.end(), '\n') > 1000);
}

TEST_CASE("a run in which nothing was compared is vacuous") {
  const std::string list = ops({"--list", "--op", "rms_norm"}).out;
  const size_t empty = list.find("[0, 16]");
  REQUIRE(empty != std::string::npos);
  const size_t line =
      list.rfind('\n', empty) == std::string::npos ? 0 : list.rfind('\n', empty) + 1;
  const size_t number = line + std::string("rms_norm ").size();
  const ProgramResult result =
      ops({"--op", "rms_norm", "--case", list.substr(number, list.find(' ', number) - number)});
  CHECK(result.exit_code == 6);
}

TEST_CASE("unknown names and places") {
  CHECK(contains(refused({"--op", "rms_nrm"}), "did you mean rms_norm?"));
  CHECK(contains(refused({"--op", "linear", "--op", "x*"}), "no op matches 'x*'"));
  CHECK(contains(refused({"--op", "linear", "--case", "100000"}), "expected: 0 to "));
  CHECK(contains(refused({"--case", "-1"}), "--case"));
  CHECK(contains(refused({"--target", "avx521"}), "did you mean avx512?"));
  CHECK(contains(refused({"--device", "cpux"}), "did you mean cpu?"));
}

TEST_CASE("a Neuron device without a plugin: what is missing") {
  CHECK(contains(refused({"--device", "neuron"}), "no plugin has registered torch's PrivateUse1"));
  ProgramOptions options;
  options.environment["DEEPINFER_NEURON_DEVICE"] = "neuron";
  CHECK(contains(refused({}, options), "LD_PRELOAD"));
  CHECK(ops({"--device", "cpu", "--op", "kv_store"}, options).exit_code == 0);
}

}  // namespace
}  // namespace deepinfer
