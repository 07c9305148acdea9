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

constexpr int64_t kPadding = 16;  // of heads and channels, to whole groups of lanes

int64_t padded(int64_t count) { return (count + kPadding - 1) / kPadding * kPadding; }

size_t element_bytes(ElementType type) {
  return type == ElementType::kBf16 ? sizeof(uint16_t) : sizeof(float);
}
// Rows [first, first + count).
RowView rows_from(const RowView& x, int64_t first, int64_t count) {
  RowView part = x;
  part.data = static_cast<const uint8_t*>(x.data) +
              static_cast<size_t>(first * x.row_stride) * element_bytes(x.type);
  part.rows = count;
  return part;
}
MutableRowView rows_from(const MutableRowView& x, int64_t first, int64_t count) {
  MutableRowView part = x;
  part.data = static_cast<uint8_t*>(x.data) +
              static_cast<size_t>(first * x.row_stride) * element_bytes(x.type);
  part.rows = count;
  return part;
}

GemmOperand operand(const RowView& x) {
  return x.type == ElementType::kBf16
             ? bf16_operand(static_cast<const uint16_t*>(x.data), x.row_stride)
             : fp32_operand(static_cast<const float*>(x.data), x.row_stride);
}

// The first `count` elements of a buffer that grows as needed and does not shrink.
template <typename T>
T* at_least(std::vector<T>& buffer, int64_t count) {
  if (buffer.size() < static_cast<size_t>(count)) buffer.resize(static_cast<size_t>(count));
  return buffer.data();
}

// Tree positions of the leaves of KV tiles.
const std::array<int64_t, kCanonicalLeaves>& position_of_leaf() {
  static const std::array<int64_t, kCanonicalLeaves> positions = [] {
    const ShardMap map = ShardMap::interleaved("KV tiles", 1);
    std::array<int64_t, kCanonicalLeaves> made;
    for (size_t leaf = 0; leaf < made.size(); ++leaf) {
      made[leaf] = map.position_of_leaf(static_cast<int64_t>(leaf));
    }
    return made;
  }();
  return positions;
}

// A key of a row's list.
struct ListedKey {
  bool in_window;
  int64_t row;       // of window, or of compressed
  int64_t position;  // in the tree
};

// The keys of one row in the order of tree positions, which are a range: at a position (a leaf) the
// window's ascending, then the compressed (C7.3).
class KeyList {
 public:
  explicit KeyList(IndexRange positions)
      : positions_(positions), begin_(static_cast<size_t>(positions.count()) + 1) {}

  // window(i) and entry(i) are the tree positions of row i of window and of compressed. Returns a
  // key outside of the range, if there is one.
  template <typename Window, typename Entry>
  std::optional<ListedKey> build(const AttentionLists& lists, int64_t row, const Window& window,
                                 const Entry& entry) {
    listed_.clear();
    collect(lists.window_index + row * lists.window_count, lists.window_count, lists.window.rows);
    for (const int64_t i : rows_) listed_.push_back({true, i, window(i)});
    collect(lists.compressed_index + row * lists.compressed_count, lists.compressed_count,
            lists.compressed.rows);
    for (const int64_t i : rows_) listed_.push_back({false, i, entry(i)});

    std::fill(begin_.begin(), begin_.end(), 0);
    for (const ListedKey& key : listed_) {
      if (!positions_.contains(key.position)) return key;
      ++begin_[place(key) + 1];
    }
    longest_ = *std::max_element(begin_.begin(), begin_.end());
    for (size_t i = 1; i < begin_.size(); ++i) begin_[i] += begin_[i - 1];
    next_ = begin_;
    keys_.resize(listed_.size());
    for (const ListedKey& key : listed_) keys_[static_cast<size_t>(next_[place(key)]++)] = key;
    return {};
  }

  const std::vector<ListedKey>& keys() const { return keys_; }
  int64_t longest_leaf() const { return longest_; }
  int64_t first_position() const { return positions_.begin; }
  const int64_t* position_begin() const { return begin_.data(); }

 private:
  // The used ones of `index`, ascending, to rows_.
  void collect(const int32_t* index, int64_t count, int64_t rows) {
    rows_.clear();
    for (int64_t i = 0; i < count; ++i) {
      DEEPINFER_ASSERT(index[i] >= -1 && index[i] < rows,
                       "index " << index[i] << " of " << rows << " rows");
      if (index[i] >= 0) rows_.push_back(index[i]);
    }
    if (!std::is_sorted(rows_.begin(), rows_.end())) std::sort(rows_.begin(), rows_.end());
  }
  size_t place(const ListedKey& key) const {
    return static_cast<size_t>(key.position - positions_.begin);
  }

  IndexRange positions_;
  std::vector<int64_t> begin_, next_;  // [positions + 1]
  std::vector<int64_t> rows_;
  std::vector<ListedKey> listed_, keys_;
  int64_t longest_ = 0;
};

