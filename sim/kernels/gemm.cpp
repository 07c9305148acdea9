// The entry points of the GEMM kernels: checks, sharing among threads, groups, and the tree of
// leaves.
#include "sim/kernels/gemm.h"

#include <algorithm>
#include <array>
#include <bit>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "platform/errors.h"
#include "platform/shard_map.h"
#include "sim/kernels/float_scope.h"
#include "sim/kernels/gemm_internal.h"

namespace deepinfer {
namespace {

using gemm_internal::ceil_div;
using gemm_internal::GemmProblem;
using gemm_internal::kBlock;
using gemm_internal::kStripRows;
using gemm_internal::round_up;

constexpr int64_t kPartialBytes = 1 << 20;  // of one partial of the tree at a time, per level

bool is_scaled(GemmType type) { return type == GemmType::kFp8 || type == GemmType::kFp4; }

// Which kernel runs, decided once per call.
using Kernel = void (*)(const GemmProblem&);
Kernel kernel_for(Target target, const GemmOperand& a, const GemmOperand& w) {
  check_available(target);
  const bool is_fp32 = a.type == GemmType::kFp32 || w.type == GemmType::kFp32;
  if (target == Target::kAmx && !is_fp32) return gemm_internal::amx_gemm_bf16;
  const auto& kernels = gemm_internal::vector_gemm_kernels(target);
  return is_fp32 ? kernels.fp32 : kernels.bf16;
}

void check_operand(const GemmOperand& x, const char* name, int64_t rows, int64_t k) {
  if (rows == 0 || k == 0) return;
  DEEPINFER_ASSERT(x.data != nullptr,
                   "operand " << name << " [" << rows << ", " << k << "] has no data");
  DEEPINFER_ASSERT(x.scale_rows == 1 || x.scale_rows == kStripRows,
                   "operand " << name << ": a scale for " << x.scale_rows << " rows");
  DEEPINFER_ASSERT(x.scales == nullptr || is_scaled(x.type),
                   "operand " << name << " takes no scales");
}

void check_problem(const GemmProblem& p) {
  DEEPINFER_ASSERT(p.m >= 0 && p.n >= 0 && p.k >= 0, "M " << p.m << ", N " << p.n << ", K " << p.k);
  check_operand(p.a, "A", p.m, p.k);
  check_operand(p.w, "W", p.n, p.k);
  DEEPINFER_ASSERT(p.c.type == GemmType::kFp32 || p.c.type == GemmType::kBf16,
                   "output type " << static_cast<int>(p.c.type));
  DEEPINFER_ASSERT(p.m == 0 || p.n == 0 || p.c.data != nullptr, "no output");
}

// Runs part(0) .. part(parts - 1), the last on the calling thread, each in canonical floating-point
// mode.
void run_parts(int64_t parts, const std::function<void(int64_t)>& part) {
  std::vector<std::exception_ptr> errors(static_cast<size_t>(parts));
  const auto run = [&](int64_t i) {
    try {
      const FloatScope scope;
      part(i);
    } catch (...) {
      errors[static_cast<size_t>(i)] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int64_t i = 0; i + 1 < parts; ++i) threads.emplace_back(run, i);
    run(parts - 1);
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// Cuts [0, extent) into at most `threads` ranges whose borders are multiples of a strip, and runs
// them.
void run_ranges(int64_t extent, int threads,
                const std::function<void(int64_t begin, int64_t end)>& range) {
  const int64_t strips = ceil_div(extent, kStripRows);
  const int64_t parts = std::clamp<int64_t>(threads, 1, std::max<int64_t>(strips, 1));
  run_parts(parts, [&](int64_t i) {
    range(std::min(extent, strips * i / parts * kStripRows),
          std::min(extent, strips * (i + 1) / parts * kStripRows));
  });
}

// Columns [begin, end) of a problem; begin is a multiple of 32.
GemmProblem columns_of(const GemmProblem& p, int64_t begin, int64_t end) {
  return gemm_internal::part_of(p, 0, p.m, begin, end - begin);
}

// to[i] = to[i] + from[i], in the mode of the caller's scope.
[[gnu::noinline]] void add_to(float* to, const float* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = to[i] + from[i];
}

[[gnu::noinline]] void store_values(const float* from, int64_t rows, int64_t columns,
                                    const GemmOutput& c) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < columns; ++i) {
      gemm_internal::store_element(c, r, i, from[r * columns + i]);
    }
  }
}

// The tree C2.5 over a contiguous axis. leaf(i, to) writes leaf i's `count` values and returns
// true, or returns false if the leaf is absent. Leaf numbers pair as if there were 2^levels of
// them.
class LeafTree {
 public:
  LeafTree(int64_t leaves, int64_t count, std::function<bool(int64_t, float*)> leaf)
      : leaves_(leaves),
        count_(count),
        levels_(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(leaves, 1)) - 1)),
        leaf_(std::move(leaf)),
        spare_(static_cast<size_t>(levels_ * count)) {}

  // The combined values to `to`; +0 if all leaves are absent.
  void run(float* to) {
    if (!combine(0, levels_, to)) std::fill_n(to, count_, 0.0f);
  }

 private:
  // Leaves [first, first + 2^level).
  bool combine(int64_t first, int level, float* to) {
    if (first >= leaves_) return false;
    if (level == 0) return leaf_(first, to);
    const bool left = combine(first, level - 1, to);
    float* right_to = left ? spare_.data() + (level - 1) * count_ : to;
    const bool right = combine(first + (int64_t{1} << (level - 1)), level - 1, right_to);
    if (left && right) add_to(to, right_to, count_);
    return left || right;
  }

  int64_t leaves_;
  int64_t count_;
  int levels_;
  std::function<bool(int64_t, float*)> leaf_;
  std::vector<float> spare_;
};

