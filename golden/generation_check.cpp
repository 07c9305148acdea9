#include "golden/generation_check.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "platform/errors.h"

namespace deepinfer {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

StepComparison compare_step(const at::Tensor& logits, const GoldenPrompt& prompt, size_t step,
                            const Bounds& bounds) {
  StepComparison result;
  result.expected = prompt.generated[step];
  // Logits that are not finite choose no token; the difference below says what happened.
  const bool finite = at::isfinite(logits).all().item<bool>();
  result.found = finite ? greedy_tokens(logits)[0].item<int64_t>() : kNoToken;
  result.margin = prompt.top2_margin[step];
  result.noise_floor = prompt.noise_floor[step];
  result.bounded = bounds.logits && (!bounds.where_noise_floor_below ||
                                     result.noise_floor < *bounds.where_noise_floor_below);
  result.tolerance = result.bounded ? *bounds.logits : result.noise_floor;
  const auto row = static_cast<int64_t>(step);
  const NumberDifference difference = compare_numbers(logits, prompt.logits.narrow(0, row, 1));
  result.difference = difference.largest;
  result.difference_token = difference.largest_element;
  return result;
}

bool counted(size_t step) { return step < static_cast<size_t>(kCountedTokens); }

}  // namespace

int64_t GenerationResult::matched() const {
  int64_t count = 0;
  for (size_t i = 0; i < steps.size() && counted(i); ++i) count += steps[i].matches();
  return count;
}

int64_t GenerationResult::near_ties() const {
  int64_t count = 0;
  for (size_t i = 0; i < steps.size() && counted(i); ++i) count += steps[i].near_tie();
  return count;
}

int64_t GenerationResult::faults() const {
  int64_t count = 0;
  for (size_t i = 0; i < steps.size() && counted(i); ++i) count += steps[i].is_fault();
  return count;
}

double GenerationResult::smallest_margin() const {
  double smallest = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < steps.size() && counted(i); ++i) {
    smallest = std::min(smallest, steps[i].margin);
  }
  return smallest;
}

int64_t GenerationResult::bounded_steps() const {
  return std::count_if(steps.begin(), steps.end(), [](const auto& step) { return step.bounded; });
}

const StepComparison* GenerationResult::largest_difference(bool bounded) const {
  const StepComparison* largest = nullptr;
  for (const StepComparison& step : steps) {
    if (step.bounded != bounded) continue;
    if (largest == nullptr || step.difference > largest->difference) largest = &step;
  }
  return largest;
}

namespace internal {

at::Tensor prefill(const TextModel& model, Sequence* sequence, const std::vector<int64_t>& tokens,
                   int64_t chunk, const ForwardOptions& options, TraceObserver* trace) {
  const auto count = static_cast<int64_t>(tokens.size());
  const int64_t step = chunk > 0 ? chunk : count;
  at::Tensor logits;  // [1, vocab] fp32
  for (int64_t begin = 0; begin < count; begin += step) {
    const int64_t end = std::min(begin + step, count);
    if (trace != nullptr) trace->begin_forward(begin);
    logits = model.forward({{sequence, {tokens.begin() + begin, tokens.begin() + end}}}, options);
  }
  return logits;
}

}  // namespace internal

GenerationResult check_generation(const TextModel& model, const GoldenPrompt& prompt,
                                  const Bounds& bounds, const GenerationOptions& options) {
  const bool traced = options.observe && !prompt.prefill.empty();
  TraceObserver prefill_trace(prompt.prefill, TraceObserver::Feed::kNothing);
  TraceObserver decode_trace(prompt.decode0, TraceObserver::Feed::kNothing);
  ForwardOptions forward;
  forward.coverage = options.coverage;
  forward.observer = traced ? &prefill_trace : nullptr;

  GenerationResult result;
  const auto steps = static_cast<int64_t>(prompt.generated.size());
  const auto start = Clock::now();
  const SequencePtr sequence =
      model.new_sequence(static_cast<int64_t>(prompt.tokens.size()) + steps);
  at::Tensor logits = internal::prefill(model, sequence.get(), prompt.tokens, options.chunk,
                                        forward, traced ? &prefill_trace : nullptr);
  for (size_t step = 0; step < prompt.generated.size(); ++step) {
    if (step > 0) {
      forward.observer = traced && step == 1 ? &decode_trace : nullptr;
      logits = model.forward({{sequence.get(), {prompt.generated[step - 1]}}}, forward);
    }
    result.steps.push_back(compare_step(logits, prompt, step, bounds));
  }
  result.seconds = seconds_since(start);
  if (traced) {
    const double bound = bounds.traces.value_or(std::numeric_limits<double>::infinity());
    result.prefill = prefill_trace.compare(bound);
    result.decode0 = decode_trace.compare(bound);
    FirstDifference first;
    if (bounds.traces && (find_first_difference(result.prefill, "prefill", bound, first) ||
                          find_first_difference(result.decode0, "decode0", bound, first))) {
      result.first_difference = first;
    }
  }
  return result;
}

double time_generation(const TextModel& model, const GoldenPrompt& prompt, int64_t chunk) {
  const auto start = Clock::now();
  const SequencePtr sequence =
      model.new_sequence(static_cast<int64_t>(prompt.tokens.size() + prompt.generated.size()));
  internal::prefill(model, sequence.get(), prompt.tokens, chunk, {}, nullptr);
  for (size_t step = 1; step < prompt.generated.size(); ++step) {
    model.forward({{sequence.get(), {prompt.generated[step - 1]}}});
  }
  return seconds_since(start);
}

}  // namespace deepinfer
