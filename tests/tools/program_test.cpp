// The program as its users meet it: exit codes, streams, help, colour, unknown names.
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

// A refused call: exit code 2, nothing on standard output, "error: ..." on standard error.
std::string refused(const std::vector<std::string>& arguments, const ProgramOptions& options = {}) {
  const ProgramResult result = run_program(arguments, options);
  CHECK(result.exit_code == 2);
  CHECK(result.out == "");
  CHECK(result.err.starts_with("error: "));
  CHECK(result.err.ends_with("\n"));
  return result.err;
}

// A call that worked and had nothing to say.
std::string output_of(const std::vector<std::string>& arguments,
                      const ProgramOptions& options = {}) {
  const ProgramResult result = run_program(arguments, options);
  CHECK(result.exit_code == 0);
  CHECK(result.err == "");
  return result.out;
}

// Names in the "Subcommands:" list of the help text.
std::vector<std::string> subcommands() {
  const std::string help = output_of({"--help"});
  std::vector<std::string> names;
  size_t line = help.find("Subcommands:\n");
  REQUIRE(line != std::string::npos);
  line = help.find('\n', line) + 1;
  while (help.substr(line, 2) == "  " && help[line + 2] != ' ') {
    const size_t begin = line + 2;
    names.push_back(help.substr(begin, help.find(' ', begin) - begin));
    line = help.find('\n', line) + 1;
    while (help.substr(line, 3) == "   ") line = help.find('\n', line) + 1;  // wrapped text
  }
  return names;
}

TEST_CASE("help lists every subcommand and exit code; each subcommand has options and an example") {
  const std::string help = output_of({"--help"});
  for (const char* code :
       {"  0  ", "  1  ", "  2  ", "  3  ", "  4  ", "  5  ", "  6  ", "  70 "}) {
    CHECK(contains(help, code));
  }
  CHECK(output_of({"-h"}) == help);
  const std::vector<std::string> names = subcommands();
  CHECK(names.size() >= 2);
  for (const std::string& name : names) {
    CAPTURE(name);
    const std::string text = output_of({name, "--help"});
    CHECK(contains(text, "Examples:\n"));
    CHECK(contains(text.substr(text.find("Examples:")), "deepinfer-sim " + name));
    CHECK(contains(text, "--json"));
  }
}

TEST_CASE("version") {
  const std::string version = output_of({"--version"});
  CHECK(version.starts_with("deepinfer-sim " DEEPINFER_SIM_VERSION " (libtorch "));
}

TEST_CASE("wrong usage names the nearest subcommand or option") {
  CHECK(contains(refused({}), "a subcommand is required"));
  CHECK(contains(refused({"formts"}), "did you mean formats?"));
  CHECK(contains(refused({"--versoin"}), "did you mean --version?"));
  CHECK(contains(refused({"formats", "--jsn"}), "did you mean --json?"));
  CHECK(contains(refused({"formats", "e4m3fn", "--encod=1"}), "unknown option --encod\n"));
  CHECK(contains(refused({"env", "surplus"}), "unexpected argument surplus"));
  CHECK(contains(refused({"formats", "--encode"}), "--encode"));
  CHECK(contains(refused({"formats", "e4m3fn", "--limit", "448"}), "--encode"));
}

TEST_CASE("an unknown or bad environment variable stops every subcommand") {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"env"}, std::vector<std::string>{"formats", "e4m3"}}) {
    ProgramOptions options;
    options.environment["DEEPINFER_NEURON_DEVCE"] = "cpu";
    const std::string unknown = refused(arguments, options);
    CHECK(contains(unknown, "unknown environment variable DEEPINFER_NEURON_DEVCE"));
    CHECK(contains(unknown, "did you mean DEEPINFER_NEURON_DEVICE?"));
    options.environment = {{"DEEPINFER_NEURON_FP8_MAX", "300"}};
    const std::string bad = refused(arguments, options);
    CHECK(contains(bad, "expected: 448, 240 or 224"));
    CHECK(contains(bad, "found: '300'"));
  }
  // Help needs no environment.
  ProgramOptions options;
  options.environment["DEEPINFER_NEURON_DEVCE"] = "cpu";
  CHECK(contains(output_of({"env", "--help"}, options), "Examples:"));
}