void check_leaf_offsets(std::span<const int64_t> offsets) {
  DEEPINFER_ASSERT(!offsets.empty(), "no leaf offsets");
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    DEEPINFER_ASSERT(offsets[i] >= 0 && offsets[i] <= offsets[i + 1],
                     "leaf " << i << " from " << offsets[i] << " to " << offsets[i + 1]);
    DEEPINFER_ASSERT(offsets[i] % kBlock == 0 || offsets[i] == offsets.back(),
                     "leaf " << i << " starts at " << offsets[i]);
  }
}

// The product over one leaf's columns.
GemmProblem leaf_of(const GemmProblem& p, std::span<const int64_t> offsets, size_t leaf) {
  GemmProblem part = p;
  part.k = offsets[leaf + 1] - offsets[leaf];
  if (part.k > 0) {
    part.a = p.a.from_column(offsets[leaf]);
    part.w = p.w.from_column(offsets[leaf]);
  }
  return part;
}

}  // namespace

GemmOperand GemmOperand::from_row(int64_t row) const {
  GemmOperand part = *this;
  if (row == 0) return part;
  const int64_t element_bytes = type == GemmType::kFp32 ? 4 : type == GemmType::kBf16 ? 2 : 1;
  part.data = static_cast<const uint8_t*>(data) + row * row_stride * element_bytes;
  if (scales != nullptr) {
    DEEPINFER_ASSERT(row % scale_rows == 0,
                     "row " << row << " of " << scale_rows << " rows to a scale");
    part.scales = scales + row / scale_rows * scale_stride;
  }
  return part;
}

GemmOperand GemmOperand::from_column(int64_t k) const {
  GemmOperand part = *this;
  if (k == 0) return part;
  const uint8_t* bytes = static_cast<const uint8_t*>(data);
  DEEPINFER_ASSERT(type != GemmType::kFp4 || k % 2 == 0, "column " << k << " of packed fp4");
  part.data = bytes + (type == GemmType::kFp32   ? k * 4
                       : type == GemmType::kBf16 ? k * 2
                       : type == GemmType::kFp8  ? k
                                                 : k / 2);
  if (scales != nullptr) {
    DEEPINFER_ASSERT(k % kBlock == 0, "column " << k << " of a block-scaled operand");
    part.scales = scales + k / kBlock;
  }
  return part;
}

