// `deepinfer-sim lint`: holds a checkpoint folder against the DeepSeek-V4.1 release, without
// loading it.
#include <filesystem>
#include <functional>
#include <iomanip>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "model/checkpoint.h"
#include "model/config.h"
#include "model/engram_meta.h"
#include "tools/commands.h"
#include "tools/terminal.h"

namespace deepinfer {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

struct Options {
  std::string directory;
  bool headers_only = false;
  bool json = false;
  int64_t max_findings = 50;
};

enum class Status { kPassed, kFailed, kNotChecked };

struct Check {
  std::string name;    // "config", "headers", "tensors", "values", "token_map"
  std::string detail;  // what was checked, or why not
  Status status = Status::kNotChecked;
};

struct Report {
  std::vector<Check> checks;
  std::vector<Finding> findings;
  int64_t total_findings = 0;
  int64_t tensors = 0;
  uint64_t payload_bytes = 0;
  int64_t shards = 0;
};

std::string_view status_name(Status status) {
  switch (status) {
    case Status::kPassed:
      return "passed";
    case Status::kFailed:
      return "failed";
    case Status::kNotChecked:
      return "not checked";
  }
  return "";
}

// 510286023000 -> "510,286,023,000"
std::string grouped(uint64_t value) {
  std::string digits = std::to_string(value);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<size_t>(at), ",");
  }
  return digits;
}

class Linter {
 public:
  explicit Linter(const Options& options) : options_(options), folder_(options.directory) {}

  Report run() {
    std::error_code ignored;
    if (!fs::is_directory(folder_, ignored)) {
      throw CheckpointError({.what = "checkpoint folder does not exist",
                             .where = options_.directory,
                             .expected = "a folder with config.json and safetensors",
                             .found = fs::exists(folder_, ignored) ? "a file" : "nothing",
                             .remedy = "check the path"});
    }
    std::optional<ModelConfig> config;
    check("config", "config.json: every key, value and rule of the layer schedule",
          [&] { config = load_model_config(folder_); });
    std::unique_ptr<const TensorStore> store;
    check("headers", "every file's header: format, dtypes, sizes, offsets; index against shards",
          [&] {
            store = std::make_unique<const TensorStore>(folder_);
            report_.tensors = static_cast<int64_t>(store->names().size());
            report_.payload_bytes = store->payload_bytes();
            report_.shards = store->shard_count();
          });
    if (config && store) {
      check_tensors(*store, *config);
    } else {
      const std::string why = config ? "the headers could not be read" : "config.json is not sound";
      skip("tensors", why);
      skip("values", why);
    }
    check_token_map(config);
    return std::move(report_);
  }

 private:
  void add(Finding finding) {
    ++report_.total_findings;
    if (static_cast<int64_t>(report_.findings.size()) < options_.max_findings) {
      report_.findings.push_back(std::move(finding));
    }
  }
  void skip(std::string name, std::string why) {
    report_.checks.push_back({std::move(name), std::move(why), Status::kNotChecked});
  }
  // Runs one reader; what it throws is a finding.
  void check(std::string name, std::string detail, const std::function<void()>& read) {
    Status status = Status::kPassed;
    try {
      read();
    } catch (const CheckpointError& error) {
      const ErrorParts& parts = error.parts();
      add({parts.what, parts.where, parts.expected, parts.found, parts.remedy});
      status = Status::kFailed;
    }
    report_.checks.push_back({std::move(name), std::move(detail), status});
  }

  void check_tensors(const TensorStore& store, const ModelConfig& config) {
    const auto failed = [](int64_t findings) {
      return findings > 0 ? Status::kFailed : Status::kPassed;
    };
    const auto room = [this] {
      return options_.max_findings - static_cast<int64_t>(report_.findings.size());
    };
    const ValidateResult headers =
        validate_checkpoint(store, config, {.headers_only = true, .max_findings = room()});
    report_.checks.push_back(
        {"tensors", "every expected tensor once and no other; dtype, shape, scale of each",
         failed(headers.total_findings)});
    if (options_.headers_only) {
      take(headers);
      skip("values", "--headers-only: NaN in scales and weights would not be noticed");
      return;
    }
    constexpr uint64_t kWorthANote = uint64_t{1} << 32;
    if (store.payload_bytes() > kWorthANote) {
      std::cerr << "reading " << grouped(store.payload_bytes())
                << " bytes of values; --headers-only leaves them out\n";
    }
    const ValidateResult all =
        validate_checkpoint(store, config, {.headers_only = false, .max_findings = room()});
    take(all);
    report_.checks.push_back({"values",
                              "no NaN in scales or fp8 weights, no infinity in plain tensors",
                              failed(all.total_findings - headers.total_findings)});
  }

  void take(const ValidateResult& result) {
    for (const Finding& finding : result.findings) add(finding);
    report_.total_findings += result.total_findings - static_cast<int64_t>(result.findings.size());
  }

