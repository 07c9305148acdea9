// A sweep's table for people and its JSON for programs.
#include <iomanip>
#include <sstream>

#include <nlohmann/json.hpp>

#include "golden/sweep.h"

namespace deepinfer {
namespace {

std::string hash_text(uint64_t hash) {
  std::ostringstream text;
  text << std::hex << std::setw(16) << std::setfill('0') << hash;
  return text.str();
}

std::string fixed(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

std::vector<std::string> cells_of(const SweepRow& row, const std::string& result) {
  std::vector<std::string> cells = {
      std::to_string(row.sizes.ranks()), std::to_string(row.sizes.tensor),
      std::to_string(row.sizes.context), std::to_string(row.sizes.expert)};
  for (const SweepPrompt& prompt : row.prompts) {
    cells.push_back(std::to_string(prompt.matched) + "/" + std::to_string(kCountedTokens));
  }
  cells.push_back(hash_text(row.hash()));
  cells.push_back(fixed(row.seconds, 3));
  cells.push_back(row.peak_bytes == 0 ? "-"
                                      : fixed(static_cast<double>(row.peak_bytes) / (1 << 20), 0));
  cells.push_back(result);
  return cells;
}

nlohmann::ordered_json row_json(const SweepRow& row) {
  nlohmann::ordered_json json = {{"tp", row.sizes.tensor},
                                 {"cp", row.sizes.context},
                                 {"ep", row.sizes.expert},
                                 {"ranks", row.sizes.ranks()}};
  json["matched"] = nlohmann::ordered_json::array();
  for (const SweepPrompt& prompt : row.prompts) json["matched"].push_back(prompt.matched);
  json["hash"] = hash_text(row.hash());
  json["same"] = row.same;
  json["seconds"] = row.seconds;
  json["peak_bytes"] = row.peak_bytes;
  return json;
}

}  // namespace

void write_sweep(const SweepReport& report, const TextStyle& style, std::ostream& out) {
  for (const SweepSuite& suite : report.suites) {
    out << style.title(suite.suite.name) << "  (" << describe(suite.suite.numerics) << ")\n";
    std::vector<std::string> heading = {"ranks", "tp", "cp", "ep"};
    heading.insert(heading.end(), suite.prompts.begin(), suite.prompts.end());
    for (const char* name : {"logits hash", "seconds", "peak MiB", "bits"}) {
      heading.emplace_back(name);
    }
    Table table(heading);
    table.add(cells_of(suite.alone, "one rank, prompts one by one"), style.quiet);
    for (const SweepRow& row : suite.rows) {
      table.add(cells_of(row, row.same ? "same" : "DIFFERENT"), row.same ? style.good : style.bad);
    }
    table.write(style, out);
    out << '\n';
  }
  const int64_t lost = report.rows_below_nine();
  if (lost > 0) {
    out << style.bad(std::to_string(lost) + " runs have a prompt below 9/9") << '\n';
  }
  const std::string runs =
      std::to_string(report.runs()) + " runs in " + fixed(report.seconds, 1) + " s";
  out << (report.all_same() ? style.good("all hashes agree: " + runs +
                                         ", each prompt's logits those of one rank, bit by bit")
                            : style.bad("hashes DISAGREE: " + runs))
      << '\n';
}

std::string sweep_json(const SweepReport& report) {
  nlohmann::ordered_json json = {
      {"schema", 1}, {"seconds", report.seconds}, {"all_same", report.all_same()}};
  json["suites"] = nlohmann::ordered_json::array();
  for (const SweepSuite& suite : report.suites) {
    nlohmann::ordered_json one = {{"name", suite.suite.name},
                                  {"numerics", suite.suite.numerics_name},
                                  {"prompts", suite.prompts},
                                  {"alone", row_json(suite.alone)}};
    one["rows"] = nlohmann::ordered_json::array();
    for (const SweepRow& row : suite.rows) one["rows"].push_back(row_json(row));
    json["suites"].push_back(std::move(one));
  }
  return json.dump(2) + "\n";
}

}  // namespace deepinfer