GemmOperand fp32_operand(const float* data, int64_t row_stride) {
  return {.type = GemmType::kFp32, .data = data, .row_stride = row_stride};
}
GemmOperand bf16_operand(const uint16_t* data, int64_t row_stride) {
  return {.type = GemmType::kBf16, .data = data, .row_stride = row_stride};
}
GemmOperand fp8_rows_operand(const uint8_t* codes, int64_t row_stride, const uint8_t* scales,
                             int64_t scale_stride) {
  return {GemmType::kFp8, codes, row_stride, scales, scale_stride, 1};
}
GemmOperand fp8_tiles_operand(const uint8_t* codes, int64_t row_stride, const uint8_t* scales,
                              int64_t scale_stride) {
  return {GemmType::kFp8, codes, row_stride, scales, scale_stride, kStripRows};
}
GemmOperand fp4_operand(const uint8_t* codes, int64_t row_stride, const uint8_t* scales,
                        int64_t scale_stride) {
  return {GemmType::kFp4, codes, row_stride, scales, scale_stride, 1};
}
GemmOutput fp32_output(float* data, int64_t row_stride) {
  return {GemmType::kFp32, data, row_stride};
}
GemmOutput bf16_output(uint16_t* data, int64_t row_stride) {
  return {GemmType::kBf16, data, row_stride};
}

void gemm(int64_t m, int64_t n, int64_t k, const GemmOperand& a, const GemmOperand& w,
          const GemmOutput& c, const GemmOptions& options) {
  const GemmProblem problem = {m, n, k, a, w, c};
  check_problem(problem);
  const Kernel kernel = kernel_for(options.target, a, w);
  // The longer of the two output axes is cut; each thread packs the other operand for itself.
  if (n >= m) {
    run_ranges(n, options.threads,
               [&](int64_t begin, int64_t end) { kernel(columns_of(problem, begin, end)); });
  } else {
    run_ranges(m, options.threads, [&](int64_t begin, int64_t end) {
      kernel(gemm_internal::part_of(problem, begin, end - begin, 0, n));
    });
  }
}

void gemm_grouped(std::span<const int64_t> row_offsets, int64_t n, int64_t k, const GemmOperand& a,
                  std::span<const GemmOperand> weights, const GemmOutput& c,
                  const GemmOptions& options) {
  DEEPINFER_ASSERT(row_offsets.size() == weights.size() + 1,
                   row_offsets.size() << " row offsets for " << weights.size() << " groups");
  std::vector<GemmProblem> problems;
  std::vector<Kernel> kernels;
  for (size_t g = 0; g < weights.size(); ++g) {
    const int64_t first = row_offsets[g];
    DEEPINFER_ASSERT(first >= 0 && first <= row_offsets[g + 1],
                     "group " << g << " from row " << first << " to " << row_offsets[g + 1]);
    if (first == row_offsets[g + 1]) continue;
    problems.push_back({row_offsets[g + 1] - first, n, k, a.from_row(first), weights[g],
                        gemm_internal::output_from(c, first, 0)});
    check_problem(problems.back());
    kernels.push_back(kernel_for(options.target, a, weights[g]));
  }
  // Every thread takes its columns of all groups: groups differ in rows, columns do not.
  run_ranges(n, options.threads, [&](int64_t begin, int64_t end) {
    for (size_t g = 0; g < problems.size(); ++g) kernels[g](columns_of(problems[g], begin, end));
  });
}

void gemm_leaf_partials(int64_t m, int64_t n, std::span<const int64_t> leaf_offsets,
                        const GemmOperand& a, const GemmOperand& w, float* partials,
                        const GemmOptions& options) {
  check_leaf_offsets(leaf_offsets);
  if (leaf_offsets.size() == 1) return;
  const GemmProblem whole = {m, n, leaf_offsets.back(), a, w, fp32_output(partials, n)};
  check_problem(whole);
  for (size_t leaf = 0; leaf + 1 < leaf_offsets.size(); ++leaf) {
    const GemmProblem part = leaf_of(whole, leaf_offsets, leaf);
    gemm(m, n, part.k, part.a, part.w,
         fp32_output(partials + static_cast<int64_t>(leaf) * m * n, n), options);
  }
}

