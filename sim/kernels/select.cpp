// Scores on a target, selections in integer code.
#include "sim/kernels/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/kernels/select.cpp"
#include <hwy/foreach_target.h>

#include "sim/kernels/select-inl.h"

#if HWY_ONCE
#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "platform/errors.h"
#include "sim/kernels/canonical_run.h"
#include "sim/kernels/codec.h"
#include "sim/kernels/gemm.h"
#include "sim/kernels/select.h"

namespace deepinfer {
namespace {

const SelectKernels& select_kernels(Target target) {
  DEEPINFER_SIM_SELECT_TARGET(target, kSelectKernels);
  return scalar_select_kernels();
}

constexpr uint32_t kSignBit = 0x80000000u;
constexpr uint32_t kInfinityBits = 0x7F800000u;
// Above every number: the candidate block that is always kept.
constexpr uint32_t kPinned = 0xFFFFFFFFu;

// Larger numbers have larger keys, -0 and +0 one key, -inf key 0. Without branches, so that loops
// vectorise.
uint32_t key_of(float value) {
  const uint32_t given = std::bit_cast<uint32_t>(value);
  const uint32_t bits = given == kSignBit ? 0 : given;
  const uint32_t all_if_negative = static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31);
  return given == (kSignBit | kInfinityBits) ? 0 : bits ^ (all_if_negative | kSignBit);
}
// The number that has a key: +0 for zeros.
float value_of(uint32_t key) {
  if (key == 0) return -std::numeric_limits<float>::infinity();
  return std::bit_cast<float>((key & kSignBit) != 0 ? key ^ kSignBit : ~key);
}
bool is_nan_bits(float value) {
  return (std::bit_cast<uint32_t>(value) & ~kSignBit) > kInfinityBits;
}

// Keys of `count` numbers. False if one is NaN.
bool make_keys(const float* values, int64_t count, uint32_t* keys) {
  uint32_t nan = 0;
  for (int64_t i = 0; i < count; ++i) {
    nan |= is_nan_bits(values[i]) ? 1u : 0u;
    keys[i] = key_of(values[i]);
  }
  return nan == 0;
}

// The k-th largest of more than k keys, and how many are larger: digits of 11, 11 and 10 bits, most
// significant first.
struct Threshold {
  uint32_t key;
  int64_t larger;
};
Threshold kth_largest(const uint32_t* keys, int64_t count, int64_t k) {
  struct Digit {
    int shift, bits;
  };
  constexpr std::array<Digit, 3> kDigits = {{{21, 11}, {10, 11}, {0, 10}}};
  uint32_t prefix = 0, known = 0;  // the digits found, and a mask of them
  int64_t larger = 0;
  for (const Digit digit : kDigits) {
    std::array<int64_t, 2048> histogram = {};
    const uint32_t mask = (1u << digit.bits) - 1;
    for (int64_t i = 0; i < count; ++i) {
      if ((keys[i] & known) == prefix) ++histogram[(keys[i] >> digit.shift) & mask];
    }
    uint32_t value = mask;
    while (larger + histogram[value] < k) larger += histogram[value--];
    prefix |= value << digit.shift;
    known |= mask << digit.shift;
  }
  return {prefix, larger};
}

// C8.1 on keys; key 0 is never chosen.
void select_largest(const uint32_t* keys, int64_t count, int64_t k, int32_t* indices) {
  int64_t chosen = 0;
  if (k > 0) {
    const int64_t valid = count - std::count(keys, keys + count, 0u);
    // With few entries all are taken.
    const Threshold threshold = valid > k ? kth_largest(keys, count, k) : Threshold{1, valid};
    int64_t equal = valid > k ? k - threshold.larger : valid;
    for (int64_t i = 0; i < count && chosen < k; ++i) {
      if (keys[i] < threshold.key) continue;
      if (keys[i] == threshold.key && equal-- <= 0) continue;
      indices[chosen++] = static_cast<int32_t>(i);
    }
  }
  std::fill(indices + chosen, indices + k, -1);
}

// Numbers 0 .. largest as bits: tells whether numbers differ, and gives them back in order. One
// pass each over the numbers; no sort.
class IndexSet {
 public:
  explicit IndexSet(int32_t largest) : words_(static_cast<size_t>((int64_t{largest} + 64) / 64)) {}

