// The registry's table, and the parsers of its value types.
#include "platform/environment.h"

#include <charconv>
#include <set>
#include <utility>

#include <unistd.h>

#include "platform/errors.h"
#include "platform/nearest_name.h"

extern char** environ;  // POSIX; <unistd.h> declares it only with GNU extensions

namespace deepinfer {

namespace {

constexpr std::string_view kPrefix = "DEEPINFER_";
constexpr int64_t kMaxCount = 2147483647;  // counts travel as int32 on the device
constexpr int64_t kMaxLocalRank = 255;     // 256 logical cores in an UltraServer (trn2.md 1.1)
constexpr int64_t kMaxProfileRank = 65535;

// A set variable, for messages.
struct Given {
  const VariableInfo& info;
  const std::string& value;

  [[noreturn]] void fail(const std::string& remedy = {}) const {
    throw ConfigError(
        {.what = "environment variable " + std::string(info.name) + " has a bad value",
         .where = "environment",
         .expected = std::string(info.expected),
         .found = value.empty() ? "nothing (set, but empty)" : "'" + value + "'",
         .remedy = value.empty() ? "unset " + std::string(info.name) +
                                       ", or give it one of the expected values"
                                 : remedy});
  }
};

// The whole of `text` as a decimal number without sign, or nothing.
std::optional<int64_t> parse_number(std::string_view text) {
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, number);
  if (text.empty() || text[0] == '-' || error != std::errc() || last != end) return std::nullopt;
  return number;
}

bool parse_bool(const Given& given) {
  if (given.value == "0") return false;
  if (given.value == "1") return true;
  given.fail();
}

int64_t parse_integer(const Given& given, int64_t smallest, int64_t largest) {
  const std::optional<int64_t> number = parse_number(given.value);
  if (!number || *number < smallest || *number > largest) given.fail();
  return *number;
}

// Position of the value in `names`.
size_t parse_enum(const Given& given, const std::vector<std::string_view>& names) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == given.value) return i;
  }
  given.fail(did_you_mean(given.value, names));
}

// "0-3,8" -> {0, 1, 2, 3, 8}
std::vector<int64_t> parse_rank_list(const Given& given) {
  std::set<int64_t> ranks;
  std::string_view rest = given.value;
  while (true) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const size_t dash = item.find('-');
    const std::optional<int64_t> first = parse_number(item.substr(0, dash));
    const std::optional<int64_t> last =
        dash == std::string_view::npos ? first : parse_number(item.substr(dash + 1));
    if (!first || !last || *last > kMaxProfileRank) given.fail();
    if (*first > *last) given.fail("write a range from low to high, such as 0-3");
    for (int64_t rank = *first; rank <= *last; ++rank) ranks.insert(rank);
    if (comma == std::string_view::npos) break;
    rest = rest.substr(comma + 1);
  }
  return {ranks.begin(), ranks.end()};
}

}  // namespace

const std::vector<VariableInfo>& all_variables() {
  static const std::vector<VariableInfo> variables = {
      {"DEEPINFER_NEURON_DEVICE", VariableType::kEnum, "cpu or neuron", "cpu", "",
       "Where model code runs: on the host, or on the Neuron device that a plugin registers.",
       true},
      {"DEEPINFER_NEURON_FP8_MAX", VariableType::kEnum, "448, 240 or 224", "",
       "what the run's numerics say",
       "Largest magnitude of the fp8 quantisers: 448 is e4m3fn's, 240 what trn2 can read, 224 "
       "leaves room to halve a byte and double its scale.",
       true},
      {"DEEPINFER_NEURON_NUM_KV_BLOCKS", VariableType::kInteger, "an integer from 1 to 2147483647",
       "", "sized by the run", "Blocks in the fixed KV pool of a rank.", false},
      {"DEEPINFER_NEURON_GRAPH_MODE", VariableType::kEnum, "regions", "", "no graph regions",
       "How decode is compiled: regions makes one graph of each layer half.", false},
      {"DEEPINFER_NEURON_COMPILE_BACKEND", VariableType::kString, "the name of a compiler backend",
       "", "the platform's own", "Backend that compiles graph regions.", false},
      {"DEEPINFER_NEURON_LOCAL_RANK", VariableType::kInteger, "an integer from 0 to 255", "",
       "not a spawned follower", "Logical core that a spawned context-parallel follower takes.",
       false},
      {"DEEPINFER_NEURON_HIER_ALLREDUCE", VariableType::kBool, "0 or 1", "1", "",
       "All-reduce in two levels: the cores of a device, then one core of each device.", false},
      {"DEEPINFER_NEURON_MOE_CAPACITY", VariableType::kInteger, "an integer from 1 to 2147483647",
       "", "no capacity grouping",
       "Rows that an expert has room for in capacity-grouped prefill; overflow reruns densely.",
       false},
      {"DEEPINFER_NEURON_MOE_FLAG_FORCE", VariableType::kBool, "0 or 1", "", "the real flags",
       "Forces the flag of every gated expert (0 skips all, 1 runs all); for timing only, the "
       "results are wrong.",
       false},
      {"DEEPINFER_NEURON_REGION_TIMING", VariableType::kBool, "0 or 1", "0", "",
       "Times each graph region at its boundaries.", false},
      {"DEEPINFER_NEURON_HOST_TIMING", VariableType::kBool, "0 or 1", "0", "",
       "Times the host side of each region call.", false},
      {"DEEPINFER_NEURON_PROFILE_RANKS", VariableType::kRankList,
       "ranks from 0 to 65535 and ranges of them, such as 0-3,8", "", "no rank",
       "Ranks to take a profile of.", false},
      {"DEEPINFER_ENFORCE_EAGER", VariableType::kBool, "0 or 1", "1", "",
       "Runs eagerly; 0 asks for captured graphs.", false},
  };
  return variables;
}