void gemm_row_parallel(int64_t m, int64_t n, std::span<const int64_t> leaf_offsets,
                       const GemmOperand& a, const GemmOperand& w, const GemmOutput& c,
                       const GemmOptions& options) {
  check_leaf_offsets(leaf_offsets);
  const GemmProblem whole = {m, n, leaf_offsets.back(), a, w, c};
  check_problem(whole);
  if (m == 0 || n == 0) return;
  const Kernel kernel = kernel_for(options.target, a, w);
  const int64_t leaves = static_cast<int64_t>(leaf_offsets.size()) - 1;
  // Partials of a part of the columns at a time stay in a second-level cache.
  const int64_t step = std::max<int64_t>(kPartialBytes / 4 / m / kStripRows, 1) * kStripRows;
  run_ranges(n, options.threads, [&](int64_t range_begin, int64_t range_end) {
    for (int64_t begin = range_begin; begin < range_end; begin += step) {
      const GemmProblem part = columns_of(whole, begin, std::min(begin + step, range_end));
      const auto run_leaf = [&](int64_t leaf, float* to) {
        GemmProblem product = leaf_of(part, leaf_offsets, static_cast<size_t>(leaf));
        if (product.k == 0) return false;
        product.c = fp32_output(to, part.n);
        kernel(product);
        return true;
      };
      std::vector<float> sum(static_cast<size_t>(m * part.n));
      LeafTree(leaves, m * part.n, run_leaf).run(sum.data());
      store_values(sum.data(), m, part.n, part.c);
    }
  });
}

void gemm_subtree_partials(int64_t m, int64_t n, int64_t first_position,
                           std::span<const int64_t> leaf_offsets, const GemmOperand& a,
                           const GemmOperand& w, float* partials, const GemmOptions& options) {
  check_leaf_offsets(leaf_offsets);
  const int64_t leaves = static_cast<int64_t>(leaf_offsets.size()) - 1;
  for (const Subtree& subtree : maximal_subtrees({first_position, first_position + leaves})) {
    const auto offsets = leaf_offsets.subspan(static_cast<size_t>(subtree.begin - first_position),
                                              static_cast<size_t>(subtree.count) + 1);
    if (offsets.front() == offsets.back()) {
      std::fill_n(partials, m * n, -0.0f);
    } else {
      // A complete subtree: its leaves pair among themselves as they do in the whole tree.
      gemm_row_parallel(m, n, offsets, a, w, fp32_output(partials, n), options);
    }
    partials += m * n;
  }
}

namespace {

// Elements that the tree walks at once: a buffer of them for each level stays in a first-level
// cache.
constexpr int64_t kTreeChunk = 512;

// The tree C2.5 over partials that lie in memory, `count` <= kTreeChunk values of each from `begin`
// on.
class PartialTree {
 public:
  explicit PartialTree(std::span<const float* const> partials)
      : partials_(partials),
        levels_(std::bit_width(std::max<size_t>(partials.size(), 1) - 1)),
        buffers_(static_cast<size_t>((levels_ + 1) * kTreeChunk)) {}

  // A partial itself, or a buffer that the next call writes over; null if all are absent.
  const float* run(int64_t begin, int64_t count) {
    begin_ = begin, count_ = count;
    return node(0, levels_, 0);
  }

 private:
  // Leaves [first, first + 2^level). What it adds up stands in buffer `slot` at the end, and
  // buffers above may have been written.
  [[gnu::noinline]] const float* node(size_t first, int level, int slot) {
    if (first >= partials_.size()) return nullptr;
    if (level == 0) return partials_[first] == nullptr ? nullptr : partials_[first] + begin_;
    const float* lower = node(first, level - 1, slot);
    const float* upper =
        node(first + (size_t{1} << (level - 1)), level - 1, lower == nullptr ? slot : slot + 1);
    if (lower == nullptr || upper == nullptr) return lower == nullptr ? upper : lower;
    float* const to = buffers_.data() + slot * kTreeChunk;
    for (int64_t i = 0; i < count_; ++i) to[i] = lower[i] + upper[i];
    return to;
  }

  std::span<const float* const> partials_;
  int levels_;
  std::vector<float> buffers_;
  int64_t begin_ = 0, count_ = 0;
};

}  // namespace

void combine_leaves(std::span<const float* const> partials, int64_t count, const GemmOutput& c) {
  run_parts(1, [&](int64_t) {
    PartialTree tree(partials);
    const std::vector<float> zeros(static_cast<size_t>(kTreeChunk));
    for (int64_t begin = 0; begin < count; begin += kTreeChunk) {
      const int64_t chunk = std::min(kTreeChunk, count - begin);
      const float* sum = tree.run(begin, chunk);
      store_values(sum == nullptr ? zeros.data() : sum, 1, chunk,
                   gemm_internal::output_from(c, 0, begin));
    }
  });
}

}  // namespace deepinfer
