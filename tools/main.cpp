// The `deepinfer-sim` program: finds the subcommand, runs it, and turns every failure into an exit
// code.
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <poll.h>
#include <torch/version.h>
#include <unistd.h>

#include "platform/environment.h"
#include "platform/errors.h"
#include "platform/nearest_name.h"
#include "tools/commands.h"
#include "tools/terminal.h"

namespace deepinfer {
namespace {

constexpr const Command* kCommands[] = {
    &kBenchCommand, &kCheckCommand, &kEnvCommand,   &kFormatsCommand,
    &kLintCommand,  &kOpsCommand,   &kSweepCommand, &kTopologyCommand,
};

constexpr int kInternalFailure = 70;  // sysexits.h EX_SOFTWARE

constexpr std::string_view kFooter =
    R"(Results go to standard output, everything else to standard error. Colour is used on a terminal
only, and never when NO_COLOR is set. `deepinfer-sim SUBCOMMAND --help` shows options and examples.

Exit codes:
  0   all that was asked for was done, all comparisons matched
  1   a comparison failed: with golden data, or of an op with its reference
  2   wrong usage, environment, configuration or input file
  3   collective desync or hang
  4   a device memory limit was exceeded
  5   a rule for device graphs was broken
  6   vacuous: a check claimed a path that never ran
  70  a failure inside the program: a bug, or no host memory left)";

int report(std::string_view text, int exit_code) {
  std::cout.flush();
  std::cerr << Paint(STDERR_FILENO).red("error:") << " " << text << "\n";
  return exit_code;
}

int report(const Error& error) { return report(error.what(), static_cast<int>(error.exit_code())); }

// A descriptor 0..2 that the caller closed would be given to the next file that is opened, and
// output would go into it. /dev/null, opened the wrong way round, keeps the number and fails like a
// closed one.
void reserve_standard_descriptors() {
  for (int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) == -1 && errno == EBADF) {
      // The lowest free number is this one: lower ones are open by now.
      (void)open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    }
  }
}

// Flushes standard output. A reader that went away (`| head`) is no failure; a full disk is.
int finish_output(int exit_code) {
  errno = 0;
  std::cout.flush();
  if (std::cout) return exit_code;
  const int reason = errno;
  pollfd output{STDOUT_FILENO, POLLOUT, 0};
  if (poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0) return exit_code;
  const int failed = static_cast<int>(ExitCode::kBadInput);
  return report(std::string("cannot write standard output") +
                    (reason != 0 ? std::string(": ") + std::strerror(reason) : std::string()),
                exit_code != 0 ? exit_code : failed);
}

// The first subcommand on the command line, or null.
CLI::App* chosen(CLI::App& app) {
  const std::vector<CLI::App*> found = app.get_subcommands();
  return found.empty() ? nullptr : found.front();
}

// Long names of an app's options, such as "--json".
std::vector<std::string> option_names(CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// What is wrong with a command line that CLI11 refused.
ConfigError usage_error(CLI::App& app, const std::string& message) {
  CLI::App* subcommand = chosen(app);
  const std::string program = app.get_name();
  const std::string help =
      "`" + program + (subcommand ? " " + subcommand->get_name() : "") + " --help` shows the usage";
  const std::vector<std::string> strangers =
      subcommand ? subcommand->remaining() : app.remaining(true);
  if (!strangers.empty()) {
    const std::string& stranger = strangers.front();
    const std::string where = subcommand ? program + " " + subcommand->get_name() : program;
    if (stranger.starts_with("-")) {
      const std::string name = stranger.substr(0, stranger.find('='));
      return ConfigError(
          {.what = "unknown option " + name,
           .where = where,
           .expected = {},
           .found = {},
           .remedy =
               did_you_mean(name, option_names(subcommand ? *subcommand : app)) + " " + help});
    }
    if (subcommand == nullptr) {
      std::vector<std::string_view> names;
      for (const Command* command : kCommands) names.push_back(command->name);
      return ConfigError({.what = "unknown subcommand " + stranger,
                          .where = {},
                          .expected = {},
                          .found = {},
                          .remedy = did_you_mean(stranger, names) + " " + help});
    }
    return ConfigError({.what = "unexpected argument " + stranger,
                        .where = where,
                        .expected = {},
                        .found = {},
                        .remedy = help});
  }
  return ConfigError({.what = message, .where = {}, .expected = {}, .found = {}, .remedy = help});
}

int run(int argc, char** argv) {
  CLI::App app("Host simulation and correctness framework for DeepSeek-V4.1 on AWS Trainium2",
               "deepinfer-sim");
  app.footer(std::string(kFooter));
  app.set_version_flag("--version",
                       "deepinfer-sim " DEEPINFER_SIM_VERSION " (libtorch " TORCH_VERSION ")");
  app.require_subcommand(0, 1);
  std::vector<CommandRun> runs;
  std::vector<CLI::App*> subcommands;
  for (const Command* command : kCommands) {
    CLI::App* subcommand =
        app.add_subcommand(std::string(command->name), std::string(command->summary));
    subcommand->footer("Examples:\n" + std::string(command->example));
    runs.push_back(command->setup(*subcommand));
    subcommands.push_back(subcommand);
  }

  try {
    app.parse(argc, argv);
    if (chosen(app) == nullptr) throw CLI::RequiredError("a subcommand");
  } catch (const CLI::Success& help_or_version) {
    return app.exit(help_or_version, std::cout, std::cerr);
  } catch (const CLI::ParseError& error) {
    return report(usage_error(app, error.what()));
  }

  const Environment environment = Environment::from_process();
  const CommandContext context{environment};
  for (size_t i = 0; i < subcommands.size(); ++i) {
    if (subcommands[i]->parsed()) return static_cast<int>(runs[i](context));
  }
  DEEPINFER_ASSERT(false, "no subcommand ran");
}

int run_and_report(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    return report(error);
  } catch (const std::bad_alloc&) {
    return report("no host memory left", kInternalFailure);
  } catch (const std::system_error& error) {  // files and directories, with the system's own words
    return report(error.what(), static_cast<int>(ExitCode::kBadInput));
  } catch (const std::exception& error) {
    return report(std::string("internal failure, please report it: ") + error.what(),
                  kInternalFailure);
  }
}

}  // namespace
}  // namespace deepinfer

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a write to a closed pipe fails instead of ending the process
  deepinfer::reserve_standard_descriptors();
  return deepinfer::finish_output(deepinfer::run_and_report(argc, argv));
}
