#include "sim/kernels/moe_combine.h"

#include <algorithm>
#include <vector>

#include "platform/errors.h"
#include "sim/kernels/codec.h"
#include "sim/kernels/float_scope.h"
#include "sim/kernels/gemm.h"
#include "sim/kernels/gemm_internal.h"

namespace deepinfer {

namespace {

// One output row of a token, in the order of experts.
struct Contribution {
  int64_t leaf = 0;
  int64_t row = 0;  // of outputs
};

int64_t leaf_of(int64_t expert, int64_t experts) { return expert * kCanonicalLeaves / experts; }

// Row `index` as fp32; `buffer` holds it if it has to be widened.
const float* wide_row(const RowView& view, int64_t index, std::vector<float>& buffer) {
  if (view.type == ElementType::kFp32) return view.row<float>(index);
  const size_t columns = static_cast<size_t>(view.columns);
  buffer.resize(columns);
  fp32_from_bf16({view.row<uint16_t>(index), columns}, buffer);
  return buffer.data();
}

[[gnu::noinline]] void add(const float* x, std::vector<float>& sum) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + x[i];
}

// Sums of the leaves `positions` that have a contribution; null where one has none.
class LeafSums {
 public:
  LeafSums(IndexRange positions, int64_t columns)
      : first_(positions.begin),
        columns_(columns),
        storage_(static_cast<size_t>(positions.count()),
                 std::vector<float>(static_cast<size_t>(columns))),
        sums_(storage_.size()) {}

  void clear() { std::fill(sums_.begin(), sums_.end(), nullptr); }
  void contribute(int64_t leaf, const float* row) {
    std::vector<float>& sum = storage_[static_cast<size_t>(leaf - first_)];
    const float*& present = sums_[static_cast<size_t>(leaf - first_)];
    if (present == nullptr) {
      std::copy_n(row, sum.size(), sum.begin());  // the first is taken as it is, not added to 0
      present = sum.data();
    } else {
      add(row, sum);
    }
  }
  // What a subtree sums to: -0 if none of its leaves has a contribution.
  void combine(const Subtree& subtree, float* to) const {
    const auto leaves = std::span<const float* const>(sums_).subspan(
        static_cast<size_t>(subtree.begin - first_), static_cast<size_t>(subtree.count));
    if (std::all_of(leaves.begin(), leaves.end(),
                    [](const float* sum) { return sum == nullptr; })) {
      std::fill_n(to, columns_, -0.0f);
    } else {
      combine_leaves(leaves, columns_, fp32_output(to, columns_));
    }
  }

 private:
  int64_t first_, columns_;
  std::vector<std::vector<float>> storage_;
  std::vector<const float*> sums_;
};

// Calls sink(token, sums) for every token, with the sums of its leaves at `positions`.
template <class Sink>
void sum_tokens(const ExpertOutputs& from, IndexRange positions, const Sink& sink) {
  std::vector<std::vector<Contribution>> by_token(static_cast<size_t>(from.tokens));
  for (size_t e = 0; e + 1 < from.offsets.size(); ++e) {
    const int64_t leaf = leaf_of(from.first_expert + static_cast<int64_t>(e), from.experts);
    for (int64_t row = from.offsets[e]; row < from.offsets[e + 1]; ++row) {
      by_token[static_cast<size_t>(from.rows[row])].push_back({leaf, row});
    }
  }
  LeafSums sums(positions, from.outputs.columns);
  std::vector<float> buffer;
  for (int64_t token = 0; token < from.tokens; ++token) {
    sums.clear();
    for (const Contribution& one : by_token[static_cast<size_t>(token)]) {
      sums.contribute(one.leaf, wide_row(from.outputs, one.row, buffer));
    }
    sink(token, sums);
  }
}

// routed + shared, rounded to row `token` of out; `shared` null: +0.
[[gnu::noinline]] void finish(const std::vector<float>& routed, const float* shared, int64_t token,
                              const MutableRowView& out) {
  GemmOutput to;
  to.type = out.type == ElementType::kFp32 ? GemmType::kFp32 : GemmType::kBf16;
  to.data = out.data;
  to.row_stride = out.row_stride;
  for (size_t i = 0; i < routed.size(); ++i) {
    gemm_internal::store_element(to, token, static_cast<int64_t>(i),
                                 routed[i] + (shared == nullptr ? 0.0f : shared[i]));
  }
}

void combine_tokens(const ExpertOutputs& from, const std::optional<RowView>& shared,
                    const MutableRowView& out) {
  std::vector<float> routed(static_cast<size_t>(out.columns)), buffer;
  sum_tokens(from, {0, kCanonicalLeaves}, [&](int64_t token, const LeafSums& sums) {
    sums.combine({0, kCanonicalLeaves}, routed.data());
    finish(routed, shared ? wide_row(*shared, token, buffer) : nullptr, token, out);
  });
}

void tokens_partials(const ExpertOutputs& from, IndexRange positions, float* partials) {
  const std::vector<Subtree> subtrees = maximal_subtrees(positions);
  const int64_t columns = from.outputs.columns;
  sum_tokens(from, positions, [&](int64_t token, const LeafSums& sums) {
    float* to = partials + token * columns;
    for (const Subtree& subtree : subtrees) {
      sums.combine(subtree, to);
      to += from.tokens * columns;
    }
  });
}

void check(const ExpertOutputs& from, IndexRange positions) {
  DEEPINFER_ASSERT(!from.offsets.empty() && from.offsets.front() == 0 &&
                       from.offsets.back() == from.outputs.rows &&
                       std::is_sorted(from.offsets.begin(), from.offsets.end()),
                   "offsets of " << from.outputs.rows << " outputs");
  const int64_t count = static_cast<int64_t>(from.offsets.size()) - 1;
  DEEPINFER_ASSERT(
      from.first_expert >= 0 && from.first_expert + count <= from.experts,
      "experts " << from.first_expert << " and " << count << " more of " << from.experts);
  DEEPINFER_ASSERT(positions.begin >= 0 && positions.end <= kCanonicalLeaves,
                   "positions " << positions.begin << " to " << positions.end);
  DEEPINFER_ASSERT(
      count == 0 || (positions.contains(leaf_of(from.first_expert, from.experts)) &&
                     positions.contains(leaf_of(from.first_expert + count - 1, from.experts))),
      "experts " << from.first_expert << " and " << count << " more of " << from.experts
                 << " at positions " << positions.begin << " to " << positions.end);
  for (int64_t i = 0; i < from.outputs.rows; ++i) {
    DEEPINFER_ASSERT(from.rows[i] >= 0 && from.rows[i] < from.tokens,
                     "row " << from.rows[i] << " of " << from.tokens);
  }
}

}  // namespace

void moe_combine(const ExpertOutputs& from, const std::optional<RowView>& shared,
                 const MutableRowView& out) {
  check(from, {0, kCanonicalLeaves});
  DEEPINFER_ASSERT(
      from.first_expert == 0 && static_cast<int64_t>(from.offsets.size()) - 1 == from.experts,
      "expert " << from.first_expert << " first, " << from.experts << " in all");
  DEEPINFER_ASSERT(from.outputs.columns == out.columns && from.outputs.type == out.type &&
                       from.tokens == out.rows,
                   from.outputs.columns << " columns, " << out.columns << "; " << from.tokens
                                        << " tokens, " << out.rows);
  const FloatScope scope;
  combine_tokens(from, shared, out);
}

void moe_partials(const ExpertOutputs& from, IndexRange positions, float* partials) {
  check(from, positions);
  const FloatScope scope;
  tokens_partials(from, positions, partials);
}

}  // namespace deepinfer