  void insert(int32_t index) {
    const size_t word = word_of(index);
    words_[word] |= bit_of(index);
    first_ = std::min(first_, word), last_ = std::max(last_, word);
  }
  // Negative numbers are left out. False if one was there already.
  bool insert_distinct(std::span<const int32_t> indices) {
    uint64_t repeated = 0;
    for (const int32_t index : indices) {
      if (index < 0) continue;
      uint64_t& word = words_[word_of(index)];
      repeated |= word & bit_of(index);
      word |= bit_of(index);
    }
    return repeated == 0;
  }
  void clear(std::span<const int32_t> indices) {
    for (const int32_t index : indices) {
      if (index >= 0) words_[word_of(index)] = 0;
    }
  }
  // Writes what was inserted, ascending; the set is empty then.
  void take_ascending(int32_t* to) {
    for (size_t i = first_; i < words_.size() && i <= last_; ++i) {
      for (uint64_t word = std::exchange(words_[i], 0); word != 0; word &= word - 1) {
        *to++ = static_cast<int32_t>(i * 64) + std::countr_zero(word);
      }
    }
    first_ = words_.size(), last_ = 0;
  }

 private:
  static size_t word_of(int32_t index) { return static_cast<uint32_t>(index) / 64; }
  static uint64_t bit_of(int32_t index) {
    return uint64_t{1} << (static_cast<uint32_t>(index) % 64);
  }

  std::vector<uint64_t> words_;
  size_t first_ = words_.size(), last_ = 0;  // where insert() was
};

// Keys of pairs; 0, which is never chosen, for unused places.
MergeFault make_pair_keys(const float* values, std::span<const int32_t> indices, uint32_t* keys) {
  uint32_t nan = 0, negative = 0;
  for (size_t i = 0; i < indices.size(); ++i) {
    const uint32_t all_if_used = ~static_cast<uint32_t>(indices[i] >> 31);
    negative |= static_cast<uint32_t>(indices[i] < -1);
    nan |= static_cast<uint32_t>(is_nan_bits(values[i])) & all_if_used;
    keys[i] = key_of(values[i]) & all_if_used;
  }
  if (negative != 0) return MergeFault::kNegativeIndex;
  return nan != 0 ? MergeFault::kNan : MergeFault::kNone;
}

// C8.1 on pairs: puts the indices of the k best into `chosen`, and returns how many there are.
// `scratch` has their size.
int64_t merge_row(std::span<const uint32_t> keys, std::span<const int32_t> indices, int64_t k,
                  std::span<int32_t> scratch, IndexSet& chosen) {
  if (k == 0) return 0;
  const int64_t count = static_cast<int64_t>(keys.size());
  const int64_t valid = count - std::count(keys.begin(), keys.end(), 0u);
  // With few pairs all are taken.
  Threshold threshold{1, valid};
  int32_t last_tie = std::numeric_limits<int32_t>::max();  // the largest index that the key admits
  if (valid > k) {
    threshold = kth_largest(keys.data(), count, k);
    size_t tied = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (keys[i] == threshold.key) scratch[tied++] = indices[i];
    }
    const auto last = scratch.begin() + (k - threshold.larger - 1);
    std::nth_element(scratch.begin(), last, scratch.begin() + static_cast<int64_t>(tied));
    last_tie = *last;
  }
  // Without a branch that nobody can predict.
  size_t taken = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    scratch[taken] = indices[i];
    const bool above = keys[i] > threshold.key, equal = keys[i] == threshold.key;
    taken += static_cast<size_t>(above | (equal & (indices[i] <= last_tie)));
  }
  for (size_t i = 0; i < taken; ++i) chosen.insert(scratch[i]);
  return static_cast<int64_t>(taken);
}

// Neighbouring columns [begin, end) of one block.
struct BlockRun {
  int64_t begin, end, block;
};
std::vector<BlockRun> block_runs(const int64_t* column_blocks, int64_t columns) {
  std::vector<BlockRun> runs;
  for (int64_t begin = 0; begin < columns;) {
    const int64_t block = column_blocks[begin];
    DEEPINFER_ASSERT(block >= 0, "column " << begin << " in block " << block);
    int64_t end = begin + 1;
    while (end < columns && column_blocks[end] == block) ++end;
    runs.push_back({begin, end, block});
    begin = end;
  }
  return runs;
}

