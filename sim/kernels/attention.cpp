// Gathers a query's keys in the order of leaves, and runs attention on a target.
#include "sim/kernels/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/kernels/attention.cpp"
#include <hwy/foreach_target.h>

#include "sim/kernels/attention-inl.h"

#if HWY_ONCE
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "platform/errors.h"
#include "sim/kernels/attention.h"
#include "sim/kernels/canonical_run.h"
#include "sim/kernels/codec.h"
#include "sim/kernels/gemm.h"
#include "sim/kernels/gemm_internal.h"

namespace deepinfer {
namespace {

const AttentionKernels& attention_kernels(Target target) {
  DEEPINFER_SIM_SELECT_TARGET(target, kAttentionKernels);
  return scalar_attention_kernels();
}

int64_t padded(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

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

// The tree position of a position or entry of the KV axis.
class TreePositions {
 public:
  TreePositions() {
    const ShardMap map = ShardMap::interleaved("KV tiles", 1);
    for (size_t leaf = 0; leaf < of_leaf_.size(); ++leaf) {
      of_leaf_[leaf] = static_cast<uint8_t>(map.position_of_leaf(static_cast<int64_t>(leaf)));
    }
  }
  // index >= 0.
  uint8_t operator()(int64_t index) const {
    return of_leaf_[static_cast<uint64_t>(index) / kKvTileEntries % kCanonicalLeaves];
  }

 private:
  std::array<uint8_t, kCanonicalLeaves> of_leaf_;
};
const TreePositions& tree_positions() {
  static const TreePositions positions;
  return positions;
}

// A key of a row's list.
struct ListedKey {
  bool in_window;
  int64_t row;       // of window, or of compressed
  int64_t position;  // in the tree
};

// The keys of one row in the order of tree positions: at a position (a leaf) the window's
// ascending, then the compressed (C7.3). Memory is kept from row to row.
class KeyList {
 public:
  // Keys may be at `positions` only.
  KeyList(const AttentionLists& lists, IndexRange positions)
      : lists_(lists),
        allowed_(positions),
        rows_(static_cast<size_t>(lists.window_count + lists.compressed_count)),
        positions_(rows_.size()),
        keys_(rows_.size()) {}

  // The keys of a row, the window's ascending, then the compressed: for what looks at no positions.
  void build(int64_t row) {
    collect(row);
    for (size_t i = 0; i < in_window_; ++i) keys_[i] = key(lists_.window, i);
    for (size_t i = in_window_; i < count_; ++i) keys_[i] = key(lists_.compressed, i);
  }

  // window(i) and entry(i) are the tree positions of row i of window and of compressed. Returns a
  // key where none may be, if there is one.
  template <typename Window, typename Entry>
  std::optional<ListedKey> build(int64_t row, const Window& window, const Entry& entry) {
    collect(row);
    leaves_.fill({0, 0});
    present_ = count_keys(0, in_window_, window) | count_keys(in_window_, count_, entry);
    int32_t begin = 0;
    for (uint64_t left = present_; left != 0; left &= left - 1) {
      const int position = std::countr_zero(left);
      if (!allowed_.contains(position)) return first_at_wrong_place();
      LeafKeys& leaf = leaves_[static_cast<size_t>(position)];
      const int32_t keys = leaf.end;
      leaf = {begin, begin};
      begin += keys;
    }
    place_keys(0, in_window_, lists_.window);
    place_keys(in_window_, count_, lists_.compressed);
    return {};
  }

  const std::vector<const void*>& keys() const { return keys_; }  // the first count() of them
  int64_t count() const { return static_cast<int64_t>(count_); }
  uint64_t present() const { return present_; }
  const LeafKeys* leaves() const { return leaves_.data(); }

 private:
  void collect(int64_t row) {
    in_window_ = collect(lists_.window_index + row * lists_.window_count, lists_.window_count,
                         lists_.window.rows, rows_.data());
    count_ = in_window_ + collect(lists_.compressed_index + row * lists_.compressed_count,
                                  lists_.compressed_count, lists_.compressed.rows,
                                  rows_.data() + in_window_);
  }
  // The used ones of `index`, ascending. Returns how many.
  static size_t collect(const int32_t* index, int64_t count, int64_t rows, int32_t* to) {
    size_t used = 0;
    int32_t last = -1;
    bool ascending = true;
    for (int64_t i = 0; i < count; ++i) {
      const int32_t row = index[i];
      DEEPINFER_ASSERT(row >= -1 && row < rows, "index " << row << " of " << rows << " rows");
      to[used] = row;
      used += row >= 0 ? 1 : 0;
      ascending = ascending && (row < 0 || row >= last);
      last = row < 0 ? last : row;
    }
    if (!ascending) std::sort(to, to + used);
    return used;
  }

  // Counts keys by position, in the ends of leaves. Returns a bit for each position that has some.
  template <typename Position>
  uint64_t count_keys(size_t first, size_t last, const Position& position_of) {
    const int32_t* rows = rows_.data();
    uint8_t* positions = positions_.data();
    LeafKeys* leaves = leaves_.data();
    uint64_t present = 0;
    for (size_t i = first; i < last; ++i) {
      const uint8_t position = position_of(rows[i]);
      positions[i] = position;
      ++leaves[position].end;
      present |= uint64_t{1} << position;
    }
    return present;
  }
  const void* key(const RowView& from, size_t i) const {
    return static_cast<const uint8_t*>(from.data) +
           static_cast<size_t>(rows_[i] * from.row_stride) * element_bytes(from.type);
  }
  void place_keys(size_t first, size_t last, const RowView& from) {
    LeafKeys* leaves = leaves_.data();
    const void** keys = keys_.data();
    for (size_t i = first; i < last; ++i) keys[leaves[positions_[i]].end++] = key(from, i);
  }
  ListedKey first_at_wrong_place() const {
    size_t i = 0;
    while (allowed_.contains(positions_[i])) ++i;
    return {i < in_window_, rows_[i], positions_[i]};
  }

  const AttentionLists& lists_;
  const IndexRange allowed_;
  // Of the window's keys, ascending, then of the compressed.
  std::vector<int32_t> rows_;
  std::vector<uint8_t> positions_;
  size_t in_window_ = 0, count_ = 0;
  std::vector<const void*> keys_;
  std::array<LeafKeys, kCanonicalLeaves> leaves_ = {};
  uint64_t present_ = 0;
};

// Makes what kernels take from the keys of a row. Memory is kept from row to row.
class RowMaker {
 public:
  RowMaker(const AttentionLists& lists, Target target)
      : lists_(lists),
        target_(target),
        type_(lists.window_count > 0 ? lists.window.type : lists.compressed.type),
        width_(padded(lists.q.columns, kKeyChannels)),
        head_stride_(padded(lists.heads, kAttentionHeads)),
        by_gemm_(lists.heads > (type_ == ElementType::kBf16 && lists.q.type == ElementType::kBf16
                                    ? kMostDotHeads
                                    : kMostFp32DotHeads)) {
    check_available(target);
  }

  // Valid until the next call, and as long as `list` is not built again.
  AttentionRow make(int64_t row, const KeyList& list) {
    AttentionRow made{.key_type = type_,
                      .keys = list.keys().data(),
                      .key_count = list.count(),
                      .present = list.present(),
                      .leaves = list.leaves(),
                      .q = rows_from(lists_.q, row * lists_.heads, lists_.heads),
                      .dots = nullptr,
                      .dot_stride = 0,
                      .scale = lists_.scale,
                      .scratch = nullptr};
    made.scratch = scratch_.get<float>(
        attention_scratch_floats(padded(lists_.q.columns, kAttentionHeads), made.key_count));
    if (by_gemm_ || width_ != lists_.q.columns) gather(made);
    if (by_gemm_) {
      float* dots = dots_.get<float>(made.key_count * head_stride_);
      made.dots = dots, made.dot_stride = head_stride_;
      if (made.key_count > 0) {
        // Keys times queries, so that the heads of a key lie side by side.
        gemm(made.key_count, lists_.heads, lists_.q.columns,
             operand({type_, made.keys[0], made.key_count, width_, width_}), operand(made.q),
             fp32_output(dots, head_stride_), {.target = target_});
        // Lanes without a head.
        for (int64_t i = 0; i < made.key_count; ++i) {
          std::fill(dots + i * head_stride_ + lists_.heads, dots + (i + 1) * head_stride_, 0.0f);
        }
      }
    }
    return made;
  }

 private:
  // Copies the keys side by side, padded to whole blocks.
  void gather(AttentionRow& row) {
    const size_t key_bytes = static_cast<size_t>(lists_.q.columns) * element_bytes(type_);
    const size_t width_bytes = static_cast<size_t>(width_) * element_bytes(type_);
    uint8_t* to = bytes_.get<uint8_t>(row.key_count * static_cast<int64_t>(width_bytes));
    copies_.resize(static_cast<size_t>(row.key_count));
    for (size_t i = 0; i < copies_.size(); ++i, to += width_bytes) {
      std::memcpy(to, row.keys[i], key_bytes);
      if (key_bytes < width_bytes) std::memset(to + key_bytes, 0, width_bytes - key_bytes);
      copies_[i] = to;
    }
    row.keys = copies_.data();
  }

  const AttentionLists& lists_;
  const Target target_;
  const ElementType type_;
  const int64_t width_, head_stride_;
  const bool by_gemm_;  // dots of so many heads
  gemm_internal::Scratch bytes_, dots_, scratch_;
  std::vector<const void*> copies_;
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
  const TreePositions& entry = tree_positions();
  const auto window = [&](int64_t i) { return entry(args.window_first_position + i); };
  KeyList list(args, {0, kCanonicalLeaves});
  RowMaker maker(args, target);
  for (int64_t t = 0; t < args.q.rows / args.heads; ++t) {
    list.build(t, window, entry);
    const AttentionRow row = maker.make(t, list);
    const AttentionOutput output = {args.sink, rows_from(args.out, t * args.heads, args.heads),
                                    args.lse + t * args.heads};
    run_canonical(kernels, scalar_attention_kernels(),
                  [&](const AttentionKernels& chosen) { chosen.attend(row, args.narrow, output); });
  }
}

void attention_maximum(const AttentionLists& args, float* maximum, Target target) {
  check_lists(args);
  const AttentionKernels& kernels = attention_kernels(target);
  KeyList list(args, {0, kCanonicalLeaves});
  RowMaker maker(args, target);
  for (int64_t t = 0; t < args.q.rows / args.heads; ++t) {
    list.build(t);
    const AttentionRow row = maker.make(t, list);
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
  const TreePositions& position_of = tree_positions();
  const auto window = [&](int64_t i) { return position_of(args.window_positions[i]); };
  const auto entry = [&](int64_t i) { return position_of(args.compressed_entries[i]); };
  const std::vector<Subtree> subtrees = maximal_subtrees(args.positions);
  KeyList list(args, args.positions);
  RowMaker maker(args, target);
  for (int64_t t = 0; t < args.q.rows / args.heads; ++t) {
    if (const auto key = list.build(t, window, entry)) {
      return MisplacedKey{t, key->in_window, key->row, key->position};
    }
    const AttentionRow row = maker.make(t, list);
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
  gemm_internal::Scratch memory;
  float* scratch =
      memory.get<float>(attention_scratch_floats(padded(args.channels, kAttentionHeads), 0));
  const PartialsByRow by_row(args);
  for (int64_t t = 0; t < args.rows; ++t) {
    const AttentionOutput output = {args.sink, rows_from(args.out, t * args.heads, args.heads),
                                    args.lse + t * args.heads};
    const PartialList partials = by_row.of(t);
    run_canonical(kernels, scalar_attention_kernels(),
                  [&](const AttentionKernels& chosen) { chosen.merge(partials, output, scratch); });
  }
}

}  // namespace deepinfer
#endif  // HWY_ONCE
