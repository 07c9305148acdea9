#include "golden/conformance/conformance.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <sstream>

#include <fnmatch.h>

#include "golden/conformance/bounds.h"
#include "golden/conformance/case_values.h"
#include "platform/arithmetic.h"
#include "platform/nearest_name.h"

namespace deepinfer::conformance {

namespace {

constexpr double kRowShare = 0x1p-8;  // OutputResult::worst_ulp
constexpr double kMeasuredRow = 0x1p-100;

constexpr uint64_t kHashStart = fnv1a64("");

bool is_floating(const Tensor& x) { return at::isFloatingType(x.scalar_type()); }

std::string_view bytes_of(const Tensor& x) {
  return {static_cast<const char*>(x.data_ptr()), x.nbytes()};
}

uint64_t hash_value(uint64_t value, uint64_t hash) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  return fnv1a64({bytes, sizeof value}, hash);
}

// Each element's bytes equal: bool, in x's shape. NaN equals NaN unless `keep_nan`.
Tensor bits_equal(const Tensor& x, const Tensor& y, bool keep_nan) {
  if (!is_floating(x)) return x.eq(y);
  const at::ScalarType bits = x.scalar_type() == at::kBFloat16 ? at::kShort : at::kInt;
  const Tensor same = x.contiguous().view(bits).eq(y.contiguous().view(bits));
  return keep_nan ? same : same.logical_or(x.isnan().logical_and(y.isnan()));
}

std::vector<int64_t> unravel(int64_t flat, at::IntArrayRef shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t i = shape.size(); i-- > 0;) {
    index[i] = flat % shape[i];
    flat /= shape[i];
  }
  return index;
}

// "0x3F800000 (1)"
std::string element_text(const Tensor& x, int64_t flat) {
  const Tensor one = x.contiguous().view({-1}).slice(0, flat, flat + 1).contiguous();
  uint64_t bits = 0;
  std::memcpy(&bits, one.data_ptr(), one.element_size());
  char text[96];
  if (is_floating(x)) {
    std::snprintf(text, sizeof text, "0x%0*" PRIX64 " (%.9g)",
                  static_cast<int>(2 * one.element_size()), bits, one.item<double>());
  } else {
    std::snprintf(text, sizeof text, "0x%0*" PRIX64 " (%" PRId64 ")",
                  static_cast<int>(2 * one.element_size()), bits,
                  one.to(at::kLong).item<int64_t>());
  }
  return text;
}

int64_t first_false(const Tensor& ok) {
  const Tensor places = ok.reshape({-1}).logical_not().nonzero();
  return places.size(0) == 0 ? -1 : places[0].item<int64_t>();
}