void check_scores(const char* name, const RowView& scores) {
  DEEPINFER_ASSERT(
      scores.type == ElementType::kFp32 && scores.columns <= std::numeric_limits<int32_t>::max(),
      name << ": fp32 scores with int32 indices expected, columns " << scores.columns);
}

GemmOperand operand(const RowView& x) {
  return x.type == ElementType::kBf16
             ? bf16_operand(static_cast<const uint16_t*>(x.data), x.row_stride)
             : fp32_operand(static_cast<const float*>(x.data), x.row_stride);
}

// `count` elements of a row as fp32.
void widen_row(const RowView& x, int64_t row, float* wide, Target target) {
  const size_t count = static_cast<size_t>(x.columns);
  if (x.type == ElementType::kBf16) {
    fp32_from_bf16({x.row<uint16_t>(row), count}, {wide, count}, target);
  } else {
    std::copy_n(x.row<float>(row), count, wide);
  }
}

// Dots of one step of index_score: at most 4 MiB.
constexpr int64_t kIndexKeys = 2048;
constexpr int64_t kIndexDots = int64_t{1} << 20;

}  // namespace

void index_score(const IndexScore& args, Target target) {
  const int64_t rows = args.weights.rows, heads = args.weights.columns, keys = args.keys.rows;
  DEEPINFER_ASSERT(args.q.rows == rows * heads && args.keys.columns == args.q.columns,
                   "q [" << args.q.rows << ", " << args.q.columns << "], weights [" << rows << ", "
                         << heads << "], keys [" << keys << ", " << args.keys.columns << "]");
  const SelectKernels& kernels = select_kernels(target);
  const int64_t width = std::min(kIndexKeys, keys);
  const int64_t step = std::clamp<int64_t>(kIndexDots / std::max<int64_t>(heads * width, 1), 1,
                                           std::max<int64_t>(rows, 1));
  std::vector<float> dots(static_cast<size_t>(step * heads * width));
  std::vector<float> weights(static_cast<size_t>(heads));
  for (int64_t t0 = 0; t0 < rows; t0 += step) {
    const int64_t now = std::min(step, rows - t0);
    const int64_t seen =
        std::clamp<int64_t>(*std::max_element(args.visible + t0, args.visible + t0 + now), 0, keys);
    for (int64_t j0 = 0; j0 < seen; j0 += width) {
      const int64_t count = std::min(width, seen - j0);
      gemm(now * heads, count, args.q.columns, operand(args.q).from_row(t0 * heads),
           operand(args.keys).from_row(j0), fp32_output(dots.data(), width), {.target = target});
      for (int64_t t = 0; t < now; ++t) {
        widen_row(args.weights, t0 + t, weights.data(), target);
        float* scores = args.scores + (t0 + t) * args.score_stride + j0;
        run_canonical(kernels, scalar_select_kernels(), [&](const SelectKernels& chosen) {
          chosen.index_score(dots.data() + t * heads * width, width, weights.data(), heads, count,
                             args.narrow, scores);
        });
      }
    }
    for (int64_t t = t0; t < t0 + now; ++t) {
      const int64_t visible = std::clamp<int64_t>(args.visible[t], 0, keys);
      float* row = args.scores + t * args.score_stride;
      std::fill(row + visible, row + keys, -std::numeric_limits<float>::infinity());
    }
  }
}

int64_t topk_select(const RowView& scores, int64_t k, int32_t* indices) {
  check_scores("topk_select", scores);
  DEEPINFER_ASSERT(k >= 0, "k " << k);
  std::vector<uint32_t> keys(static_cast<size_t>(scores.columns));
  for (int64_t row = 0; row < scores.rows; ++row) {
    if (!make_keys(scores.row<float>(row), scores.columns, keys.data())) return row;
    select_largest(keys.data(), scores.columns, k, indices + row * k);
  }
  return -1;
}

