// Runs the cases of the ops under several implementations, and judges each result by the other
// implementations' bits and by a derived bound around the truth.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "golden/conformance/op_case.h"
#include "platform/errors.h"

namespace deepinfer::conformance {

// How an op may be run: `run` calls the callable under this implementation.
struct Implementation {
  std::string name;  // "canonical/avx2"
  std::function<Tensors(const std::function<Tensors()>& op)> run;
};

struct ConformanceOptions {
  uint64_t seed = 1;
  at::Device device = at::kCPU;
  SumOrder order = SumOrder::kCanonical;
  std::vector<std::string> op_patterns;                 // shell patterns of op names; empty: all
  std::optional<int64_t> case_number;                   // of each chosen op; none: all
  std::function<void(const std::string& op)> progress;  // called before each op
};

// One thing that is wrong.
struct Failure {
  std::string op;
  int64_t case_number = 0;
  std::string case_name;
  std::string kind;              // "targets differ", "beyond the bound", "not exact", ...
  std::string implementation;    // whose result it is
  std::string output;            // name of the output, where one is at fault
  std::vector<int64_t> element;  // its index
  std::string detail;            // both bit patterns and values, the bound; or the message
  std::string replay;            // "deepinfer-sim ops --op linear --case 17 --seed 1"
};

// How one implementation did on one output of one case. Figures are over elements at which
// reference and result are finite.
struct OutputResult {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  bool exact = false;  // judged by equality
  int64_t elements = 0;
  int64_t unbounded = 0;  // elements at which nothing is promised against the truth
  int64_t differing = 0;  // elements whose bits are not the reference's
  // Largest |result - reference| in units of the dtype's last place at the larger of |reference|
  // and 2^-8 of the largest |reference| of its row (last axis), so that cancelled elements do not
  // drown all others. Rows below 2^-100 are left out: what is seen there is numbers flushed to 0,
  // which the bound knows, and not precision.
  double worst_ulp = 0;
  // Sum of squared differences over sum of squared references; 0 where all are below 2^-100.
  double nmse = 0;
  // Largest |result - truth| (for bf16, less half a last place) over the error bound: at most 1 in
  // a sound result.
  double bound_share = 0;
  int64_t worst_element = -1;  // flat index of the largest bound share, or the first difference
};

struct ImplementationResult {
  std::string name;
  uint64_t digest = 0;  // of all outputs, or of the fact that the op threw
  std::string thrown;   // what it threw where a case asks for that
  std::vector<OutputResult> outputs;
};

struct InputInfo {
  std::string dtype;  // "none" for an optional input left out
  std::vector<int64_t> shape;
};

struct CaseResult {
  std::string op;
  int64_t number = 0;
  std::string name;
  bool must_throw = false;
  bool equal_between_targets = false;
  bool equal_to_reference = false;
  uint64_t digest = 0;  // of the first implementation
  std::vector<InputInfo> inputs;
  std::vector<ImplementationResult> implementations;  // `reference` first
  int64_t failures = 0;
};

// Sums of an op's cases.
struct OpResult {
  std::string op;
  int64_t cases = 0;
  int64_t throwing_cases = 0;  // among them, those that must throw
  int64_t elements = 0;        // judged results, over all implementations but the reference
  int64_t unbounded = 0;
  int64_t equal_between_targets = 0;  // cases
  int64_t equal_to_reference = 0;     // cases
  double worst_ulp = 0;
  double worst_nmse = 0;
  double worst_bound_share = 0;
  int64_t failures = 0;
  uint64_t digest = 0;  // over its cases' digests
};

struct ConformanceReport {
  uint64_t seed = 0;
  std::string device;
  std::vector<std::string> implementations;  // without the reference
  std::vector<OpResult> ops;
  std::vector<CaseResult> cases;
  std::vector<Failure> failures;
  uint64_t digest = 0;  // over the ops' digests
  double seconds = 0;

  int64_t compared() const;  // results judged
  // kMatch, kMismatch; kVacuous if nothing was compared.
  ExitCode exit_code() const;
};

// The cases that the options choose. Throws ConfigError where a pattern or the case number chooses
// nothing, naming the nearest op.
std::vector<const OpCase*> chosen_cases(const ConformanceOptions& options);

// Runs them. Throws as chosen_cases.
ConformanceReport run_conformance(const std::vector<Implementation>& implementations,
                                  const ConformanceOptions& options);

// What a result is held against.
struct Judgement {
  Tensors inputs;     // on the CPU
  Tensors reference;  // what the reference returns
  Tensors truth;      // the same before its last rounding: fp64, or the reference's dtype
  Tensors error;      // OpCase::errors, with half a last place where the truth was rounded too;
                      // undefined for exact outputs
  // Smallest and largest allowed results in the output's dtype, widened to fp64; undefined for
  // exact outputs. NaN where an infinity or NaN is demanded, or nothing is.
  Tensors lowest, largest;
};
Judgement prepare_judgement(const OpCase& one, const ConformanceOptions& options);

// Bits, NaN written as one pattern unless `keep_nan`: FNV-1a of dtype, shape and bytes.
uint64_t tensor_digest(const Tensor& x, bool keep_nan, uint64_t hash);

// The command line that repeats a case.
std::string replay_line(const std::string& op, int64_t case_number, uint64_t seed);

// A digest as 16 hexadecimal digits.
std::string digest_text(uint64_t digest);

}  // namespace deepinfer::conformance
