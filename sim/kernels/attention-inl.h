// Attention by leaves with log-sum-exp, and compression pooling (CANONICAL.md C7), for one target.
// Included once per target by attention.cpp and scalar_kernels.cpp.

#if defined(DEEPINFER_SIM_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_SIM_ATTENTION_INL_H_
#undef DEEPINFER_SIM_ATTENTION_INL_H_
#else
#define DEEPINFER_SIM_ATTENTION_INL_H_
#endif

#include <algorithm>
#include <limits>
#include <utility>

#include "sim/kernels/kernel_tables.h"
#include "sim/kernels/math-inl.h"

DEEPINFER_SIM_BEFORE_LANES();
namespace deepinfer::DEEPINFER_SIM_LANES_NAMESPACE {
#if DEEPINFER_SIM_HAVE_LANES
namespace {

// C7.1: channels are lanes. The exponentials are made twice rather than kept.
void compress_pool(const float* values, const float* gates, int64_t groups, int64_t tokens,
                   int64_t channels, float* pooled) {
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t c = 0; c < channels; c += kLanes) {
      const int64_t left = channels - c;
      const float* gate = gates + g * tokens * channels + c;
      const float* value = values + g * tokens * channels + c;
      F16 largest = load_up_to(gate, left);
      for (int64_t t = 1; t < tokens; ++t)
        largest = max_of(largest, load_up_to(gate + t * channels, left));
      F16 sum = exp(load_up_to(gate, left) - largest);
      for (int64_t t = 1; t < tokens; ++t) {
        sum = sum + exp(load_up_to(gate + t * channels, left) - largest);
      }
      F16 acc = exp(load_up_to(gate, left) - largest) / sum * load_up_to(value, left);
      for (int64_t t = 1; t < tokens; ++t) {
        const F16 e = exp(load_up_to(gate + t * channels, left) - largest);
        acc = fma(e / sum, load_up_to(value + t * channels, left), acc);
      }
      store_up_to(acc, left, pooled + g * channels + c);
    }
  }
}

// A partial of sixteen heads, one a lane: maximum, sum, and outputs [16, padded channels].
struct Partial {
  F16 maximum, sum;
  float* out;
};

// Outputs of a micro-kernel: heads by groups of sixteen channels. Sixteen accumulators of 32
// registers, or of 16.
#if defined(DEEPINFER_SIM_SOFTWARE_LANES)
inline constexpr int kOutHeads = 1, kOutGroups = 1;
#elif HWY_TARGET == HWY_AVX2
inline constexpr int kOutHeads = 2, kOutGroups = 2;
#elif HWY_TARGET == HWY_AVX3
inline constexpr int kOutHeads = 4, kOutGroups = 4;
#else
inline constexpr int kOutHeads = 4, kOutGroups = 1;
#endif

// One walk of the tree C2.5 for sixteen heads of one query row.
template <typename T>
class LeafWalk {
 public:
  LeafWalk(const AttentionRow& row, int64_t first_head)
      : row_(row),
        first_head_(first_head),
        heads_(std::min(kAttentionHeads, row.heads - first_head)),
        channels_(row.values.columns),
        next_(row.scratch),
        probabilities_(row.scratch + kAttentionHeads * 7 * channels_) {}

  void run() {
    const int64_t keys = row_.leaf_begin[kAttentionLeaves];
    if (row_.narrow && keys > 0) list_maximum_ = largest_score(0, keys);
    Partial result = make_partial();
    const bool found = node(0, 1, result);
    for (int64_t h = 0; h < heads_; ++h) write_head(h, found, result);
  }

 private:
  Partial make_partial() {
    Partial partial{zero(), zero(), next_};
    next_ += kAttentionHeads * channels_;
    return partial;
  }

  // Leaves first, first + step, ...: false if all are empty. Children pair leaf i with i + 32, then
  // + 16, ..., + 1.
  bool node(int64_t first, int64_t step, Partial& to) {
    if (step == kAttentionLeaves) return leaf(first, to);
    const bool lower = node(first, 2 * step, to);
    Partial other = make_partial();
    const bool upper = node(first + step, 2 * step, other);
    if (lower && upper) {
      merge(to, other);
    } else if (upper) {
      std::swap_ranges(to.out, to.out + kAttentionHeads * channels_, other.out);
      to.maximum = other.maximum, to.sum = other.sum;
    }
    next_ -= kAttentionHeads * channels_;
    return lower || upper;
  }

  // Largest score of keys [begin, begin + count), count > 0.
  F16 largest_score(int64_t begin, int64_t count) const {
    const float* dots = row_.dots + begin * row_.head_stride + first_head_;
    const F16 scale = broadcast(row_.scale);
    F16 maximum = load(dots) * scale;
    for (int64_t i = 1; i < count; ++i)
      maximum = max_of(maximum, load(dots + i * row_.head_stride) * scale);
    return maximum;
  }