  void check_token_map(const std::optional<ModelConfig>& config) {
    const std::string name = "token_map";
    if (!config) return skip(name, "config.json is not sound");
    if (config->engram_layer_ids.empty()) return skip(name, "the model has no Engram layer");
    std::error_code ignored;
    if (options_.headers_only && !fs::exists(folder_ / "engram_meta.json", ignored)) {
      return skip(name, "no engram_meta.json: token map not checked");
    }
    check(name, "engram_meta.json: token map, multipliers, primes", [&] {
      if (!fs::exists(folder_ / "engram_meta.json", ignored)) {
        throw CheckpointError({.what = "engram_meta.json is missing",
                               .where = options_.directory,
                               .expected = "the token map and multipliers of the Engram hash",
                               .found = "no such file",
                               .remedy = "make it from the checkpoint's tokenizer"});
      }
      load_engram_meta(folder_, *config);
    });
  }

  const Options& options_;
  const fs::path folder_;
  Report report_;
};

void print_json(const Options& options, const Report& report) {
  ordered_json checks = ordered_json::array();
  for (const Check& check : report.checks) {
    checks.push_back(
        {{"check", check.name}, {"status", status_name(check.status)}, {"detail", check.detail}});
  }
  ordered_json findings = ordered_json::array();
  for (const Finding& finding : report.findings) {
    findings.push_back({{"what", finding.what},
                        {"where", finding.where},
                        {"expected", finding.expected},
                        {"found", finding.found},
                        {"remedy", finding.remedy}});
  }
  const ordered_json document = {{"schema", 1},
                                 {"directory", options.directory},
                                 {"ok", report.total_findings == 0},
                                 {"headers_only", options.headers_only},
                                 {"tensors", report.tensors},
                                 {"payload_bytes", report.payload_bytes},
                                 {"shards", report.shards},
                                 {"checks", checks},
                                 {"total_findings", report.total_findings},
                                 {"findings", findings}};
  // A folder's name need not be UTF-8.
  std::cout << document.dump(2, ' ', false, ordered_json::error_handler_t::replace) << "\n";
}

void print_table(const Options& options, const Report& report) {
  const Paint paint(STDOUT_FILENO);
  std::cout << paint.bold(options.directory) << "\n"
            << grouped(static_cast<uint64_t>(report.tensors)) << " tensors, "
            << grouped(report.payload_bytes) << " bytes, " << report.shards
            << (report.shards == 1 ? " shard\n\n" : " shards\n\n");
  for (const Check& check : report.checks) {
    std::ostringstream status;
    status << std::left << std::setw(13) << status_name(check.status);
    const std::string text = status.str();
    std::cout << (check.status == Status::kPassed   ? paint.green(text)
                  : check.status == Status::kFailed ? paint.red(text)
                                                    : paint.yellow(text))
              << std::left << std::setw(11) << check.name << check.detail << "\n";
  }
  std::cout << "\n";
  int64_t number = 0;
  for (const Finding& finding : report.findings) {
    std::cout << ++number << ". "
              << format_error({.what = finding.what,
                               .where = finding.where,
                               .expected = finding.expected,
                               .found = finding.found,
                               .remedy = finding.remedy})
              << "\n";
  }
  const int64_t hidden = report.total_findings - number;
  if (hidden > 0) std::cout << hidden << " more (--max-findings)\n";
  if (report.total_findings == 0) {
    std::cout << paint.green("no findings") << "\n";
  } else {
    std::cout << paint.red(std::to_string(report.total_findings) +
                           (report.total_findings == 1 ? " finding" : " findings"))
              << "\n";
  }
}

CommandRun setup(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  app.add_option("DIR", options->directory,
                 "Folder with config.json, safetensors (one file, or shards with an index) and "
                 "engram_meta.json")
      ->required();
  app.add_flag("--headers-only", options->headers_only,
               "Read no payload: seconds for the full-size model, but NaN is not noticed");
  app.add_option("--max-findings", options->max_findings,
                 "Print at most this many findings; the others are counted")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}))
      ->capture_default_str();
  app.add_flag("--json", options->json, "Print JSON");
  return [options](const CommandContext&) {
    const Report report = Linter(*options).run();
    if (options->json) {
      print_json(*options, report);
    } else {
      print_table(*options, report);
    }
    return report.total_findings == 0 ? ExitCode::kMatch : ExitCode::kBadInput;
  };
}

}  // namespace

const Command kLintCommand = {
    "lint", "Check a checkpoint folder: config, headers, tensors, values, token map",
    "  deepinfer-sim lint golden/data/tiny-fp8            everything, values included\n"
    "  deepinfer-sim lint /models/V4.1-Flash --headers-only\n"
    "                                                     what headers show, in seconds\n"
    "  deepinfer-sim lint DIR --json --max-findings 1000  for a script; exit code 2 on any finding",
    setup};

}  // namespace deepinfer
