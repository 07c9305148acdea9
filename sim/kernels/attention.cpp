// Gathers a query's keys in the order of leaves, and runs attention on a target.
#include "sim/kernels/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/kernels/attention.cpp"
#include <hwy/foreach_target.h>

#include "sim/kernels/attention-inl.h"

#if HWY_ONCE
#include <array>
#include <vector>

#include "platform/errors.h"
#include "sim/kernels/attention.h"
#include "sim/kernels/canonical_run.h"
#include "sim/kernels/codec.h"
#include "sim/kernels/gemm.h"

namespace deepinfer {
namespace {

const AttentionKernels& attention_kernels(Target target) {
  DEEPINFER_SIM_SELECT_TARGET(target, kAttentionKernels);
  return scalar_attention_kernels();
}

constexpr int64_t kTileKeys = 8;  // C7.3
constexpr int64_t kPadding = 16;  // of heads and channels, to whole groups of lanes

int64_t padded(int64_t count) { return (count + kPadding - 1) / kPadding * kPadding; }
int64_t leaf_of(int64_t global_index) { return global_index / kTileKeys % kAttentionLeaves; }

GemmOperand operand(const RowView& x) {
  return x.type == ElementType::kBf16
             ? bf16_operand(static_cast<const uint16_t*>(x.data), x.row_stride)
             : fp32_operand(static_cast<const float*>(x.data), x.row_stride);
}

// The keys of one row in the order of C7.3: by leaf, in a leaf the window's ascending, then the
// compressed.
class KeyList {
 public:
  void build(const SparseAttention& args, int64_t row) {
    window_.clear();
    compressed_.clear();
    collect(args.window_index + row * args.window_count, args.window_count, args.window.rows,
            window_);
    collect(args.compressed_index + row * args.compressed_count, args.compressed_count,
            args.compressed.rows, compressed_);
    begin_.fill(0);
    const int64_t first = args.window_first_position;
    for (const int64_t i : window_) ++begin_[static_cast<size_t>(leaf_of(first + i) + 1)];
    for (const int64_t i : compressed_) ++begin_[static_cast<size_t>(leaf_of(i) + 1)];
    longest_ = *std::max_element(begin_.begin(), begin_.end());
    for (size_t leaf = 1; leaf < begin_.size(); ++leaf) begin_[leaf] += begin_[leaf - 1];
    places_.resize(window_.size() + compressed_.size());
    std::array<int64_t, kAttentionLeaves + 1> next = begin_;
    for (const int64_t i : window_) place(next, leaf_of(first + i), {true, i});
    for (const int64_t i : compressed_) place(next, leaf_of(i), {false, i});
  }

  // Copies the keys, padded with +0 to `width` channels.
  template <typename T>
  void gather(const SparseAttention& args, int64_t width, T* keys) const {
    for (const Place& place : places_) {
      const T* from = (place.in_window ? args.window : args.compressed).row<T>(place.row);
      std::fill(std::copy_n(from, args.q.columns, keys), keys + width, T{0});
      keys += width;
    }
  }

  int64_t size() const { return static_cast<int64_t>(places_.size()); }
  int64_t longest_leaf() const { return longest_; }
  const int64_t* leaf_begin() const { return begin_.data(); }

 private:
  struct Place {
    bool in_window;
    int64_t row;
  };

  static void collect(const int32_t* index, int64_t count, int64_t rows, std::vector<int64_t>& to) {
    for (int64_t i = 0; i < count; ++i) {
      DEEPINFER_ASSERT(index[i] >= -1 && index[i] < rows,
                       "index " << index[i] << " of " << rows << " rows");
      if (index[i] >= 0) to.push_back(index[i]);
    }
    if (!std::is_sorted(to.begin(), to.end())) std::sort(to.begin(), to.end());
  }
  void place(std::array<int64_t, kAttentionLeaves + 1>& next, int64_t leaf, Place key) {
    places_[static_cast<size_t>(next[static_cast<size_t>(leaf)]++)] = key;
  }

