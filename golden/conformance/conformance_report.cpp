#include "golden/conformance/conformance_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "golden/conformance/case_values.h"

namespace deepinfer::conformance {

namespace {

using Json = nlohmann::ordered_json;

std::string scientific(double value) {
  if (value == 0) return "0";
  char text[32];
  std::snprintf(text, sizeof text, "%.2e", value);
  return text;
}

std::string decimal(double value) {
  if (value == 0) return "0";
  char text[32];
  std::snprintf(text, sizeof text, value < 0.005 ? "%.1e" : value < 100 ? "%.2f" : "%.3g", value);
  return text;
}

std::string ratio_text(int64_t part, int64_t whole) {
  return std::to_string(part) + '/' + std::to_string(whole);
}

std::string count_text(int64_t count, const std::string& what) {
  return std::to_string(count) + ' ' + what + (count == 1 ? "" : "s");
}

void write_ops(const ConformanceReport& report, const TextStyle& style, std::ostream& out) {
  Table table({"op", "cases", "bit-equal targets", "bit-equal reference", "worst ulp", "worst nmse",
               "bound used", "digest", "result"});
  for (const OpResult& op : report.ops) {
    table.add(
        {op.op, std::to_string(op.cases), ratio_text(op.equal_between_targets, op.cases),
         ratio_text(op.equal_to_reference, op.cases - op.throwing_cases), decimal(op.worst_ulp),
         scientific(op.worst_nmse), decimal(op.worst_bound_share), digest_text(op.digest),
         op.failures == 0 ? "ok" : count_text(op.failures, "failure")},
        op.failures == 0 ? style.good : style.bad);
  }
  table.write(style, out);
}

void write_case(const CaseResult& one, const TextStyle& style, std::ostream& out) {
  out << '\n'
      << style.title(one.op + " case " + std::to_string(one.number) + ": " + one.name) << '\n';
  out << "inputs: ";
  for (size_t i = 0; i < one.inputs.size(); ++i) {
    const InputInfo& input = one.inputs[i];
    out << (i == 0 ? "" : ", ") << input.dtype
        << (input.dtype == "none" ? "" : " " + shape_text(input.shape));
  }
  out << '\n';
  Table table({"implementation", "digest", "output", "dtype", "shape", "not the reference's",
               "worst ulp", "nmse", "bound used", "worst element"});
  for (const ImplementationResult& made : one.implementations) {
    if (made.outputs.empty()) {
      table.add({made.name, digest_text(made.digest),
                 made.thrown.empty() ? "-" : "threw: " + made.thrown});
    }
    for (const OutputResult& output : made.outputs) {
      table.add({made.name, digest_text(made.digest), output.name, output.dtype,
                 shape_text(output.shape), ratio_text(output.differing, output.elements),
                 decimal(output.worst_ulp), scientific(output.nmse),
                 output.exact ? "exact" : decimal(output.bound_share),
                 output.worst_element < 0 ? "-" : std::to_string(output.worst_element)});
    }
  }
  table.write(style, out);
}

void write_failure(const Failure& failure, const TextStyle& style, std::ostream& out) {
  out << style.bad("FAILED") << ' ' << failure.op << " case " << failure.case_number << " ("
      << failure.case_name << "): " << failure.kind << ", " << failure.implementation;
  if (!failure.output.empty()) out << ", " << failure.output;
  if (!failure.element.empty()) out << ' ' << shape_text(failure.element);
  out << "\n  " << failure.detail << "\n  repeat with: " << failure.replay << '\n';
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json case_json(const CaseResult& one) {
  Json inputs = Json::array();
  for (const InputInfo& input : one.inputs) {
    inputs.push_back({{"dtype", input.dtype}, {"shape", input.shape}});
  }
  Json implementations = Json::array();
  for (const ImplementationResult& made : one.implementations) {
    Json outputs = Json::array();
    for (const OutputResult& output : made.outputs) {
      outputs.push_back({{"name", output.name},
                         {"dtype", output.dtype},
                         {"shape", output.shape},
                         {"exact", output.exact},
                         {"elements", output.elements},
                         {"unbounded_elements", output.unbounded},
                         {"differing_elements", output.differing},
                         {"worst_ulp", number(output.worst_ulp)},
                         {"nmse", number(output.nmse)},
                         {"worst_bound_share", number(output.bound_share)},
                         {"worst_element", output.worst_element}});
    }
    implementations.push_back({{"name", made.name},
                               {"digest", digest_text(made.digest)},
                               {"thrown", made.thrown},
                               {"outputs", outputs}});
  }
  return {{"op", one.op},
          {"case", one.number},
          {"name", one.name},
          {"must_throw", one.must_throw},
          {"bit_equal_between_targets", one.equal_between_targets},
          {"bit_equal_to_reference", one.equal_to_reference},
          {"digest", digest_text(one.digest)},
          {"failures", one.failures},
          {"inputs", inputs},
          {"implementations", implementations}};
}

}  // namespace

std::string summary_line(const ConformanceReport& report) {
  int64_t cases = 0, equal = 0;
  for (const OpResult& op : report.ops) {
    cases += op.cases;
    equal += op.equal_between_targets;
  }
  const auto targets = static_cast<int64_t>(report.implementations.size());
  return count_text(static_cast<int64_t>(report.ops.size()), "op") + ", " +
         count_text(cases, "case") + " on " + count_text(targets, "target") + ": " +
         std::to_string(equal) + " bit-equal, " +
         count_text(static_cast<int64_t>(report.failures.size()), "failure") + "; digest " +
         digest_text(report.digest);
}

void write_text(const ConformanceReport& report, bool detail, const TextStyle& style,
                std::ostream& out) {
  write_ops(report, style, out);
  if (detail) {
    for (const CaseResult& one : report.cases) write_case(one, style, out);
  }
  out << '\n';
  for (const Failure& failure : report.failures) write_failure(failure, style, out);
  std::string targets;
  for (const std::string& name : report.implementations) {
    targets += (targets.empty() ? "" : ", ") + name;
  }
  int64_t elements = 0, unbounded = 0;
  for (const OpResult& op : report.ops) {
    elements += op.elements;
    unbounded += op.unbounded;
  }
  out << style.quiet("seed " + std::to_string(report.seed) + ", " + targets +
                     ", held against reference and each other")
      << '\n';
  if (unbounded != 0) {
    out << style.quiet("of " + count_text(elements, "result") + ", " + std::to_string(unbounded) +
                       " may overflow fp32 inside: only held against each other")
        << '\n';
  }
  const std::string line = summary_line(report);
  out << (report.failures.empty() ? style.good(line) : style.bad(line)) << '\n';
}

std::string report_json(const ConformanceReport& report, bool detail) {
  Json ops = Json::array();
  int64_t cases = 0;
  for (const OpResult& op : report.ops) {
    cases += op.cases;
    ops.push_back({{"op", op.op},
                   {"cases", op.cases},
                   {"throwing_cases", op.throwing_cases},
                   {"bit_equal_between_targets", op.equal_between_targets},
                   {"bit_equal_to_reference", op.equal_to_reference},
                   {"elements", op.elements},
                   {"unbounded_elements", op.unbounded},
                   {"worst_ulp", number(op.worst_ulp)},
                   {"worst_nmse", number(op.worst_nmse)},
                   {"worst_bound_share", number(op.worst_bound_share)},
                   {"failures", op.failures},
                   {"digest", digest_text(op.digest)}});
  }
  Json failures = Json::array();
  for (const Failure& failure : report.failures) {
    failures.push_back({{"op", failure.op},
                        {"case", failure.case_number},
                        {"name", failure.case_name},
                        {"kind", failure.kind},
                        {"implementation", failure.implementation},
                        {"output", failure.output},
                        {"element", failure.element},
                        {"detail", failure.detail},
                        {"replay", failure.replay}});
  }
  Json list = nullptr;
  if (detail) {
    list = Json::array();
    for (const CaseResult& one : report.cases) list.push_back(case_json(one));
  }
  const Json document = {{"schema", 1},
                         {"seed", report.seed},
                         {"device", report.device},
                         {"implementations", report.implementations},
                         {"digest", digest_text(report.digest)},
                         {"seconds", report.seconds},
                         {"exit_code", static_cast<int>(report.exit_code())},
                         {"summary",
                          {{"ops", report.ops.size()},
                           {"cases", cases},
                           {"failures", report.failures.size()},
                           {"compared", report.compared()}}},
                         {"ops", ops},
                         {"failures", failures},
                         {"cases", list}};
  // An error message need not be UTF-8.
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace deepinfer::conformance
