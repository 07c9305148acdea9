// Watches a forward, collects the values that a golden trace recorded, and can feed layers golden
// inputs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "golden/compare.h"
#include "golden/golden_file.h"
#include "model/transformer.h"

namespace deepinfer {

enum class ValueKind {
  kStream,       // post_engram, post_attn, post_moe, hidden
  kCoefficient,  // attn_pre, ffn_pre, expert_weights, engram_gate
  kSelection,    // topk, experts: sets
  kAddress,      // engram_rows: exact
};
ValueKind value_kind(std::string_view name);

// One recorded value held against what the model computed.
struct ValueComparison {
  int64_t layer = kFinalLayer;
  std::string name;
  ValueKind kind = ValueKind::kStream;
  int64_t first_row = 0;           // row of the forward that row 0 of the comparison is
  int64_t missing_rows = 0;        // rows that the model never reported
  NumberDifference numbers;        // streams and coefficients
  SelectionDifference selections;  // selections and addresses

  // A missing row, another selection, or a number further off than `bound`.
  bool differs(double bound) const;
};

// Invariant: rows arrive once each; between begin_forward calls they continue in order. Not
// thread-safe.
class TraceObserver : public Observer {
 public:
  enum class Feed {
    kNothing,
    kGoldenInputs,  // layer L runs on the golden output of layer L-1 (needs trace.feeds_layers)
  };
  TraceObserver(const GoldenTrace& trace, Feed feed);

  // The next forward's first row is row `first_row` of the trace: not 0 in a chunked prefill.
  void begin_forward(int64_t first_row) { first_row_ = first_row; }
  void layer_input(int64_t layer, at::Tensor& streams, at::Tensor& pre) override;
  void value(std::string_view name, int64_t layer, const at::Tensor& tensor) override;

  // All recorded values, in the order in which the model computes them. Weights of experts are
  // compared by expert id, in the rows where the experts agree.
  std::vector<ValueComparison> compare(double row_bound) const;

 private:
  struct Collected {
    at::Tensor values;          // like the golden tensor, CPU
    std::vector<bool> present;  // by row
  };
  ValueComparison compare_value(int64_t layer, const std::string& name, const GoldenTensor& golden,
                                double row_bound) const;

  const GoldenTrace& trace_;
  Feed feed_;
  int64_t first_row_ = 0;
  std::map<std::pair<int64_t, std::string>, Collected> collected_;
};

// Where a run leaves the golden first.
struct FirstDifference {
  std::string forward;  // "prefill" or "decode0"
  int64_t layer = kFinalLayer;
  std::string name;
  int64_t row = 0;
  std::string found;
  std::string expected;

  std::string layer_text() const;  // "layer 3", or "final"
};

// The first of `values` that differs by more than `bound`; false if none does.
bool find_first_difference(const std::vector<ValueComparison>& values, const std::string& forward,
                           double bound, FirstDifference& first);

}  // namespace deepinfer