std::string shape_and_dtype(const Tensor& x) {
  return dtype_name(x.scalar_type()) + " " + shape_text(x.sizes());
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// What an implementation did: outputs on the CPU, or a message.
struct Outcome {
  Tensors outputs;
  std::optional<std::string> thrown;
};

template <class Run>
Outcome outcome_of(const Run& run) {
  Outcome outcome;
  try {
    for (const Tensor& output : run()) outcome.outputs.push_back(output.to(at::kCPU).contiguous());
  } catch (const c10::Error& error) {
    outcome.thrown = first_line(error.what_without_backtrace());
  } catch (const std::exception& error) {
    outcome.thrown = first_line(error.what());
  }
  return outcome;
}

Tensors on_device(const OpCase& one, const Tensors& inputs, at::Device device) {
  Tensors moved = inputs;
  for (size_t i = 0; i < moved.size(); ++i) {
    const bool stays =
        std::find(one.host_inputs.begin(), one.host_inputs.end(), i) != one.host_inputs.end();
    if (moved[i].defined() && !stays) moved[i] = moved[i].to(device);
  }
  return moved;
}

Tensors run_reference(const OpCase& one, const Tensors& inputs, bool wide) {
  const ArithmeticScope scope(Arithmetic::kReference);
  return one.run(inputs, wide);
}

class CaseRun {
 public:
  CaseRun(const OpCase& one, const std::vector<Implementation>& implementations,
          const ConformanceOptions& options, std::vector<Failure>& failures)
      : one_(one), implementations_(implementations), options_(options), failures_(failures) {
    result_.op = one.op;
    result_.number = one.number;
    result_.name = one.name;
    result_.must_throw = one.throws.has_value();
  }

  CaseResult run() {
    const size_t before = failures_.size();
    if (one_.throws) {
      run_throwing();
    } else {
      run_judged();
    }
    result_.digest = result_.implementations.at(1).digest;
    result_.failures = static_cast<int64_t>(failures_.size() - before);
    return std::move(result_);
  }

 private:
  void fail(const std::string& kind, const std::string& implementation, const std::string& detail,
            const std::string& output = {}, std::vector<int64_t> element = {}) {
    failures_.push_back({one_.op, one_.number, one_.name, kind, implementation, output,
                         std::move(element), detail,
                         replay_line(one_.op, one_.number, options_.seed)});
  }

  void note_inputs(const Tensors& inputs) {
    for (const Tensor& input : inputs) {
      if (input.defined()) {
        result_.inputs.push_back({dtype_name(input.scalar_type()), input.sizes().vec()});
      } else {
        result_.inputs.push_back({"none", {}});
      }
    }
  }

  Outcome run_implementation(const Implementation& implementation, const Tensors& inputs) {
    return outcome_of([&] {
      // In-place ops write their inputs: each run has its own (OpCase::run clones what it writes).
      const Tensors moved = on_device(one_, inputs, options_.device);
      return implementation.run([&] { return one_.run(moved, /*wide=*/false); });
    });
  }

  void run_throwing() {
    RandomStream random(options_.seed, one_.op, static_cast<uint32_t>(one_.number));
    const Tensors inputs = one_.inputs(random);
    note_inputs(inputs);
    std::vector<std::pair<std::string, Outcome>> outcomes;
    outcomes.emplace_back("reference",
                          outcome_of([&] { return run_reference(one_, inputs, false); }));
    for (const Implementation& implementation : implementations_) {
      outcomes.emplace_back(implementation.name, run_implementation(implementation, inputs));
    }
    for (const auto& [name, outcome] : outcomes) {
      const bool is_reference = &outcome == &outcomes.front().second;
      ImplementationResult made;
      made.name = name;
      made.thrown = outcome.thrown.value_or("");
      made.digest = fnv1a64(outcome.thrown ? "threw" : "did not throw", kHashStart);
      result_.implementations.push_back(made);
      if (is_reference && !one_.throws->by_reference) continue;
      if (!outcome.thrown) {
        fail("did not throw", name, "an error is expected: " + one_.throws->text);
      } else if (!is_reference && outcome.thrown->find(one_.throws->text) == std::string::npos) {
        fail("wrong message", name, "expected '" + one_.throws->text + "' in: " + *outcome.thrown);
      }
    }
    result_.equal_between_targets = true;
    for (size_t i = 2; i < outcomes.size(); ++i) {
      result_.equal_between_targets &=
          outcomes[i].second.thrown.has_value() == outcomes[1].second.thrown.has_value();
    }
    result_.equal_to_reference =
        outcomes[0].second.thrown.has_value() == outcomes[1].second.thrown.has_value();
  }

  void run_judged() {
    std::optional<Judgement> judgement;
    try {
      judgement = prepare_judgement(one_, options_);
    } catch (const c10::Error& error) {
      fail("the reference threw", "reference", first_line(error.what_without_backtrace()));
    }
    if (!judgement) {
      result_.implementations.resize(implementations_.size() + 1);
      return;
    }
    note_inputs(judgement->inputs);
    judge("reference", judgement->reference, *judgement);
    std::vector<Outcome> outcomes;
    result_.equal_to_reference = true;
    for (const Implementation& implementation : implementations_) {
      Outcome outcome = run_implementation(implementation, judgement->inputs);
      if (outcome.thrown) {
        fail("threw", implementation.name, *outcome.thrown);
        result_.implementations.push_back({implementation.name, 0, *outcome.thrown, {}});
        result_.equal_to_reference = false;
      } else {
        judge(implementation.name, outcome.outputs, *judgement);
      }
      outcomes.push_back(std::move(outcome));
    }
    result_.equal_between_targets = true;
    for (size_t i = 1; i < outcomes.size(); ++i) compare_targets(outcomes[0], outcomes[i], i);
  }

  void compare_targets(const Outcome& first, const Outcome& other, size_t which) {
    const std::string& name = implementations_[which].name;
    if (first.outputs.size() != other.outputs.size()) {
      result_.equal_between_targets = false;
      if (!other.thrown && !first.thrown) fail("targets differ", name, "in the number of outputs");
      return;
    }
    for (size_t i = 0; i < first.outputs.size(); ++i) {
      const Tensor& x = first.outputs[i];
      const Tensor& y = other.outputs[i];
      if (x.sizes() != y.sizes() || x.scalar_type() != y.scalar_type()) {
        result_.equal_between_targets = false;
        fail("targets differ", name, shape_and_dtype(x) + " and " + shape_and_dtype(y),
             one_.outputs[i]);
        continue;
      }
      const int64_t place = first_false(bits_equal(x, y, one_.canonical_nan));
      if (place < 0) continue;
      result_.equal_between_targets = false;
      fail("targets differ", name,
           implementations_[0].name + " has " + element_text(x, place) + ", " + name + " has " +
               element_text(y, place),
           one_.outputs[i], unravel(place, x.sizes()));
    }
  }

  void judge(const std::string& name, const Tensors& outputs, const Judgement& judgement) {
    ImplementationResult made;
    made.name = name;
    made.digest = kHashStart;
    const bool is_reference = name == "reference";
    if (outputs.size() != judgement.reference.size()) {
      fail("wrong number of outputs", name,
           std::to_string(outputs.size()) + ", the reference has " +
               std::to_string(judgement.reference.size()));
    }
    for (size_t i = 0; i < std::min(outputs.size(), judgement.reference.size()); ++i) {
      const Tensor& found = outputs[i];
      const Tensor& reference = judgement.reference[i];
      made.digest = tensor_digest(found, one_.canonical_nan, made.digest);
      if (found.sizes() != reference.sizes() || found.scalar_type() != reference.scalar_type()) {
        fail("wrong shape or dtype", name,
             shape_and_dtype(found) + ", the reference has " + shape_and_dtype(reference),
             one_.outputs[i]);
        if (!is_reference) result_.equal_to_reference = false;
        continue;
      }
      OutputResult output = judge_output(name, i, found, judgement);
      if (!is_reference && output.differing != 0) result_.equal_to_reference = false;
      made.outputs.push_back(std::move(output));
    }
    result_.implementations.push_back(std::move(made));
  }

  OutputResult judge_output(const std::string& name, size_t i, const Tensor& found,
                            const Judgement& judgement) {
    const Tensor& reference = judgement.reference[i];
    OutputResult output;
    output.name = one_.outputs[i];
    output.dtype = dtype_name(found.scalar_type());
    output.shape = found.sizes().vec();
    output.elements = found.numel();
    const Tensor same = bits_equal(found, reference, false);
    output.differing = found.numel() - same.sum().item<int64_t>();
    output.exact = !judgement.error[i].defined();
    if (found.numel() == 0) return output;
    if (is_floating(found)) measure(found, reference, output);
    if (output.exact) {
      const int64_t place = first_false(same);
      output.worst_element = place;
      if (place >= 0) {
        fail("not exact", name,
             "expected " + element_text(reference, place) + ", found " + element_text(found, place),
             one_.outputs[i], unravel(place, found.sizes()));
      }
      return output;
    }
    const Tensor f = wide(found), truth = wide(judgement.truth[i]), error = judgement.error[i];
    const Tensor& lowest = judgement.lowest[i];
    const Tensor& largest = judgement.largest[i];
    const Tensor unbounded = error.isinf();
    output.unbounded = unbounded.sum().item<int64_t>();
    const Tensor within = f.ge(lowest).logical_and(f.le(largest));
    // Infinities and NaN in the operands: the result is one too, and which is defined.
    const Tensor same_class =
        at::where(truth.isnan(), f.isnan(), f.eq(wide(truth.to(found.scalar_type()))));
    const Tensor special = error.isnan().logical_or(truth.isnan());
    const Tensor ok = at::where(special, same_class, within).logical_or(unbounded);
    // Rounding to bf16 moves a result by half a last place more; fp32 results are what is bounded.
    const Tensor rounded =
        found.scalar_type() == at::kBFloat16 ? ulp_of(f, at::kBFloat16) / 2 : at::zeros_like(f);
    const Tensor finite = special.logical_or(unbounded).logical_not().logical_and(f.isfinite());
    const Tensor used = ((f - truth).abs() - rounded).clamp_min(0);
    const Tensor share = (used / error).masked_fill(finite.logical_not().logical_or(used.eq(0)), 0);
    output.worst_element = share.argmax().item<int64_t>();
    output.bound_share = share.max().item<double>();
    const int64_t place = first_false(ok);
    if (place >= 0) {
      std::ostringstream detail;
      detail << "reference " << element_text(reference, place) << ", found "
             << element_text(found, place);
      const double bound = error.reshape({-1})[place].item<double>();
      if (std::isfinite(bound)) {
        detail << ", allowed " << lowest.reshape({-1})[place].item<double>() << " to "
               << largest.reshape({-1})[place].item<double>() << " (error bound " << bound << ")";
      }
      fail("beyond the bound", name, detail.str(), one_.outputs[i], unravel(place, found.sizes()));
    }
    return output;
  }

  static void measure(const Tensor& found, const Tensor& reference, OutputResult& output) {
    const Tensor finite = found.isfinite().logical_and(reference.isfinite());
    const Tensor f = wide(found).masked_fill(finite.logical_not(), 0);
    const Tensor r = wide(reference).masked_fill(finite.logical_not(), 0);
    const Tensor difference = (f - r).abs();
    const Tensor row_largest = r.dim() == 0 ? r.abs() : r.abs().amax({-1}, /*keepdim=*/true);
    const Tensor unit =
        ulp_of(at::maximum(r.abs(), (row_largest * kRowShare).expand_as(r)), found.scalar_type());
    const Tensor small = row_largest.lt(kMeasuredRow).expand_as(r);
    output.worst_ulp = (difference / unit).masked_fill(small, 0).max().item<double>();
    // Scaled by the largest, so that squares neither overflow nor vanish.
    const double scale = r.abs().max().item<double>();
    if (scale < kMeasuredRow) return;
    const double squared = (difference / scale).square().sum().item<double>();
    output.nmse = squared == 0 ? 0 : squared / (r / scale).square().sum().item<double>();
  }

  const OpCase& one_;
  const std::vector<Implementation>& implementations_;
  const ConformanceOptions& options_;
  std::vector<Failure>& failures_;
  CaseResult result_;
};

bool matches(const std::vector<std::string>& patterns, const std::string& op) {
  if (patterns.empty()) return true;
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return fnmatch(pattern.c_str(), op.c_str(), FNM_NOESCAPE) == 0;
  });
}

