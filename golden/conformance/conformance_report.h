// Writes a conformance run: a table for people, JSON for programs.
#pragma once

#include <ostream>
#include <string>

#include "golden/conformance/conformance.h"
#include "golden/text_table.h"

namespace deepinfer::conformance {

// One line an op, failures with the line that repeats each, one line at the end. With `detail` each
// case too: inputs, and outputs by implementation.
void write_text(const ConformanceReport& report, bool detail, const TextStyle& style,
                std::ostream& out);

// "33 ops, 1482 cases on 4 targets: 1482 bit-equal, 0 failures; digest 0123456789abcdef"
std::string summary_line(const ConformanceReport& report);

// Schema 1:
//   {schema, seed, device, implementations[], digest, seconds, exit_code,
//    summary: {ops, cases, failures, compared},
//    ops[]: {op, cases, throwing_cases, bit_equal_between_targets, bit_equal_to_reference,
//            elements, unbounded_elements, worst_ulp, worst_nmse, worst_bound_share, failures,
//            digest},
//    failures[]: {op, case, name, kind, implementation, output, element[], detail, replay},
//    cases: null | [{op, case, name, must_throw, bit_equal_between_targets, bit_equal_to_reference,
//            digest, failures, inputs[]: {dtype, shape[]},
//            implementations[]: {name, digest, thrown,
//              outputs[]: {name, dtype, shape[], exact, elements, unbounded_elements,
//                          differing_elements, worst_ulp, nmse, worst_bound_share,
//                          worst_element}}}]}
// Digests are 16 hexadecimal digits. `cases` is there with `detail`; `reference` is the first of
// its implementations. What the figures mean: conformance.h, OutputResult. null: not finite.
std::string report_json(const ConformanceReport& report, bool detail);

}  // namespace deepinfer::conformance
