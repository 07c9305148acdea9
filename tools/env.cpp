// `deepinfer-sim env`: every environment variable with type, value, origin and meaning.
#include <iostream>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "tools/commands.h"
#include "tools/terminal.h"

namespace deepinfer {
namespace {

using nlohmann::ordered_json;

// The value in the JSON type that fits the variable's; null when unset.
ordered_json json_value(const Setting& setting, const Environment& environment) {
  if (setting.value.empty()) return nullptr;
  switch (setting.info->type) {
    case VariableType::kBool:
      return setting.value == "1";
    case VariableType::kInteger:
      return std::stoll(setting.value);
    case VariableType::kRankList:  // the registry has one
      return environment.profile_ranks();
    case VariableType::kEnum:
    case VariableType::kString:
      return setting.value;
  }
  DEEPINFER_ASSERT(false, setting.info->name);
}

void print_json(const Environment& environment) {
  ordered_json variables = ordered_json::array();
  for (const Setting& setting : environment.settings()) {
    const VariableInfo& info = *setting.info;
    variables.push_back({{"name", info.name},
                         {"type", variable_type_name(info.type)},
                         {"value", json_value(setting, environment)},
                         {"origin", setting.from_environment ? "environment" : "default"},
                         {"expected", info.expected},
                         {"doc", info.doc},
                         {"read_by_this_build", info.read_by_this_build}});
  }
  std::cout << ordered_json{{"schema", 1}, {"variables", variables}}.dump(2) << "\n";
}

void print_text(const Environment& environment) {
  const Paint paint(STDOUT_FILENO);
  for (const Setting& setting : environment.settings()) {
    const VariableInfo& info = *setting.info;
    std::string value = setting.value.empty() ? "unset" : setting.value;
    if (setting.value.empty()) value += " (" + std::string(info.default_meaning) + ")";
    std::cout << paint.bold(info.name) << "\n"
              << "  value   " << (setting.from_environment ? paint.green(value) : value) << "\n"
              << "  origin  " << (setting.from_environment ? "environment" : "default") << "\n"
              << "  type    " << variable_type_name(info.type) << ": " << info.expected << "\n"
              << "  read    " << (info.read_by_this_build ? "yes" : "not by this build") << "\n"
              << "  " << info.doc << "\n\n";
  }
}

CommandRun setup(CLI::App& app) {
  const auto json = std::make_shared<bool>(false);
  app.add_flag("--json", *json, "Print JSON");
  return [json](const CommandContext& context) {
    const Environment& environment = context.environment;
    for (const Setting& setting : environment.settings()) {
      if (setting.from_environment && !setting.info->read_by_this_build) {
        std::cerr << Paint(STDERR_FILENO).yellow("note:") << " " << setting.info->name
                  << " is set, but this build does not read it\n";
      }
    }
    *json ? print_json(environment) : print_text(environment);
    return ExitCode::kMatch;
  };
}

}  // namespace

const Command kEnvCommand = {
    "env", "Print every environment variable with type, value, origin and meaning",
    "  deepinfer-sim env                                  all variables as they are now\n"
    "  DEEPINFER_NEURON_FP8_MAX=224 deepinfer-sim env     as a run with that setting sees them\n"
    "  deepinfer-sim env --json                           the same for a program",
    setup};

}  // namespace deepinfer