  // C7.4.
  bool leaf(int64_t index, Partial& to) {
    const int64_t begin = row_.leaf_begin[index], count = row_.leaf_begin[index + 1] - begin;
    if (count == 0) return false;
    const float* dots = row_.dots + begin * row_.head_stride + first_head_;
    const F16 scale = broadcast(row_.scale);
    const F16 maximum = row_.narrow ? list_maximum_ : largest_score(begin, count);
    const F16 below = negate(maximum);
    F16 sum = zero();
    for (int64_t i = 0; i < count; ++i) {
      const F16 p = exp(fma(load(dots + i * row_.head_stride), scale, below));
      sum = sum + p;
      store_bits(row_.narrow ? round_bf16(p) : p, probabilities_ + i * kAttentionHeads);
    }
    to.maximum = maximum, to.sum = sum;
    const T* values = row_.values.row<T>(begin);
    int64_t c = 0;
    for (; c + kOutGroups * kLanes <= channels_; c += kOutGroups * kLanes) {
      weighted_sums<kOutGroups>(values + c, count, to.out + c);
    }
    for (; c < channels_; c += kLanes) weighted_sums<1>(values + c, count, to.out + c);
    return true;
  }

  template <int kGroups>
  void weighted_sums(const T* values, int64_t count, float* out) {
    int64_t h = 0;
    for (; h + kOutHeads <= heads_; h += kOutHeads)
      weighted_sum_block<kOutHeads, kGroups>(values, count, h, out);
    for (; h < heads_; ++h) weighted_sum_block<1, kGroups>(values, count, h, out);
  }

  template <int kHeads, int kGroups>
  void weighted_sum_block(const T* values, int64_t count, int64_t head, float* out) {
    F16 acc[kHeads][kGroups];
    for (int h = 0; h < kHeads; ++h) {
      for (int g = 0; g < kGroups; ++g) acc[h][g] = zero();
    }
    for (int64_t i = 0; i < count; ++i) {
      F16 value[kGroups];
      for (int g = 0; g < kGroups; ++g) value[g] = load(values + i * channels_ + g * kLanes);
      for (int h = 0; h < kHeads; ++h) {
        const F16 p = broadcast(probabilities_[i * kAttentionHeads + head + h]);
        for (int g = 0; g < kGroups; ++g) acc[h][g] = fma(p, value[g], acc[h][g]);
      }
    }
    for (int h = 0; h < kHeads; ++h) {
      for (int g = 0; g < kGroups; ++g)
        store_bits(acc[h][g], out + (head + h) * channels_ + g * kLanes);
    }
  }

  // C7.5.
  void merge(Partial& a, const Partial& b) {
    const F16 maximum = max_of(a.maximum, b.maximum);
    const F16 x = exp(a.maximum - maximum), y = exp(b.maximum - maximum);
    alignas(64) float x_by_head[kAttentionHeads], y_by_head[kAttentionHeads];
    store_bits(x, x_by_head);
    store_bits(y, y_by_head);
    for (int64_t h = 0; h < heads_; ++h) {
      const F16 head_x = broadcast(x_by_head[h]), head_y = broadcast(y_by_head[h]);
      float* to = a.out + h * channels_;
      const float* from = b.out + h * channels_;
      for (int64_t c = 0; c < channels_; c += kLanes) {
        store_bits(fma(load(to + c), head_x, load(from + c) * head_y), to + c);
      }
    }
    a.sum = fma(a.sum, x, b.sum * y);
    a.maximum = maximum;
  }

  // C7.6.
  void write_head(int64_t h, bool found, const Partial& result) {
    const int64_t head = first_head_ + h;
    F16 denominator = result.sum;
    if (row_.sink != nullptr) {
      const F16 sink = load_up_to(row_.sink + first_head_, heads_);
      denominator = denominator + exp(sink - result.maximum);
    }
    alignas(64) float denominators[kAttentionHeads], lse[kAttentionHeads];
    store_bits(denominator, denominators);
    store(result.maximum + log(result.sum), lse);
    row_.lse[head] = found ? lse[h] : -std::numeric_limits<float>::infinity();
    const F16 divisor = broadcast(denominators[h]);
    for (int64_t c = 0; c < row_.channels; c += kLanes) {
      const int64_t left = row_.channels - c;
      const F16 out = found ? load(result.out + h * channels_ + c) / divisor : zero();
      if (row_.out.type == ElementType::kBf16) {
        store_up_to(out, left, row_.out.row<uint16_t>(head) + c);
      } else {
        store_up_to(out, left, row_.out.row<float>(head) + c);
      }
    }
  }

  const AttentionRow& row_;
  const int64_t first_head_, heads_;
  const int64_t channels_;     // padded to 16
  F16 list_maximum_ = zero();  // over all leaves, in narrow rows
  float* next_;                // a stack of partials
  float* probabilities_;       // [keys of a leaf, 16]
};

void attend(const AttentionRow& row) {
  for (int64_t head = 0; head < row.heads; head += kAttentionHeads) {
    if (row.values.type == ElementType::kBf16) {
      LeafWalk<uint16_t>(row, head).run();
    } else {
      LeafWalk<float>(row, head).run();
    }
  }
}

inline constexpr AttentionKernels kAttentionKernels = {compress_pool, attend};

}  // namespace
#endif  // DEEPINFER_SIM_HAVE_LANES
}  // namespace deepinfer::DEEPINFER_SIM_LANES_NAMESPACE
DEEPINFER_SIM_AFTER_LANES();

#endif  // include guard that Highway toggles per target