TEST_CASE("a Neuron device without a plugin: what is missing, and how to supply it") {
  ProgramOptions options;
  options.environment["DEEPINFER_NEURON_DEVICE"] = "neuron";
  const std::string text = refused({"check"}, options);
  CHECK(contains(text, "PrivateUse1"));
  CHECK(contains(text, "LD_PRELOAD"));
  // What needs no device still works.
  CHECK(contains(output_of({"env"}, options), "value   neuron\n"));
}

TEST_CASE("env prints every variable with value and origin") {
  ProgramOptions options;
  options.environment = {{"DEEPINFER_NEURON_FP8_MAX", "224"}};
  const std::string text = output_of({"env"}, options);
  CHECK(contains(text, "DEEPINFER_NEURON_FP8_MAX\n  value   224\n  origin  environment\n"));
  CHECK(contains(text, "DEEPINFER_NEURON_DEVICE\n  value   cpu\n  origin  default\n"));

  options.environment["DEEPINFER_NEURON_PROFILE_RANKS"] = "0-2,8";
  const ProgramResult result = run_program({"env", "--json"}, options);
  CHECK(result.exit_code == 0);
  CHECK(result.err ==
        "note: DEEPINFER_NEURON_PROFILE_RANKS is set, but this build does not read it\n");
  const json document = json::parse(result.out);
  CHECK(document.at("schema") == 1);
  CHECK(document.at("variables").size() == 13);
  for (const json& variable : document.at("variables")) {
    for (const char* key : {"name", "type", "value", "origin", "expected", "doc"}) {
      CHECK(variable.contains(key));
    }
    if (variable.at("name") == "DEEPINFER_NEURON_PROFILE_RANKS") {
      CHECK(variable.at("value") == json({0, 1, 2, 8}));
      CHECK(variable.at("origin") == "environment");
      CHECK(variable.at("read_by_this_build") == false);
    }
    if (variable.at("name") == "DEEPINFER_ENFORCE_EAGER") CHECK(variable.at("value") == true);
    if (variable.at("name") == "DEEPINFER_NEURON_LOCAL_RANK") CHECK(variable.at("value").is_null());
  }
}

TEST_CASE("formats: list, table, codes, values") {
  const std::string list = output_of({"formats"});
  for (const char* name : {"e4m3fn", "e4m3", "e5m2", "e3m4", "e2m1", "e8m0", "bf16"}) {
    CHECK(contains(list, std::string("\n") + name + " "));
    const json table = json::parse(output_of({"formats", name, "--json"}));
    CHECK(table.at("format").at("name") == name);
    CHECK(table.at("codes").size() == 1u << table.at("format").at("bits").get<int>());
  }
  CHECK(json::parse(output_of({"formats", "--json"})).at("formats").size() == 7);

  CHECK(output_of({"formats", "e4m3", "0x7B"}) == "e4m3 0x7B  0 1111 011  nan  NaN\n");
  CHECK(output_of({"formats", "e4m3fn", "0x7B", "0b10000000", "1"}) ==
        "e4m3fn 0x7B  0 1111 011  352  normal\n"
        "e4m3fn 0x80  1 0000 000  -0  zero\n"
        "e4m3fn 0x01  0 0000 001  0.001953125  subnormal\n");
  const json code = json::parse(output_of({"formats", "e5m2", "0xFC", "--json"})).at("codes").at(0);
  CHECK(code.at("value").is_null());
  CHECK(code.at("text") == "-inf");
  CHECK(code.at("class") == "infinity");

  CHECK(output_of({"formats", "e4m3fn", "--encode", "-1.1"}) ==
        "-1.1 -> e4m3fn 0xB9  1 0111 001  -1.125  normal\n");
  CHECK(output_of({"formats", "e4m3", "--encode=248"}) ==
        "248 -> e4m3 0x77  0 1110 111  240  normal  (on overflow: saturate)\n"
        "248 -> e4m3 0x78  0 1111 000  inf  infinity  (on overflow: infinity)\n");
  CHECK(output_of({"formats", "e4m3fn", "--encode", "300", "--limit", "224"}) ==
        "300 -> e4m3fn 0x76  0 1110 110  224  normal\n");
  CHECK(output_of({"formats", "e2m1", "--encode", "nan"}) == "nan -> e2m1 has no code for it\n");
  const json encoded = json::parse(output_of({"formats", "e4m3fn", "--encode", "0x1p9", "--json"}));
  CHECK(encoded.at("value") == 512);
  CHECK(encoded.at("encodings").at(0).at("result").at("value") == 448);
  CHECK(encoded.at("encodings").at(1).at("result").at("class") == "NaN");
}

