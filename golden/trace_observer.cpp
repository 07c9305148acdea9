#include "golden/trace_observer.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "platform/errors.h"

namespace deepinfer {
namespace {

// The order in which a layer computes its values: collapse weights of a sub-layer come before its
// output.
constexpr std::array<std::string_view, 11> kComputeOrder = {
    "engram_rows", "engram_gate",    "post_engram", "topk",     "attn_pre", "post_attn",
    "experts",     "expert_weights", "ffn_pre",     "post_moe", "hidden"};

size_t compute_rank(std::string_view name) {
  const auto* const found = std::find(kComputeOrder.begin(), kComputeOrder.end(), name);
  DEEPINFER_ASSERT(found != kComputeOrder.end(), "value " << name);
  return static_cast<size_t>(found - kComputeOrder.begin());
}

std::string number_text(double value) {
  std::ostringstream text;
  text.precision(9);  // tells any two floats apart
  text << value;
  return text.str();
}

}  // namespace

ValueKind value_kind(std::string_view name) {
  if (name == "topk" || name == "experts") return ValueKind::kSelection;
  if (name == "engram_rows") return ValueKind::kAddress;
  if (name == "post_engram" || name == "post_attn" || name == "post_moe" || name == "hidden") {
    return ValueKind::kStream;
  }
  return ValueKind::kCoefficient;
}

bool ValueComparison::differs(double bound) const {
  return missing_rows > 0 || selections.different_rows > 0 || numbers.largest > bound;
}

TraceObserver::TraceObserver(const GoldenTrace& trace, Feed feed) : trace_(trace), feed_(feed) {
  DEEPINFER_ASSERT(feed == Feed::kNothing || trace.feeds_layers, "a trace without layer outputs");
  for (const auto& [key, golden] : trace_.tensors) {
    collected_[key] = {at::zeros_like(golden.values),
                       std::vector<bool>(static_cast<size_t>(golden.values.size(0)))};
  }
}

void TraceObserver::layer_input(int64_t layer, at::Tensor& streams, at::Tensor& pre) {
  // The first layer's input is the embedding, which no golden records: it follows from the tokens.
  if (feed_ == Feed::kNothing || layer == 0) return;
  const int64_t rows = streams.size(0);
  const at::Tensor& golden_streams = trace_.find("post_moe", layer - 1)->values;
  const at::Tensor& golden_pre = trace_.find("ffn_pre", layer - 1)->values;
  DEEPINFER_ASSERT(first_row_ + rows <= golden_streams.size(0),
                   "rows " << first_row_ << " + " << rows << " of " << golden_streams.size(0));
  streams = golden_streams.narrow(0, first_row_, rows).to(streams.options());
  pre = golden_pre.narrow(0, first_row_, rows).to(pre.options());
}

void TraceObserver::value(std::string_view name, int64_t layer, const at::Tensor& tensor) {
  const auto found = collected_.find({layer, std::string(name)});
  if (found == collected_.end()) return;
  const GoldenTensor& golden = trace_.tensors.at(found->first);
  Collected& collected = found->second;
  DEEPINFER_ASSERT(tensor.dim() == golden.values.dim() &&
                       tensor.sizes().slice(1) == golden.values.sizes().slice(1),
                   "layer " << layer << ' ' << name << ' ' << tensor.sizes() << ", golden "
                            << golden.values.sizes());
  // Rows [begin, end) of the trace that both this forward and the golden hold.
  const int64_t begin = std::max(first_row_, golden.first_row);
  const int64_t end =
      std::min(first_row_ + tensor.size(0), golden.first_row + golden.values.size(0));
  if (begin >= end) return;
  collected.values.narrow(0, begin - golden.first_row, end - begin)
      .copy_(tensor.narrow(0, begin - first_row_, end - begin));
  for (int64_t row = begin; row < end; ++row) {
    collected.present[static_cast<size_t>(row - golden.first_row)] = true;
  }
}

ValueComparison TraceObserver::compare_value(int64_t layer, const std::string& name,
                                             const GoldenTensor& golden, double row_bound) const {
  const Collected& collected = collected_.at({layer, name});
  ValueComparison result;
  result.layer = layer;
  result.name = name;
  result.kind = value_kind(name);
  result.first_row = golden.first_row;
  result.missing_rows = std::count(collected.present.begin(), collected.present.end(), false);
  switch (result.kind) {
    case ValueKind::kSelection:
      result.selections = compare_selections(collected.values, golden.values, SelectionOrder::kSet);
      break;
    case ValueKind::kAddress:
      result.selections =
          compare_selections(collected.values, golden.values, SelectionOrder::kExact);
      break;
    case ValueKind::kStream:
      result.numbers = compare_numbers(collected.values, golden.values, row_bound);
      break;
    case ValueKind::kCoefficient: {
      const GoldenTensor* ids = name == "expert_weights" ? trace_.find("experts", layer) : nullptr;
      if (ids == nullptr) {
        result.numbers = compare_numbers(collected.values, golden.values, row_bound);
        break;
      }
      const at::Tensor& found_ids = collected_.at({layer, "experts"}).values;
      const auto equal = compare_selections(found_ids, ids->values, SelectionOrder::kSet).row_equal;
      at::Tensor found = weights_by_ascending_id(found_ids, collected.values);
      const at::Tensor expected = weights_by_ascending_id(ids->values, golden.values);
      for (size_t row = 0; row < equal.size(); ++row) {
        // Weights of different experts say nothing; the selection itself is reported.
        if (!equal[row])
          found[static_cast<int64_t>(row)].copy_(expected[static_cast<int64_t>(row)]);
      }
      result.numbers = compare_numbers(found, expected, row_bound);
      break;
    }
  }
  return result;
}

std::vector<ValueComparison> TraceObserver::compare(double row_bound) const {
  std::vector<ValueComparison> result;
  for (const auto& [key, golden] : trace_.tensors) {
    result.push_back(compare_value(key.first, key.second, golden, row_bound));
  }
  const auto rank = [](const ValueComparison& value) {
    const int64_t layer =
        value.layer == kFinalLayer ? std::numeric_limits<int64_t>::max() : value.layer;
    return std::pair(layer, compute_rank(value.name));
  };
  std::stable_sort(result.begin(), result.end(),
                   [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  return result;
}

std::string FirstDifference::layer_text() const {
  return layer == kFinalLayer ? "final" : "layer " + std::to_string(layer);
}

bool find_first_difference(const std::vector<ValueComparison>& values, const std::string& forward,
                           double bound, FirstDifference& first) {
  const auto found = std::find_if(values.begin(), values.end(),
                                  [&](const auto& value) { return value.differs(bound); });
  if (found == values.end()) return false;
  first.forward = forward;
  first.layer = found->layer;
  first.name = found->name;
  if (found->missing_rows > 0) {
    first.row = found->first_row;
    first.found = "not reported by the model";
    first.expected = "a value for every row";
  } else if (found->selections.different_rows > 0) {
    first.row = found->first_row + found->selections.first_row;
    first.found = row_text(found->selections.found);
    first.expected = row_text(found->selections.expected);
  } else {
    first.row = found->first_row + found->numbers.largest_row;
    first.found = number_text(found->numbers.found);
    first.expected = number_text(found->numbers.expected);
  }
  return true;
}

}  // namespace deepinfer
