#include "golden/layer_check.h"

#include <algorithm>
#include <limits>
#include <map>
#include <sstream>

#include "golden/generation_check.h"

namespace deepinfer {
namespace {

// Streams of one forward of one layer: a row counts as equal if all of its streams are.
struct ForwardRows {
  std::vector<bool> bit_equal;
  std::vector<bool> within;
};

void merge_rows(std::vector<bool>& all, const std::vector<bool>& rows) {
  if (all.empty()) all.assign(rows.size(), true);
  for (size_t row = 0; row < rows.size(); ++row) all[row] = all[row] && rows[row];
}

void add_value(const ValueComparison& value, bool is_prefill, LayerComparison& layer,
               ForwardRows& rows) {
  layer.missing_rows += value.missing_rows;
  switch (value.kind) {
    case ValueKind::kStream:
      if (is_prefill) layer.median = std::max(layer.median, value.numbers.median);
      for (const double median : value.numbers.row_median) {
        layer.row_median = std::max(layer.row_median, median);
      }
      layer.largest = std::max(layer.largest, value.numbers.largest);
      layer.stream_values += value.numbers.values;
      layer.within_bf16_ulp += value.numbers.within_bf16_ulp;
      merge_rows(rows.bit_equal, value.numbers.bit_equal);
      merge_rows(rows.within, value.numbers.within);
      break;
    case ValueKind::kCoefficient:
      layer.coefficient_largest = std::max(layer.coefficient_largest, value.numbers.largest);
      break;
    case ValueKind::kSelection:
      layer.selection_rows += value.selections.rows;
      layer.different_selections += value.selections.different_rows;
      break;
    case ValueKind::kAddress:
      layer.different_addresses += value.selections.different_rows;
      break;
  }
}

std::string share_text(int64_t part, int64_t whole, const std::string& what, double least) {
  std::ostringstream text;
  text << part << " of " << whole << ' ' << what << ", at least " << 100 * least << " % expected";
  return text.str();
}

void judge(const LayerBounds& bounds, LayerComparison& layer) {
  const auto least = [](double share, int64_t rows) { return share * static_cast<double>(rows); };
  if (layer.missing_rows > 0) {
    layer.failures.push_back(std::to_string(layer.missing_rows) +
                             " rows of recorded values were not reported by the model");
  }
  if (layer.different_addresses > 0) {
    layer.failures.push_back(std::to_string(layer.different_addresses) +
                             " rows look up other Engram rows");
  }
  if (bounds.median && !(layer.median <= *bounds.median)) {
    std::ostringstream text;
    text << "median difference " << layer.median << ", at most " << *bounds.median << " expected";
    layer.failures.push_back(text.str());
  }
  if (bounds.row_median && !(layer.row_median <= *bounds.row_median)) {
    std::ostringstream text;
    text << "a row with median difference " << layer.row_median << ", at most "
         << *bounds.row_median << " expected";
    layer.failures.push_back(text.str());
  }
  if (bounds.bit_equal_rows &&
      static_cast<double>(layer.bit_equal_rows) < least(*bounds.bit_equal_rows, layer.rows)) {
    layer.failures.push_back(share_text(layer.bit_equal_rows, layer.rows, "rows bit-equal in bf16",
                                        *bounds.bit_equal_rows));
  }
  if (bounds.rows_within &&
      static_cast<double>(layer.rows_within) < least(*bounds.rows_within, layer.rows)) {
    std::ostringstream what;
    what << "rows within " << *bounds.row_difference;
    layer.failures.push_back(
        share_text(layer.rows_within, layer.rows, what.str(), *bounds.rows_within));
  }
  if (bounds.values_within_bf16_ulp &&
      static_cast<double>(layer.within_bf16_ulp) <
          least(*bounds.values_within_bf16_ulp, layer.stream_values)) {
    layer.failures.push_back(share_text(layer.within_bf16_ulp, layer.stream_values,
                                        "stream values within one bf16 ulp",
                                        *bounds.values_within_bf16_ulp));
  }
  const int64_t equal = layer.selection_rows - layer.different_selections;
  if (bounds.equal_selections &&
      static_cast<double>(equal) < least(*bounds.equal_selections, layer.selection_rows)) {
    layer.failures.push_back(share_text(equal, layer.selection_rows, "rows with equal selections",
                                        *bounds.equal_selections));
  }
}

}  // namespace

std::string LayerComparison::layer_text() const {
  return layer == kFinalLayer ? "final" : std::to_string(layer);
}

const LayerComparison* LayerCheckResult::first_failure() const {
  const auto failed = std::find_if(layers.begin(), layers.end(),
                                   [](const auto& layer) { return !layer.failures.empty(); });
  return failed == layers.end() ? nullptr : &*failed;
}

namespace internal {

std::vector<LayerComparison> summarise_layers(const std::vector<ValueComparison>& prefill,
                                              const std::vector<ValueComparison>& decode0,
                                              const LayerBounds& bounds) {
  const auto key = [](int64_t layer) {  // the final hidden state comes last
    return layer == kFinalLayer ? std::numeric_limits<int64_t>::max() : layer;
  };
  std::map<int64_t, LayerComparison> layers;
  for (const auto* values : {&prefill, &decode0}) {
    std::map<int64_t, ForwardRows> rows;
    for (const ValueComparison& value : *values) {
      LayerComparison& layer = layers[key(value.layer)];
      layer.layer = value.layer;
      add_value(value, values == &prefill, layer, rows[key(value.layer)]);
    }
    for (const auto& [layer, flags] : rows) {
      layers[layer].rows += static_cast<int64_t>(flags.bit_equal.size());
      layers[layer].bit_equal_rows +=
          std::count(flags.bit_equal.begin(), flags.bit_equal.end(), true);
      layers[layer].rows_within += std::count(flags.within.begin(), flags.within.end(), true);
    }
  }
  std::vector<LayerComparison> result;
  for (auto& [layer, comparison] : layers) {
    judge(bounds, comparison);
    result.push_back(std::move(comparison));
  }
  return result;
}

}  // namespace internal

LayerCheckResult check_layers(const TextModel& model, const GoldenPrompt& prompt,
                              const LayerBounds& bounds, int64_t chunk) {
  TraceObserver prefill_trace(prompt.prefill, TraceObserver::Feed::kGoldenInputs);
  TraceObserver decode_trace(prompt.decode0, TraceObserver::Feed::kGoldenInputs);
  ForwardOptions forward;
  forward.observer = &prefill_trace;
  const SequencePtr sequence = model.new_sequence(static_cast<int64_t>(prompt.tokens.size()) + 1);
  internal::prefill(model, sequence.get(), prompt.tokens, chunk, forward, &prefill_trace);
  forward.observer = &decode_trace;
  model.forward({{sequence.get(), {prompt.generated[0]}}}, forward);

  LayerCheckResult result;
  const double row_bound = bounds.row_difference.value_or(std::numeric_limits<double>::infinity());
  result.prefill = prefill_trace.compare(row_bound);
  result.decode0 = decode_trace.compare(row_bound);
  result.layers = internal::summarise_layers(result.prefill, result.decode0, bounds);
  return result;
}

}  // namespace deepinfer