// The keys of one row side by side, and their products with its heads. Memory is kept from row to
// row.
class GatheredKeys {
 public:
  GatheredKeys(const AttentionLists& lists, Target target)
      : lists_(lists),
        target_(target),
        type_(lists.window_count > 0 ? lists.window.type : lists.compressed.type),
        width_(padded(lists.q.columns)),
        head_stride_(padded(lists.heads)) {}

  // Valid until the next call.
  AttentionRow gather(int64_t row, const KeyList& list) {
    const int64_t count = static_cast<int64_t>(list.keys().size());
    const size_t key_bytes = static_cast<size_t>(lists_.q.columns) * element_bytes(type_);
    const size_t width_bytes = static_cast<size_t>(width_) * element_bytes(type_);
    uint8_t* to = at_least(keys_, count * static_cast<int64_t>(width_bytes));
    const RowView values{type_, to, count, width_, width_};
    for (const ListedKey& key : list.keys()) {
      const RowView from = rows_from(key.in_window ? lists_.window : lists_.compressed, key.row, 1);
      std::copy_n(static_cast<const uint8_t*>(from.data), key_bytes, to);
      std::fill(to + key_bytes, to + width_bytes, uint8_t{0});
      to += width_bytes;
    }
    float* dots = at_least(dots_, count * head_stride_);
    if (count > 0) {
      // Keys times queries, so that the heads of a key lie side by side.
      gemm(count, lists_.heads, lists_.q.columns, operand(values),
           operand(rows_from(lists_.q, row * lists_.heads, lists_.heads)),
           fp32_output(dots, head_stride_), {.target = target_});
    }
    return {dots,
            head_stride_,
            list.position_begin(),
            list.first_position(),
            values,
            lists_.heads,
            lists_.q.columns,
            lists_.scale,
            at_least(scratch_, attention_scratch_floats(width_, list.longest_leaf()))};
  }

 private:
  const AttentionLists& lists_;
  const Target target_;
  const ElementType type_;
  const int64_t width_, head_stride_;
  std::vector<uint8_t> keys_;
  std::vector<float> dots_, scratch_;
};

// Partials to be merged, sorted by row.
class PartialsByRow {
 public:
  explicit PartialsByRow(const AttentionMerge& args)
      : args_(args), begin_(static_cast<size_t>(args.rows) + 1) {
    int64_t partials = 0;
    for (const int64_t count : args.partial_counts) partials += count;
    for (int64_t p = 0; p < partials; ++p) ++begin_[static_cast<size_t>(args.partial_rows[p]) + 1];
    for (size_t row = 1; row < begin_.size(); ++row) begin_[row] += begin_[row - 1];
    numbers_.resize(static_cast<size_t>(partials));
    subtrees_.resize(numbers_.size());
    std::vector<int64_t> next(begin_.begin(), begin_.end() - 1);
    int64_t p = 0;
    for (size_t s = 0; s < args.subtrees.size(); ++s) {
      for (const int64_t end = p + args.partial_counts[s]; p < end; ++p) {
        const auto place = static_cast<size_t>(next[static_cast<size_t>(args.partial_rows[p])]++);
        numbers_[place] = p;
        subtrees_[place] = args.subtrees[s];
      }
    }
  }

  PartialList of(int64_t row) const {
    const int64_t begin = begin_[static_cast<size_t>(row)];
    return {subtrees_.data() + begin,
            numbers_.data() + begin,
            begin_[static_cast<size_t>(row) + 1] - begin,
            args_.maximum,
            args_.sum,
            args_.partial_out,
            args_.partial_out_stride,
            args_.heads,
            args_.channels};
  }

 private:
  const AttentionMerge& args_;
  std::vector<int64_t> begin_;  // [rows + 1]
  std::vector<int64_t> numbers_;
  std::vector<Subtree> subtrees_;
};

