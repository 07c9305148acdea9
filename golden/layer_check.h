// Runs every layer on the golden output of the layer before it, so that one flipped code stays in
// its layer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "golden/check_config.h"
#include "golden/golden_file.h"
#include "golden/trace_observer.h"
#include "model/transformer.h"

namespace deepinfer {

// One layer's rows of the prompt and of the first decode step together, over all its streams.
struct LayerComparison {
  int64_t layer = kFinalLayer;
  int64_t rows = 0;
  int64_t bit_equal_rows = 0;      // every stream of the row rounds to the same bf16
  int64_t rows_within = 0;         // every stream within bounds.layers.row_difference
  int64_t stream_values = 0;       // numbers of all streams
  int64_t within_bf16_ulp = 0;     // of those: within one bf16 ulp of the golden
  double median = 0;               // of |difference| over the prompt's rows, largest of the streams
  double row_median = 0;           // of one row, the decode step's too; largest of rows and streams
  double largest = 0;              // of the streams
  double coefficient_largest = 0;  // of collapse weights, gates and expert weights
  int64_t selection_rows = 0;      // rows of top-k sets and of experts
  int64_t different_selections = 0;   // of those
  int64_t different_addresses = 0;    // Engram rows; must be 0
  int64_t missing_rows = 0;           // values that the model did not report; must be 0
  std::vector<std::string> failures;  // bounds that do not hold, each as a sentence

  std::string layer_text() const;  // "3", or "final"
};

struct LayerCheckResult {
  std::vector<ValueComparison> prefill;
  std::vector<ValueComparison> decode0;
  std::vector<LayerComparison> layers;  // ascending, the final hidden state last

  const LayerComparison* first_failure() const;  // null if every bound holds
};

// Needs prompt.prefill.feeds_layers. The first layer runs on the embeddings; the final hidden state
// follows from the last layer's own output, which no later layer takes in. The decode step
// continues the sequence whose caches the golden-fed prompt filled. `chunk` as in
// GenerationOptions.
LayerCheckResult check_layers(const TextModel& model, const GoldenPrompt& prompt,
                              const LayerBounds& bounds, int64_t chunk);

namespace internal {
std::vector<LayerComparison> summarise_layers(const std::vector<ValueComparison>& prefill,
                                              const std::vector<ValueComparison>& decode0,
                                              const LayerBounds& bounds);
}  // namespace internal

}  // namespace deepinfer