MergeStatus topk_merge(const RowView& scores, const int32_t* indices, int64_t k, int32_t* chosen) {
  check_scores("topk_merge", scores);
  DEEPINFER_ASSERT(k >= 0, "k " << k);
  const int64_t count = scores.columns;
  int32_t largest = -1;
  for (int64_t i = 0; i < scores.rows * count; ++i) largest = std::max(largest, indices[i]);
  IndexSet present(largest);
  std::vector<uint32_t> keys(static_cast<size_t>(count));
  std::vector<int32_t> scratch(keys.size());
  for (int64_t row = 0; row < scores.rows; ++row) {
    const std::span<const int32_t> index(indices + row * count, static_cast<size_t>(count));
    const MergeFault fault = make_pair_keys(scores.row<float>(row), index, keys.data());
    if (fault != MergeFault::kNone) return {fault, row};
    if (!present.insert_distinct(index)) return {MergeFault::kRepeatedIndex, row};
    present.clear(index);
    const int64_t taken = merge_row(keys, index, k, scratch, present);
    present.take_ascending(chosen + row * k);
    std::fill(chosen + row * k + taken, chosen + (row + 1) * k, -1);
  }
  return {};
}

int64_t candidate_blocks(const RowView& scores, const int64_t* visible, int64_t block_size,
                         int64_t max_blocks, int32_t* blocks) {
  check_scores("candidate_blocks", scores);
  DEEPINFER_ASSERT(block_size > 0 && max_blocks > 0,
                   "block size " << block_size << ", blocks " << max_blocks);
  const int64_t count = (scores.columns + block_size - 1) / block_size;
  std::vector<uint32_t> keys(static_cast<size_t>(scores.columns)), best(static_cast<size_t>(count));
  for (int64_t row = 0; row < scores.rows; ++row) {
    if (!make_keys(scores.row<float>(row), scores.columns, keys.data())) return row;
    for (int64_t b = 0; b < count; ++b) {
      const auto begin = keys.begin() + b * block_size;
      best[static_cast<size_t>(b)] =
          *std::max_element(begin, begin + std::min(block_size, scores.columns - b * block_size));
    }
    // A row that sees nothing keeps no block.
    const int64_t newest = (visible[row] - 1) / block_size;
    if (visible[row] > 0 && newest < count) best[static_cast<size_t>(newest)] = kPinned;
    select_largest(best.data(), count, max_blocks, blocks + row * max_blocks);
  }
  return -1;
}

void candidate_mask(const RowView& scores, const int32_t* blocks, int64_t block_count,
                    const int64_t* column_blocks, const MutableRowView& masked) {
  check_scores("candidate_mask", scores);
  DEEPINFER_ASSERT(masked.type == ElementType::kFp32 && masked.rows == scores.rows &&
                       masked.columns == scores.columns,
                   "scores [" << scores.rows << ", " << scores.columns << "], masked ["
                              << masked.rows << ", " << masked.columns << "]");
  const std::vector<BlockRun> runs = block_runs(column_blocks, scores.columns);
  int64_t count = 0;  // of the blocks that columns may be in
  for (const BlockRun& run : runs) count = std::max(count, run.block + 1);
  std::vector<bool> keep(static_cast<size_t>(count));
  for (int64_t row = 0; row < scores.rows; ++row) {
    const std::span<const int32_t> listed(blocks + row * block_count,
                                          static_cast<size_t>(block_count));
    for (const int32_t block : listed) {
      DEEPINFER_ASSERT(block >= -1, "block " << block);
      if (block >= 0 && block < count) keep[static_cast<size_t>(block)] = true;
    }
    const float* from = scores.row<float>(row);
    float* to = masked.row<float>(row);
    for (const BlockRun& run : runs) {
      if (!keep[static_cast<size_t>(run.block)]) {
        std::fill(to + run.begin, to + run.end, -std::numeric_limits<float>::infinity());
      } else if (from != to) {
        std::copy(from + run.begin, from + run.end, to + run.begin);
      }
    }
    for (const int32_t block : listed) {
      if (block >= 0 && block < count) keep[static_cast<size_t>(block)] = false;
    }
  }
}