void add_to(OpResult& op, const CaseResult& one) {
  ++op.cases;
  op.throwing_cases += one.must_throw ? 1 : 0;
  op.equal_between_targets += one.equal_between_targets ? 1 : 0;
  op.equal_to_reference += one.equal_to_reference ? 1 : 0;
  op.failures += one.failures;
  op.digest = hash_value(one.digest, hash_value(static_cast<uint64_t>(one.number), op.digest));
  for (size_t i = 1; i < one.implementations.size(); ++i) {  // without the reference
    for (const OutputResult& output : one.implementations[i].outputs) {
      op.elements += output.elements;
      op.unbounded += output.unbounded;
      op.worst_bound_share = std::max(op.worst_bound_share, output.bound_share);
      // Where nothing is promised, an overflow would hide every other figure.
      if (output.unbounded != 0) continue;
      op.worst_ulp = std::max(op.worst_ulp, output.worst_ulp);
      op.worst_nmse = std::max(op.worst_nmse, output.nmse);
    }
  }
}

}  // namespace

uint64_t tensor_digest(const Tensor& x, bool keep_nan, uint64_t hash) {
  hash = fnv1a64(dtype_name(x.scalar_type()), hash);
  for (const int64_t size : x.sizes()) hash = hash_value(static_cast<uint64_t>(size), hash);
  Tensor bits = x.contiguous();
  if (!keep_nan && is_floating(bits)) {
    bits = bits.masked_fill(bits.isnan(), std::numeric_limits<double>::quiet_NaN());
  }
  return fnv1a64(bytes_of(bits), hash);
}