  std::vector<int64_t> window_, compressed_;
  std::vector<Place> places_;
  std::array<int64_t, kAttentionLeaves + 1> begin_ = {};
  int64_t longest_ = 0;
};

template <typename T>
void attend_rows(const SparseAttention& args, const AttentionKernels& kernels, Target target) {
  const int64_t heads = args.heads, channels = args.q.columns;
  const int64_t width = padded(channels), head_stride = padded(heads);
  KeyList list;
  std::vector<T> keys;
  std::vector<float> dots, scratch;
  for (int64_t t = 0; t < args.q.rows / heads; ++t) {
    list.build(args, t);
    const int64_t count = list.size();
    keys.resize(static_cast<size_t>(count * width));
    dots.resize(static_cast<size_t>(count * head_stride));
    scratch.resize(static_cast<size_t>(attention_scratch_floats(width, list.longest_leaf())));
    list.gather(args, width, keys.data());
    const RowView values = view(keys.data(), count, width);
    const RowView q{args.q.type,
                    args.q.type == ElementType::kBf16
                        ? static_cast<const void*>(args.q.row<uint16_t>(t * heads))
                        : static_cast<const void*>(args.q.row<float>(t * heads)),
                    heads, channels, args.q.row_stride};
    // Keys times queries, so that the heads of a key lie side by side.
    gemm(count, heads, channels, operand(values), operand(q), fp32_output(dots.data(), head_stride),
         {.target = target});
    MutableRowView out = args.out;
    out.data = out.type == ElementType::kBf16
                   ? static_cast<void*>(args.out.row<uint16_t>(t * heads))
                   : static_cast<void*>(args.out.row<float>(t * heads));
    const AttentionRow row = {dots.data(),
                              head_stride,
                              list.leaf_begin(),
                              values,
                              heads,
                              channels,
                              args.sink,
                              args.scale,
                              args.narrow,
                              out,
                              args.lse + t * heads,
                              scratch.data()};
    run_canonical(kernels, scalar_attention_kernels(),
                  [&](const AttentionKernels& chosen) { chosen.attend(row); });
  }
}

}  // namespace

void compress_pool(const float* values, const float* gates, int64_t groups, int64_t tokens,
                   int64_t channels, float* pooled, Target target) {
  DEEPINFER_ASSERT(tokens > 0, "tokens " << tokens);
  run_canonical(attention_kernels(target), scalar_attention_kernels(),
                [&](const AttentionKernels& kernels) {
                  kernels.compress_pool(values, gates, groups, tokens, channels, pooled);
                });
}

void sparse_attention(const SparseAttention& args, Target target) {
  DEEPINFER_ASSERT(args.heads > 0 && args.q.rows % args.heads == 0 &&
                       args.out.rows == args.q.rows && args.out.columns == args.q.columns &&
                       args.window_first_position >= 0,
                   "q [" << args.q.rows << ", " << args.q.columns << "], heads " << args.heads
                         << ", out [" << args.out.rows << ", " << args.out.columns
                         << "], first position " << args.window_first_position);
  DEEPINFER_ASSERT((args.window_count == 0 || args.window.columns == args.q.columns) &&
                       (args.compressed_count == 0 || args.compressed.columns == args.q.columns) &&
                       (args.window_count == 0 || args.compressed_count == 0 ||
                        args.window.type == args.compressed.type),
                   "window of " << args.window.columns << " columns, compressed of "
                                << args.compressed.columns << ", q of " << args.q.columns
                                << ", or two types of keys");
  const AttentionKernels& kernels = attention_kernels(target);
  const ElementType type = args.window_count > 0 ? args.window.type : args.compressed.type;
  if (type == ElementType::kBf16) {
    attend_rows<uint16_t>(args, kernels, target);
  } else {
    attend_rows<float>(args, kernels, target);
  }
}

}  // namespace deepinfer
#endif  // HWY_ONCE