int64_t block_maxima(const RowView& scores, const int64_t* column_blocks,
                     const MutableRowView& maxima) {
  check_scores("block_maxima", scores);
  DEEPINFER_ASSERT(maxima.type == ElementType::kFp32 && maxima.rows == scores.rows,
                   "maxima of " << maxima.rows << " rows, scores of " << scores.rows);
  const std::vector<BlockRun> runs = block_runs(column_blocks, scores.columns);
  for (const BlockRun& run : runs) {
    DEEPINFER_ASSERT(run.block < maxima.columns, "block " << run.block << " of " << maxima.columns);
  }
  std::vector<uint32_t> keys(static_cast<size_t>(scores.columns)),
      best(static_cast<size_t>(maxima.columns));
  for (int64_t row = 0; row < scores.rows; ++row) {
    if (!make_keys(scores.row<float>(row), scores.columns, keys.data())) return row;
    std::fill(best.begin(), best.end(), 0u);
    for (const BlockRun& run : runs) {
      uint32_t largest = best[static_cast<size_t>(run.block)];
      for (int64_t i = run.begin; i < run.end; ++i) {
        largest = std::max(largest, keys[static_cast<size_t>(i)]);
      }
      best[static_cast<size_t>(run.block)] = largest;
    }
    std::transform(best.begin(), best.end(), maxima.row<float>(row), value_of);
  }
  return -1;
}

int64_t greedy_sample(const RowView& logits, int64_t* ids) {
  DEEPINFER_ASSERT(logits.type == ElementType::kFp32 && (logits.rows == 0 || logits.columns > 0),
                   "logits [" << logits.rows << ", " << logits.columns << "]");
  std::vector<uint32_t> keys(static_cast<size_t>(logits.columns));
  for (int64_t row = 0; row < logits.rows; ++row) {
    if (!make_keys(logits.row<float>(row), logits.columns, keys.data())) return row;
    ids[row] = std::max_element(keys.begin(), keys.end()) - keys.begin();
  }
  return -1;
}

int64_t moe_gate(const MoeGate& args, Target target) {
  const int64_t experts = args.weight.rows, columns = args.x.columns;
  DEEPINFER_ASSERT(args.weight.columns == columns && args.k > 0 && args.k <= experts,
                   "x of " << columns << " columns, weight [" << experts << ", "
                           << args.weight.columns << "], k " << args.k);
  const SelectKernels& kernels = select_kernels(target);
  // The order is C2.2 whatever the types: x goes in as fp32.
  std::vector<float> x(static_cast<size_t>(args.x.rows * columns));
  for (int64_t t = 0; t < args.x.rows; ++t) widen_row(args.x, t, x.data() + t * columns, target);
  std::vector<float> dots(static_cast<size_t>(args.x.rows * experts));
  gemm(args.x.rows, experts, columns, fp32_operand(x.data(), columns), operand(args.weight),
       fp32_output(dots.data(), experts), {.target = target});

  const size_t k = static_cast<size_t>(args.k);
  std::vector<float> scores(static_cast<size_t>(experts)), biased(scores.size()), chosen(k);
  std::vector<uint32_t> keys(scores.size());
  std::vector<int32_t> order(scores.size());
  for (int64_t t = 0; t < args.x.rows; ++t) {
    run_canonical(kernels, scalar_select_kernels(), [&](const SelectKernels& choice) {
      choice.gate_scores(dots.data() + t * experts, args.bias + t * args.bias_stride, experts,
                         args.gate_temp, scores.data(), biased.data());
    });
    if (!make_keys(biased.data(), experts, keys.data())) return t;
    std::iota(order.begin(), order.end(), 0);
    const auto before = [&keys](int32_t a, int32_t b) {
      const uint32_t key_a = keys[static_cast<size_t>(a)], key_b = keys[static_cast<size_t>(b)];
      return key_a != key_b ? key_a > key_b : a < b;
    };
    std::partial_sort(order.begin(), order.begin() + args.k, order.end(), before);
    int64_t count = 0;
    while (count < args.k && keys[static_cast<size_t>(order[static_cast<size_t>(count)])] != 0) {
      chosen[static_cast<size_t>(count)] =
          scores[static_cast<size_t>(order[static_cast<size_t>(count)])];
      ++count;
    }
    int32_t* to = args.experts + t * args.k;
    float* weights = args.weights + t * args.k;
    std::copy_n(order.begin(), count, to);
    std::fill(to + count, to + args.k, -1);
    std::fill(weights, weights + args.k, 0.0f);
    run_canonical(kernels, scalar_select_kernels(), [&](const SelectKernels& choice) {
      choice.gate_weights(chosen.data(), count, args.scaling, weights);
    });
  }
  return -1;
}

}  // namespace deepinfer
#endif  // HWY_ONCE