std::string replay_line(const std::string& op, int64_t case_number, uint64_t seed) {
  return "deepinfer-sim ops --op " + op + " --case " + std::to_string(case_number) + " --seed " +
         std::to_string(seed);
}

std::string digest_text(uint64_t digest) {
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, digest);
  return text;
}

Judgement prepare_judgement(const OpCase& one, const ConformanceOptions& options) {
  Judgement made;
  RandomStream random(options.seed, one.op, static_cast<uint32_t>(one.number));
  made.inputs = one.inputs(random);
  made.reference = run_reference(one, made.inputs, false);
  for (Tensor& output : made.reference) output = output.contiguous();
  const size_t count = made.reference.size();
  DEEPINFER_ASSERT(count == one.outputs.size(), one.op << " has " << count << " outputs");
  made.error.resize(count);
  made.lowest.resize(count);
  made.largest.resize(count);
  if (!one.errors) {
    made.truth = made.reference;
    return made;
  }
  made.truth = run_reference(one, made.inputs, true);
  for (Tensor& output : made.truth) output = output.contiguous();
  made.error = one.errors(made.inputs, made.truth, options.order);
  DEEPINFER_ASSERT(made.error.size() == count, one.op << " has " << count << " outputs");
  for (size_t i = 0; i < count; ++i) {
    if (!made.error[i].defined()) continue;
    const at::ScalarType dtype = made.reference[i].scalar_type();
    const Tensor truth = wide(made.truth[i]);
    DEEPINFER_ASSERT(made.error[i].sizes() == truth.sizes(),
                     one.op << " " << one.outputs[i] << ": errors " << made.error[i].sizes());
    // The truth itself was rounded.
    if (made.truth[i].scalar_type() != at::kDouble) {
      made.error[i] = made.error[i] + ulp_of(truth, dtype) / 2;
    }
    // The results of fp32 arithmetic lie in truth +- error. Rounding to fp32, then to the output's
    // dtype, is monotone, so rounding both ends gives the ends of what may be found.
    made.lowest[i] = wide((truth - made.error[i]).to(at::kFloat).to(dtype));
    made.largest[i] = wide((truth + made.error[i]).to(at::kFloat).to(dtype));
  }
  return made;
}

