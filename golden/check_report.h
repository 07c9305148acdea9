// Writes a check's report: a table for people, JSON for programs, JUnit XML for CI.
#pragma once

#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>

#include "golden/check_run.h"
#include "golden/text_table.h"

namespace deepinfer {

struct TextOptions {
  bool layers = false;  // one line a layer
  TextStyle style = plain_style();
};

void write_text(const CheckReport& report, const TextOptions& options, std::ostream& out);

// "13 suites, 49 prompts: 44 at 9/9, 0 failed, 0 vacuous, 5 information only"
std::string summary_line(const CheckReport& report);

// Schema 1:
//   {schema, notes[], vacuous[], exit_code,
//    summary: {suites, prompts, at_nine, failed, vacuous, near_ties, information_only},
//    suites[]: {name, model, golden, numerics, fp8_max, gates[], claims[], information_only,
//               claims_checked, vacuous[], coverage: {PATH: count}, expert_hits: {LAYER: [hits]},
//      prompts[]: {name, result: "ok" | "near tie" | "failed" | "information", matched,
//                  counted, seconds, smallest_margin, largest_logit_difference, logit_bound,
//                  bounded_steps,
//                  largest_unbounded_logit_difference, failures[], explained[],
//                  first_difference: null | {forward, layer, name, row, expected, found},
//                  steps[]: {expected, found, margin, noise_floor, logit_difference, bound},
//                  layers: null | [{layer, rows, bit_equal_rows, stream_values,
//                    within_bf16_ulp, rows_within, median, row_median,
//                    largest, coefficient_largest, selection_rows, different_selections,
//                    different_engram_rows, missing_rows, failures[]}],
//                  unwatched_seconds, plain_seconds, reference_seconds}}}
// Layer -1 is the final hidden state; null stands for what was not measured or is not finite.
std::string report_json(const CheckReport& report);

// One testsuite a suite, one testcase a prompt, and one for the suite's claims.
std::string junit_xml(const CheckReport& report);

// Text for an XML attribute or element: markup escaped, what XML 1.0 cannot hold (control
// characters, bytes that are not UTF-8) replaced by U+FFFD.
std::string xml_escape(std::string_view text);

// Writes a file under a temporary name beside it and renames it: readers see all or nothing. Throws
// ConfigError.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

}  // namespace deepinfer