std::string_view variable_type_name(VariableType type) {
  switch (type) {
    case VariableType::kBool:
      return "bool";
    case VariableType::kInteger:
      return "integer";
    case VariableType::kEnum:
      return "enum";
    case VariableType::kRankList:
      return "rank list";
    case VariableType::kString:
      return "string";
  }
  DEEPINFER_ASSERT(false, "variable type " << static_cast<int>(type));
}

Environment::Environment(const std::map<std::string, std::string>& variables) {
  std::vector<std::string_view> names;
  for (const VariableInfo& info : all_variables()) names.push_back(info.name);
  for (const auto& [name, value] : variables) {
    if (!name.starts_with(kPrefix)) continue;
    bool known = false;
    for (const std::string_view candidate : names) known = known || candidate == name;
    if (!known) {
      throw ConfigError({.what = "unknown environment variable " + name,
                         .where = "environment",
                         .expected = {},
                         .found = name + "=" + value,
                         .remedy = did_you_mean(name, names) +
                                   " `deepinfer-sim env` lists all variables; unset this one"});
    }
  }

  for (const VariableInfo& info : all_variables()) {
    Setting setting{&info, std::string(info.default_value), false};
    const auto it = variables.find(std::string(info.name));
    if (it != variables.end()) {
      setting.value = it->second;
      setting.from_environment = true;
      if (setting.value.empty()) Given{info, setting.value}.fail();
    }
    settings_.push_back(std::move(setting));
  }

  // Calls `use` with the variable unless it is unset and without default.
  const auto resolve = [this](std::string_view name, auto use) {
    for (const Setting& setting : settings_) {
      if (setting.info->name != name) continue;
      if (!setting.value.empty()) use(Given{*setting.info, setting.value});
      return;
    }
    DEEPINFER_ASSERT(false, name << " is not in the registry");
  };
  resolve("DEEPINFER_NEURON_DEVICE", [this](const Given& given) {
    device_ = parse_enum(given, {"cpu", "neuron"}) == 0 ? DeviceKind::kCpu : DeviceKind::kNeuron;
  });
  resolve("DEEPINFER_NEURON_FP8_MAX", [this](const Given& given) {
    parse_enum(given, {"448", "240", "224"});
    fp8_max_ = parse_number(given.value);
  });
  resolve("DEEPINFER_NEURON_NUM_KV_BLOCKS",
          [this](const Given& given) { num_kv_blocks_ = parse_integer(given, 1, kMaxCount); });
  resolve("DEEPINFER_NEURON_GRAPH_MODE", [this](const Given& given) {
    parse_enum(given, {"regions"});
    graph_mode_ = GraphMode::kRegions;
  });
  resolve("DEEPINFER_NEURON_COMPILE_BACKEND",
          [this](const Given& given) { compile_backend_ = given.value; });
  resolve("DEEPINFER_NEURON_LOCAL_RANK",
          [this](const Given& given) { local_rank_ = parse_integer(given, 0, kMaxLocalRank); });
  resolve("DEEPINFER_NEURON_HIER_ALLREDUCE",
          [this](const Given& given) { hier_allreduce_ = parse_bool(given); });
  resolve("DEEPINFER_NEURON_MOE_CAPACITY",
          [this](const Given& given) { moe_capacity_ = parse_integer(given, 1, kMaxCount); });
  resolve("DEEPINFER_NEURON_MOE_FLAG_FORCE",
          [this](const Given& given) { moe_flag_force_ = parse_bool(given); });
  resolve("DEEPINFER_NEURON_REGION_TIMING",
          [this](const Given& given) { region_timing_ = parse_bool(given); });
  resolve("DEEPINFER_NEURON_HOST_TIMING",
          [this](const Given& given) { host_timing_ = parse_bool(given); });
  resolve("DEEPINFER_NEURON_PROFILE_RANKS",
          [this](const Given& given) { profile_ranks_ = parse_rank_list(given); });
  resolve("DEEPINFER_ENFORCE_EAGER",
          [this](const Given& given) { enforce_eager_ = parse_bool(given); });
}

Environment Environment::from_process() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    // A name without '=' can only come from a broken execve caller; the first of duplicates wins,
    // as with getenv.
    if (equals == std::string_view::npos) continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return Environment(variables);
}

}  // namespace deepinfer