int64_t ConformanceReport::compared() const {
  int64_t count = 0;
  for (const OpResult& op : ops) count += op.elements + op.throwing_cases;
  return count;
}

ExitCode ConformanceReport::exit_code() const {
  if (!failures.empty()) return ExitCode::kMismatch;
  return compared() == 0 ? ExitCode::kVacuous : ExitCode::kMatch;
}

std::vector<const OpCase*> chosen_cases(const ConformanceOptions& options) {
  for (const std::string& pattern : options.op_patterns) {
    const std::vector<std::string>& ops = all_case_ops();
    if (std::any_of(ops.begin(), ops.end(),
                    [&](const std::string& op) { return matches({pattern}, op); })) {
      continue;
    }
    throw ConfigError({.what = "no op matches '" + pattern + "'",
                       .where = "--op",
                       .expected = "an op of platform/ops.h, or a pattern with * and ?",
                       .found = pattern,
                       .remedy = did_you_mean(pattern, ops)});
  }
  std::vector<const OpCase*> chosen;
  int64_t most = 0;
  for (const OpCase& one : all_cases()) {
    if (!matches(options.op_patterns, one.op)) continue;
    most = std::max(most, one.number);
    if (!options.case_number || one.number == *options.case_number) chosen.push_back(&one);
  }
  if (chosen.empty()) {
    throw ConfigError({.what = "no chosen op has such a case",
                       .where = "--case",
                       .expected = "0 to " + std::to_string(most),
                       .found = std::to_string(options.case_number.value_or(0)),
                       .remedy = "`deepinfer-sim ops --list` shows all cases"});
  }
  return chosen;
}

ConformanceReport run_conformance(const std::vector<Implementation>& implementations,
                                  const ConformanceOptions& options) {
  DEEPINFER_ASSERT(!implementations.empty(), "no implementation to run");
  const std::vector<const OpCase*> chosen = chosen_cases(options);
  const auto start = std::chrono::steady_clock::now();
  ConformanceReport report;
  report.seed = options.seed;
  report.device = options.device.str();
  for (const Implementation& implementation : implementations) {
    report.implementations.push_back(implementation.name);
  }
  for (const OpCase* chosen_case : chosen) {
    const OpCase& one = *chosen_case;
    if (report.ops.empty() || report.ops.back().op != one.op) {
      if (options.progress) options.progress(one.op);
      report.ops.emplace_back();
      report.ops.back().op = one.op;
      report.ops.back().digest = fnv1a64(one.op);
    }
    report.cases.push_back(CaseRun(one, implementations, options, report.failures).run());
    add_to(report.ops.back(), report.cases.back());
  }
  report.digest = kHashStart;
  for (const OpResult& op : report.ops) report.digest = hash_value(op.digest, report.digest);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace deepinfer::conformance
