// Runs a golden prompt end to end, greedily, and compares tokens, logits and recorded layer values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "golden/check_config.h"
#include "golden/golden_file.h"
#include "golden/trace_observer.h"
#include "model/transformer.h"

namespace deepinfer {

// Found where logits are not finite.
inline constexpr int64_t kNoToken = -1;

// One generated token.
struct StepComparison {
  int64_t expected = 0;          // golden token
  int64_t found = 0;             // ours
  double margin = 0;             // golden gap between the two largest logits
  double noise_floor = 0;        // golden logit change under a jitter of the embeddings
  double difference = 0;         // largest |logit difference|; infinity where a logit is not finite
  int64_t difference_token = 0;  // where it is
  bool bounded = false;          // the logit bound holds here
  double tolerance = 0;          // the bound where it holds, else the noise floor

  bool matches() const { return found == expected; }
  // Two logits that may each move by the tolerance can swap when they are closer than twice that.
  bool near_tie() const { return !matches() && margin <= 2 * tolerance; }
  bool is_fault() const { return !matches() && !near_tie(); }
  bool exceeds_bound() const { return bounded && !(difference <= tolerance); }
};

struct GenerationResult {
  std::vector<StepComparison> steps;     // every golden token
  std::vector<ValueComparison> prefill;  // empty without a trace
  std::vector<ValueComparison> decode0;
  std::optional<FirstDifference> first_difference;  // of the recorded values, by bounds.traces
  double seconds = 0;                               // prefill and all steps

  int64_t matched() const;         // of the first kCountedTokens
  int64_t near_ties() const;       // of the first kCountedTokens
  int64_t faults() const;          // of the first kCountedTokens
  double smallest_margin() const;  // of the first kCountedTokens
  int64_t bounded_steps() const;
  // The step with the largest difference among those that are bounded (or not); null without one.
  const StepComparison* largest_difference(bool bounded) const;
};

struct GenerationOptions {
  int64_t chunk = 0;             // prompt tokens a forward; 0: the whole prompt in one
  Coverage* coverage = nullptr;  // not owned
  bool observe = true;           // compare recorded values too
};

// Prefill, then one forward a token. After a token that differs the run continues on the golden
// token, so that later steps stay comparable.
GenerationResult check_generation(const TextModel& model, const GoldenPrompt& prompt,
                                  const Bounds& bounds, const GenerationOptions& options);

// Seconds for the same forwards with nothing watching.
double time_generation(const TextModel& model, const GoldenPrompt& prompt, int64_t chunk);

namespace internal {
// Appends the prompt to `sequence` in chunks; returns logits [1, vocab] of its last token.
at::Tensor prefill(const TextModel& model, Sequence* sequence, const std::vector<int64_t>& tokens,
                   int64_t chunk, const ForwardOptions& options, TraceObserver* trace);
}  // namespace internal

}  // namespace deepinfer