void check_lists(const AttentionLists& args) {
  DEEPINFER_ASSERT(args.heads > 0 && args.q.rows % args.heads == 0,
                   "q of " << args.q.rows << " rows, heads " << args.heads);
  DEEPINFER_ASSERT((args.window_count == 0 || args.window.columns == args.q.columns) &&
                       (args.compressed_count == 0 || args.compressed.columns == args.q.columns) &&
                       (args.window_count == 0 || args.compressed_count == 0 ||
                        args.window.type == args.compressed.type),
                   "window of " << args.window.columns << " columns, compressed of "
                                << args.compressed.columns << ", q of " << args.q.columns
                                << ", or two types of keys");
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
  check_lists(args);
  DEEPINFER_ASSERT(args.out.rows == args.q.rows && args.out.columns == args.q.columns &&
                       args.window_first_position >= 0,
                   "q [" << args.q.rows << ", " << args.q.columns << "], out [" << args.out.rows
                         << ", " << args.out.columns << "], first position "
                         << args.window_first_position);
  const AttentionKernels& kernels = attention_kernels(target);
  const auto& positions = position_of_leaf();
  const auto entry = [&](int64_t i) {
    return positions[static_cast<size_t>(i / kKvTileEntries % kCanonicalLeaves)];
  };
  const auto window = [&](int64_t i) { return entry(args.window_first_position + i); };
  KeyList list({0, kCanonicalLeaves});
  GatheredKeys gathered(args, target);
  for (int64_t t = 0; t < args.q.rows / args.heads; ++t) {
    list.build(args, t, window, entry);
    const AttentionRow row = gathered.gather(t, list);
    const AttentionOutput output = {args.sink, rows_from(args.out, t * args.heads, args.heads),
                                    args.lse + t * args.heads};
    run_canonical(kernels, scalar_attention_kernels(),
                  [&](const AttentionKernels& chosen) { chosen.attend(row, args.narrow, output); });
  }
}

void attention_maximum(const AttentionLists& args, float* maximum, Target target) {
  check_lists(args);
  const AttentionKernels& kernels = attention_kernels(target);
  const auto first_leaf = [](int64_t) { return int64_t{0}; };  // leaves do not matter
  KeyList list({0, 1});
  GatheredKeys gathered(args, target);
  for (int64_t t = 0; t < args.q.rows / args.heads; ++t) {
    list.build(args, t, first_leaf, first_leaf);
    const AttentionRow row = gathered.gather(t, list);
    run_canonical(kernels, scalar_attention_kernels(), [&](const AttentionKernels& chosen) {
      chosen.maximum(row, maximum + t * args.heads);
    });
  }
}

std::optional<MisplacedKey> attention_partials(const AttentionPartials& args, Target target) {
  check_lists(args);
  DEEPINFER_ASSERT(args.positions.begin >= 0 && args.positions.begin <= args.positions.end &&
                       args.positions.end <= kCanonicalLeaves,
                   "positions " << args.positions.begin << " to " << args.positions.end);
  const AttentionKernels& kernels = attention_kernels(target);
  const auto& positions = position_of_leaf();
  const auto position_of = [&](int64_t index) {
    return positions[static_cast<size_t>(index / kKvTileEntries % kCanonicalLeaves)];
  };
  const auto window = [&](int64_t i) { return position_of(args.window_positions[i]); };
  const auto entry = [&](int64_t i) { return position_of(args.compressed_entries[i]); };
  const std::vector<Subtree> subtrees = maximal_subtrees(args.positions);
  KeyList list(args.positions);
  GatheredKeys gathered(args, target);
  for (int64_t t = 0; t < args.q.rows / args.heads; ++t) {
    if (const auto key = list.build(args, t, window, entry)) {
      return MisplacedKey{t, key->in_window, key->row, key->position};
    }
    const AttentionRow row = gathered.gather(t, list);
    const int64_t first = t * args.heads;
    const PartialRow partials = {subtrees.data(), static_cast<int64_t>(subtrees.size()),
                                 args.q.rows,     first,
                                 args.maximum,    args.sum,
                                 args.out};
    const float* list_maximum = args.list_maximum == nullptr ? nullptr : args.list_maximum + first;
    run_canonical(kernels, scalar_attention_kernels(), [&](const AttentionKernels& chosen) {
      chosen.partials(row, list_maximum, partials);
    });
  }
  return {};
}

void attention_merge(const AttentionMerge& args, Target target) {
  DEEPINFER_ASSERT(are_subtrees(args.subtrees, kCanonicalLeaves), args.subtrees.size()
                                                                      << " subtrees");
  DEEPINFER_ASSERT(args.out.rows == args.rows * args.heads && args.out.columns == args.channels,
                   args.rows << " rows of " << args.heads << " heads with " << args.channels
                             << " channels, out [" << args.out.rows << ", " << args.out.columns
                             << "]");
  DEEPINFER_ASSERT(args.partial_counts.size() == args.subtrees.size(), args.partial_counts.size()
                                                                           << " counts");
  const AttentionKernels& kernels = attention_kernels(target);
  std::vector<float> scratch(
      static_cast<size_t>(attention_scratch_floats(padded(args.channels), 0)));
  const PartialsByRow by_row(args);
  for (int64_t t = 0; t < args.rows; ++t) {
    const AttentionOutput output = {args.sink, rows_from(args.out, t * args.heads, args.heads),
                                    args.lse + t * args.heads};
    const PartialList partials = by_row.of(t);
    run_canonical(kernels, scalar_attention_kernels(), [&](const AttentionKernels& chosen) {
      chosen.merge(partials, output, scratch.data());
    });
  }
}

}  // namespace deepinfer
#endif  // HWY_ONCE
