#include "sim/kernels/moe_combine.h"

#include <algorithm>
#include <vector>

#include "platform/errors.h"
#include "sim/kernels/codec.h"
#include "sim/kernels/float_scope.h"
#include "sim/kernels/gemm.h"

namespace deepinfer {

namespace {

// One output row of a token, in the order of experts.
struct Contribution {
  int64_t leaf = 0;
  int64_t row = 0;  // of outputs
};

// Row `index` as fp32; `buffer` holds it if it has to be widened.
const float* wide_row(const RowView& view, int64_t index, std::vector<float>& buffer) {
  if (view.type == ElementType::kFp32) return view.row<float>(index);
  const size_t columns = static_cast<size_t>(view.columns);
  buffer.resize(columns);
  fp32_from_bf16({view.row<uint16_t>(index), columns}, buffer);
  return buffer.data();
}

void add(const float* x, std::vector<float>& sum) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + x[i];
}

// Partials of the leaves that have a contribution; leaf i is null where it has none.
class LeafSums {
 public:
  LeafSums(int64_t leaves, int64_t columns)
      : storage_(static_cast<size_t>(leaves), std::vector<float>(static_cast<size_t>(columns))),
        partials_(static_cast<size_t>(leaves)) {}

  void clear() { std::fill(partials_.begin(), partials_.end(), nullptr); }
  void contribute(int64_t leaf, const float* row) {
    std::vector<float>& sum = storage_[static_cast<size_t>(leaf)];
    const float*& partial = partials_[static_cast<size_t>(leaf)];
    if (partial == nullptr) {
      std::copy_n(row, sum.size(), sum.begin());  // the first is taken as it is, not added to 0
      partial = sum.data();
    } else {
      add(row, sum);
    }
  }
  std::span<const float* const> partials() const { return partials_; }

 private:
  std::vector<std::vector<float>> storage_;
  std::vector<const float*> partials_;
};

void combine_tokens(const MoeCombine& args) {
  const int64_t tokens = args.out.rows, columns = args.out.columns;
  const int64_t experts = static_cast<int64_t>(args.offsets.size()) - 1;
  std::vector<std::vector<Contribution>> by_token(static_cast<size_t>(tokens));
  for (int64_t expert = 0; expert < experts; ++expert) {
    for (int64_t row = args.offsets[expert]; row < args.offsets[expert + 1]; ++row) {
      by_token[static_cast<size_t>(args.rows[row])].push_back(
          {expert * args.leaves / experts, row});
    }
  }
  LeafSums sums(args.leaves, columns);
  std::vector<float> buffer;
  for (int64_t token = 0; token < tokens; ++token) {
    sums.clear();
    for (const Contribution& one : by_token[static_cast<size_t>(token)]) {
      sums.contribute(one.leaf, wide_row(args.outputs, one.row, buffer));
    }
    if (args.shared) sums.contribute(0, wide_row(*args.shared, token, buffer));
    GemmOutput out;
    out.type = args.out.type == ElementType::kFp32 ? GemmType::kFp32 : GemmType::kBf16;
    out.row_stride = columns;
    out.data = args.out.type == ElementType::kFp32
                   ? static_cast<void*>(args.out.row<float>(token))
                   : static_cast<void*>(args.out.row<uint16_t>(token));
    combine_leaves(sums.partials(), columns, out);
  }
}

}  // namespace

void moe_combine(const MoeCombine& args) {
  DEEPINFER_ASSERT(!args.offsets.empty() && args.offsets.front() == 0 &&
                       args.offsets.back() == args.outputs.rows &&
                       std::is_sorted(args.offsets.begin(), args.offsets.end()),
                   "offsets of " << args.outputs.rows << " outputs");
  DEEPINFER_ASSERT(args.outputs.columns == args.out.columns && args.outputs.type == args.out.type,
                   args.outputs.columns << " columns, " << args.out.columns);
  for (int64_t i = 0; i < args.outputs.rows; ++i) {
    DEEPINFER_ASSERT(args.rows[i] >= 0 && args.rows[i] < args.out.rows,
                     "row " << args.rows[i] << " of " << args.out.rows);
  }
  const FloatScope scope;
  combine_tokens(args);
}

}  // namespace deepinfer