TEST_CASE("formats: bad input") {
  CHECK(contains(refused({"formats", "e4m4"}), "did you mean e4m3?"));
  for (const char* code : {"256", "0x100", "-1", "0x", "0b2", "7B", "1.0", ""}) {
    CAPTURE(code);
    const ProgramResult result = run_program({"formats", "e4m3", "--", code});
    CHECK(result.exit_code == 2);
    CHECK(contains(result.err, "not a code of e4m3"));
  }
  for (const char* value : {"1x", "", " 1", "one"}) {
    CHECK(contains(refused({"formats", "e4m3", "--encode", value}), "not a number"));
  }
  for (const char* limit : {"0", "-224", "225", "1e30", "nan", "512"}) {
    CHECK(contains(refused({"formats", "e4m3fn", "--encode", "1", "--limit", limit}), "limit"));
  }
  CHECK(contains(refused({"formats", "--encode", "1"}), "needs a format"));
  CHECK(contains(refused({"formats", "e4m3", "1", "--encode", "1"}), "not codes as well"));
}

TEST_CASE("colour only on a terminal, and never with NO_COLOR") {
  constexpr std::string_view kEscape = "\x1b[";
  ProgramOptions terminal;
  terminal.out = Stream::kTerminal;
  terminal.err = Stream::kTerminal;
  CHECK(contains(run_program({"formats"}, terminal).out, kEscape));
  CHECK(contains(run_program({"formts"}, terminal).err, kEscape));
  CHECK(!contains(run_program({"formats"}).out, kEscape));
  CHECK(!contains(run_program({"formts"}).err, kEscape));

  ProgramOptions empty = terminal;
  empty.environment["NO_COLOR"] = "";  // no-color.org: an empty value does not count
  CHECK(contains(run_program({"formats"}, empty).out, kEscape));
  for (const auto& [name, value] : {std::pair("NO_COLOR", "1"), std::pair("TERM", "dumb")}) {
    ProgramOptions plain = terminal;
    plain.environment[name] = value;
    const ProgramResult list = run_program({"formats"}, plain);
    CHECK(list.out == run_program({"formats"}).out);
    CHECK(!contains(run_program({"formts"}, plain).err, kEscape));
  }
  // A terminal on one stream does not colour the other.
  ProgramOptions only_err;
  only_err.err = Stream::kTerminal;
  CHECK(!contains(run_program({"formats"}, only_err).out, kEscape));
}

TEST_CASE("standard output that cannot be written") {
  ProgramOptions options;
  options.out = Stream::kBrokenPipe;
  ProgramResult result = run_program({"formats", "bf16"}, options);
  CHECK(result.exit_code == 0);
  CHECK(result.signal == 0);
  CHECK(result.err == "");
  options.out = Stream::kFull;
  result = run_program({"formats", "bf16"}, options);
  CHECK(result.exit_code == 2);
  CHECK(contains(result.err, "cannot write standard output"));
  options.out = Stream::kClosed;
  result = run_program({"formats"}, options);
  CHECK(result.exit_code == 2);
  CHECK(contains(result.err, "cannot write standard output"));
  options.err = Stream::kClosed;
  CHECK(run_program({"formats"}, options).exit_code == 2);
}

}  // namespace
}  // namespace deepinfer
