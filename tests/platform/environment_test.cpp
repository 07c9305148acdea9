// The environment registry: defaults, every type's good and bad values, unknown names.
#include "platform/environment.h"

#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "platform/errors.h"

namespace deepinfer {
namespace {

using Variables = std::map<std::string, std::string>;

// The error that resolving `variables` gives; empty parts if it gives none.
ErrorParts error_of(const Variables& variables) {
  try {
    const Environment environment(variables);
  } catch (const ConfigError& error) {
    CHECK(error.exit_code() == ExitCode::kBadInput);
    return error.parts();
  }
  return {};
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("the registry has every variable of systems.md P5, each documented") {
  std::set<std::string_view> names;
  for (const VariableInfo& info : all_variables()) {
    CAPTURE(info.name);
    CHECK(names.insert(info.name).second);
    CHECK(!info.doc.empty());
    CHECK(!info.expected.empty());
    // A variable says what it is when unset: by value, or in words.
    CHECK(info.default_value.empty() != info.default_meaning.empty());
    CHECK(variable_type_name(info.type) != "");
  }
  const std::set<std::string_view> expected = {
      "DEEPINFER_NEURON_DEVICE",          "DEEPINFER_NEURON_FP8_MAX",
      "DEEPINFER_NEURON_NUM_KV_BLOCKS",   "DEEPINFER_NEURON_GRAPH_MODE",
      "DEEPINFER_NEURON_COMPILE_BACKEND", "DEEPINFER_NEURON_LOCAL_RANK",
      "DEEPINFER_NEURON_HIER_ALLREDUCE",  "DEEPINFER_NEURON_MOE_CAPACITY",
      "DEEPINFER_NEURON_MOE_FLAG_FORCE",  "DEEPINFER_NEURON_REGION_TIMING",
      "DEEPINFER_NEURON_HOST_TIMING",     "DEEPINFER_NEURON_PROFILE_RANKS",
      "DEEPINFER_ENFORCE_EAGER"};
  CHECK(names == expected);
}

TEST_CASE("defaults") {
  const Environment environment((Variables()));
  CHECK(environment.device() == DeviceKind::kCpu);
  CHECK(!environment.fp8_max());
  CHECK(!environment.num_kv_blocks());
  CHECK(environment.graph_mode() == GraphMode::kNone);
  CHECK(!environment.compile_backend());
  CHECK(!environment.local_rank());
  CHECK(environment.hier_allreduce());
  CHECK(!environment.moe_capacity());
  CHECK(!environment.moe_flag_force());
  CHECK(!environment.region_timing());
  CHECK(!environment.host_timing());
  CHECK(environment.profile_ranks().empty());
  CHECK(environment.enforce_eager());
  CHECK(environment.settings().size() == all_variables().size());
  for (const Setting& setting : environment.settings()) {
    CHECK(!setting.from_environment);
    CHECK(setting.value == setting.info->default_value);
  }
}

TEST_CASE("every variable set") {
  const Environment environment(Variables{{"DEEPINFER_NEURON_DEVICE", "neuron"},
                                          {"DEEPINFER_NEURON_FP8_MAX", "224"},
                                          {"DEEPINFER_NEURON_NUM_KV_BLOCKS", "4096"},
                                          {"DEEPINFER_NEURON_GRAPH_MODE", "regions"},
                                          {"DEEPINFER_NEURON_COMPILE_BACKEND", "neuron_compile"},
                                          {"DEEPINFER_NEURON_LOCAL_RANK", "63"},
                                          {"DEEPINFER_NEURON_HIER_ALLREDUCE", "0"},
                                          {"DEEPINFER_NEURON_MOE_CAPACITY", "128"},
                                          {"DEEPINFER_NEURON_MOE_FLAG_FORCE", "0"},
                                          {"DEEPINFER_NEURON_REGION_TIMING", "1"},
                                          {"DEEPINFER_NEURON_HOST_TIMING", "1"},
                                          {"DEEPINFER_NEURON_PROFILE_RANKS", "8,0-3,2"},
                                          {"DEEPINFER_ENFORCE_EAGER", "0"},
                                          {"PATH", "/bin"},
                                          {"deepinfer_lower", "ignored"}});
  CHECK(environment.device() == DeviceKind::kNeuron);
  CHECK(environment.fp8_max() == 224);
  CHECK(environment.num_kv_blocks() == 4096);
  CHECK(environment.graph_mode() == GraphMode::kRegions);
  CHECK(environment.compile_backend() == "neuron_compile");
  CHECK(environment.local_rank() == 63);
  CHECK(!environment.hier_allreduce());
  CHECK(environment.moe_capacity() == 128);
  CHECK(environment.moe_flag_force() == false);
  CHECK(environment.region_timing());
  CHECK(environment.host_timing());
  CHECK(environment.profile_ranks() == std::vector<int64_t>{0, 1, 2, 3, 8});
  CHECK(!environment.enforce_eager());
  for (const Setting& setting : environment.settings()) CHECK(setting.from_environment);
}

TEST_CASE("bad values say what was expected and what was found") {
  const std::map<std::string, std::vector<std::string>> bad = {
      {"DEEPINFER_NEURON_DEVICE", {"", "cuda", "CPU", "cpu ", "neuron:0"}},
      {"DEEPINFER_NEURON_FP8_MAX", {"", "447", "448.0", "0", "-448", "0448"}},
      {"DEEPINFER_NEURON_NUM_KV_BLOCKS",
       {"", "0", "-1", "+1", "1.5", "1k", " 1", "2147483648", "99999999999999999999999"}},
      {"DEEPINFER_NEURON_GRAPH_MODE", {"", "region", "none"}},
      {"DEEPINFER_NEURON_COMPILE_BACKEND", {""}},
      {"DEEPINFER_NEURON_LOCAL_RANK", {"", "-1", "256", "a"}},
      {"DEEPINFER_NEURON_HIER_ALLREDUCE", {"", "2", "true", "no", "00"}},
      {"DEEPINFER_NEURON_MOE_CAPACITY", {"", "0", "x"}},
      {"DEEPINFER_NEURON_MOE_FLAG_FORCE", {"", "-1"}},
      {"DEEPINFER_NEURON_REGION_TIMING", {"", "yes"}},
      {"DEEPINFER_NEURON_HOST_TIMING", {"", "on"}},
      {"DEEPINFER_NEURON_PROFILE_RANKS",
       {"", ",", "1,", ",1", "3-1", "1-", "-1", "1--2", "1-2-3", "0 1", "65536", "0-65536", "0x1"}},
      {"DEEPINFER_ENFORCE_EAGER", {"", "True"}},
  };
  CHECK(bad.size() == all_variables().size());
  for (const VariableInfo& info : all_variables()) {
    for (const std::string& value : bad.at(std::string(info.name))) {
      CAPTURE(info.name);
      CAPTURE(value);
      const ErrorParts parts = error_of({{std::string(info.name), value}});
      CHECK(contains(parts.what, info.name));
      CHECK(parts.expected == info.expected);
      CHECK(contains(parts.found, value.empty() ? "empty" : value));
    }
  }
  CHECK(contains(error_of({{"DEEPINFER_NEURON_DEVICE", "nuron"}}).remedy, "did you mean neuron?"));
}

TEST_CASE("an unknown DEEPINFER_ name is an error that names the nearest") {
  const std::map<std::string, std::string> nearest = {
      {"DEEPINFER_NEURON_DEVCE", "DEEPINFER_NEURON_DEVICE"},
      {"DEEPINFER_NEURON_KV_BLOCKS", "DEEPINFER_NEURON_NUM_KV_BLOCKS"},
      {"DEEPINFER_ENFORCE_EAGR", "DEEPINFER_ENFORCE_EAGER"},
      {"DEEPINFER_NEURON_ENFORCE_EAGER", "DEEPINFER_ENFORCE_EAGER"},
      {"DEEPINFER_NEURON_FP8MAX", "DEEPINFER_NEURON_FP8_MAX"},
  };
  for (const auto& [name, expected] : nearest) {
    const ErrorParts parts = error_of({{name, "1"}});
    CHECK(contains(parts.what, name));
    CHECK(contains(parts.remedy, "did you mean " + expected + "?"));
  }
  CHECK(!error_of({{"DEEPINFER_", "1"}}).what.empty());
  CHECK(error_of({{"DEEPINFERX", "1"}}).what.empty());
}

TEST_CASE("from_process reads this process's variables") {
  setenv("DEEPINFER_NEURON_FP8_MAX", "240", 1);
  CHECK(Environment::from_process().fp8_max() == 240);
  setenv("DEEPINFER_NEURON_FP8_MAX", "241", 1);
  CHECK_THROWS_AS(Environment::from_process(), ConfigError);
  unsetenv("DEEPINFER_NEURON_FP8_MAX");
  CHECK(!Environment::from_process().fp8_max());
}

}  // namespace
}  // namespace deepinfer
