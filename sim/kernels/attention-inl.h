// Attention by leaves with log-sum-exp, and compression pooling (CANONICAL.md C7), for one target.
// Included once per target by attention.cpp and scalar_kernels.cpp.

#if defined(DEEPINFER_SIM_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_SIM_ATTENTION_INL_H_
#undef DEEPINFER_SIM_ATTENTION_INL_H_
#else
#define DEEPINFER_SIM_ATTENTION_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <limits>

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

// Up to sixteen heads of one query row, one a lane.
struct HeadBlock {
  int64_t first, count;
};
inline HeadBlock head_block(int64_t first, int64_t heads) {
  return {first, std::min(kAttentionHeads, heads - first)};
}

// A partial of a block of heads: maximum, sum, and outputs [heads, channels padded to 16].
struct Partial {
  F16 maximum, sum;
  float* slot;       // room for outputs
  const float* out;  // the outputs: in `slot`, or in the memory that they came from
};

// Largest score of keys [begin, begin + count), count > 0.
inline F16 largest_score(const AttentionRow& row, int64_t first_head, int64_t begin,
                         int64_t count) {
  const float* dots = row.dots + begin * row.head_stride + first_head;
  const F16 scale = broadcast(row.scale);
  F16 maximum = load(dots) * scale;
  for (int64_t i = 1; i < count; ++i)
    maximum = max_of(maximum, load(dots + i * row.head_stride) * scale);
  return maximum;
}

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

// Walks of the tree C2.5 for a block of heads of one query row. `Walk`, which derives from it, has
// the units that the tree starts from:
//   bool has(subtree)              is there a unit in it?
//   bool is_unit(subtree)          is it one, and not made of smaller ones? has(subtree) is true
//   void fill(subtree, partial)    the unit's partial
template <typename Walk>
class TreeWalk {
 public:
  TreeWalk(HeadBlock heads, int64_t channels, int64_t width, float* slots)
      : heads_(heads), channels_(channels), width_(width), next_slot_(slots) {}

  Partial make_partial() {
    Partial partial{zero(), zero(), next_slot_, next_slot_};
    next_slot_ += kAttentionHeads * width_;
    return partial;
  }

  // The partial of what is in `subtree`: false if that is nothing.
  bool node(const Subtree& subtree, Partial& to) {
    if (!walk().has(subtree)) return false;
    if (walk().is_unit(subtree)) {
      walk().fill(subtree, to);
      return true;
    }
    const int64_t half = subtree.count / 2;
    const Subtree upper{subtree.begin + half, half};
    if (!node({subtree.begin, half}, to)) return node(upper, to);
    Partial other = make_partial();
    if (node(upper, other)) merge(to, other);
    next_slot_ = other.slot;
    return true;
  }

  // C7.6.
  void write(bool found, const Partial& result, const AttentionOutput& output) const {
    F16 denominator = result.sum;
    if (output.sink != nullptr) {
      const F16 sink = load_up_to(output.sink + heads_.first, heads_.count);
      denominator = denominator + exp(sink - result.maximum);
    }
    const F16 none = broadcast(-std::numeric_limits<float>::infinity());
    const F16 lse = found ? result.maximum + log(result.sum) : none;
    store_up_to(lse, heads_.count, output.lse + heads_.first);
    alignas(64) float denominators[kAttentionHeads];
    store_bits(denominator, denominators);
    for (int64_t h = 0; h < heads_.count; ++h) {
      const F16 divisor = broadcast(denominators[h]);
      for (int64_t c = 0; c < channels_; c += kLanes) {
        const int64_t left = channels_ - c;
        const F16 out = found ? load(result.out + h * width_ + c) / divisor : zero();
        if (output.out.type == ElementType::kBf16) {
          store_up_to(out, left, output.out.template row<uint16_t>(heads_.first + h) + c);
        } else {
          store_up_to(out, left, output.out.template row<float>(heads_.first + h) + c);
        }
      }
    }
  }

  // As the partial of subtree `index`.
  void write(const Partial& result, const PartialRow& to, int64_t index) const {
    const int64_t first = to.place(index, heads_.first);
    store_up_to(result.maximum, heads_.count, to.maximum + first);
    store_up_to(result.sum, heads_.count, to.sum + first);
    for (int64_t h = 0; h < heads_.count; ++h) {
      for (int64_t c = 0; c < channels_; c += kLanes) {
        store_up_to(load(result.out + h * width_ + c), channels_ - c,
                    to.out + (first + h) * channels_ + c);
      }
    }
  }

 protected:
  const HeadBlock heads_;
  const int64_t channels_;
  const int64_t width_;  // channels padded to 16

 private:
  Walk& walk() { return static_cast<Walk&>(*this); }

  // C7.5.
  void merge(Partial& a, const Partial& b) const {
    const F16 maximum = max_of(a.maximum, b.maximum);
    const F16 x = exp(a.maximum - maximum), y = exp(b.maximum - maximum);
    alignas(64) float x_by_head[kAttentionHeads], y_by_head[kAttentionHeads];
    store_bits(x, x_by_head);
    store_bits(y, y_by_head);
    for (int64_t h = 0; h < heads_.count; ++h) {
      const F16 head_x = broadcast(x_by_head[h]), head_y = broadcast(y_by_head[h]);
      const float* lower = a.out + h * width_;
      const float* upper = b.out + h * width_;
      float* to = a.slot + h * width_;
      for (int64_t c = 0; c < width_; c += kLanes) {
        store_bits(fma(load(lower + c), head_x, load(upper + c) * head_y), to + c);
      }
    }
    a.out = a.slot;
    a.sum = fma(a.sum, x, b.sum * y);
    a.maximum = maximum;
  }

  float* next_slot_;  // a stack of partials
};

// From the leaves of a row.
template <typename T>
class LeafWalk : public TreeWalk<LeafWalk<T>> {
 public:
  // `list_maximum` is read in narrow rows.
  LeafWalk(const AttentionRow& row, HeadBlock heads, bool narrow, F16 list_maximum)
      : TreeWalk<LeafWalk<T>>(heads, row.channels, row.values.columns, row.scratch),
        row_(row),
        narrow_(narrow),
        list_maximum_(list_maximum),
        probabilities_(row.scratch + kAttentionHeads * 7 * row.values.columns) {}

  bool has(const Subtree& subtree) const {
    const int64_t* begin = row_.position_begin + (subtree.begin - row_.first_position);
    return begin[0] < begin[subtree.count];
  }
  bool is_unit(const Subtree& subtree) const { return subtree.count == 1; }

  // C7.4.
  void fill(const Subtree& leaf, Partial& to) {
    const int64_t* place = row_.position_begin + (leaf.begin - row_.first_position);
    const int64_t begin = place[0], count = place[1] - begin;
    const float* dots = row_.dots + begin * row_.head_stride + heads_.first;
    const F16 scale = broadcast(row_.scale);
    const F16 maximum = narrow_ ? list_maximum_ : largest_score(row_, heads_.first, begin, count);
    const F16 below = negate(maximum);
    F16 sum = zero();
    for (int64_t i = 0; i < count; ++i) {
      const F16 p = exp(fma(load(dots + i * row_.head_stride), scale, below));
      sum = sum + p;
      store_bits(narrow_ ? round_bf16(p) : p, probabilities_ + i * kAttentionHeads);
    }
    to.maximum = maximum, to.sum = sum, to.out = to.slot;
    const T* values = row_.values.row<T>(begin);
    int64_t c = 0;
    for (; c + kOutGroups * kLanes <= width_; c += kOutGroups * kLanes) {
      weighted_sums<kOutGroups>(values + c, count, to.slot + c);
    }
    for (; c < width_; c += kLanes) weighted_sums<1>(values + c, count, to.slot + c);
  }

 private:
  using TreeWalk<LeafWalk<T>>::heads_;
  using TreeWalk<LeafWalk<T>>::width_;

  template <int kGroups>
  void weighted_sums(const T* values, int64_t count, float* out) {
    int64_t h = 0;
    for (; h + kOutHeads <= heads_.count; h += kOutHeads)
      weighted_sum_block<kOutHeads, kGroups>(values, count, h, out);
    for (; h < heads_.count; ++h) weighted_sum_block<1, kGroups>(values, count, h, out);
  }

  template <int kHeads, int kGroups>
  void weighted_sum_block(const T* values, int64_t count, int64_t head, float* out) {
    F16 acc[kHeads][kGroups];
    for (int h = 0; h < kHeads; ++h) {
      for (int g = 0; g < kGroups; ++g) acc[h][g] = zero();
    }
    for (int64_t i = 0; i < count; ++i) {
      F16 value[kGroups];
      for (int g = 0; g < kGroups; ++g) value[g] = load(values + i * width_ + g * kLanes);
      for (int h = 0; h < kHeads; ++h) {
        const F16 p = broadcast(probabilities_[i * kAttentionHeads + head + h]);
        for (int g = 0; g < kGroups; ++g) acc[h][g] = fma(p, value[g], acc[h][g]);
      }
    }
    for (int h = 0; h < kHeads; ++h) {
      for (int g = 0; g < kGroups; ++g)
        store_bits(acc[h][g], out + (head + h) * width_ + g * kLanes);
    }
  }

  const AttentionRow& row_;
  const bool narrow_;
  const F16 list_maximum_;  // over all leaves
  float* probabilities_;    // [keys of a leaf, 16]
};

// From partials in memory, for heads that have the same of them.
class PartialWalk : public TreeWalk<PartialWalk> {
 public:
  // `begins` has a bit for the first tree position of every subtree, `present` for those that the
  // heads have.
  PartialWalk(const PartialList& row, HeadBlock heads, int64_t width, uint64_t begins,
              uint64_t present, float* slots)
      : TreeWalk<PartialWalk>(heads, row.channels, width, slots),
        row_(row),
        begins_(begins),
        present_(present) {}

  bool has(const Subtree& subtree) const {
    return (present_ >> subtree.begin & below(subtree.count)) != 0;
  }
  bool is_unit(const Subtree& subtree) const {
    return (present_ >> subtree.begin & 1) != 0 &&
           row_.subtrees[index_of(subtree)].count == subtree.count;
  }

  void fill(const Subtree& subtree, Partial& to) const {
    const int64_t first = row_.place(index_of(subtree), heads_.first);
    to.maximum = load_up_to(row_.maximum + first, heads_.count);
    to.sum = load_up_to(row_.sum + first, heads_.count);
    const float* from = row_.out + first * row_.out_stride;
    to.out = from;
    if (channels_ == width_ && (row_.out_stride == width_ || heads_.count == 1)) return;
    for (int64_t h = 0; h < heads_.count; ++h) {
      for (int64_t c = 0; c < channels_; c += kLanes) {
        store_bits(load_up_to(from + h * row_.out_stride + c, channels_ - c),
                   to.slot + h * width_ + c);
      }
    }
    to.out = to.slot;
  }

 private:
  // Bits 0 to count - 1.
  static uint64_t below(int64_t count) {
    return count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
  }
  int64_t index_of(const Subtree& subtree) const {
    return std::popcount(begins_ & below(subtree.begin));
  }

  const PartialList& row_;
  const uint64_t begins_, present_;
};

void maximum(const AttentionRow& row, float* maximum) {
  const int64_t keys = row.values.rows;
  for (int64_t head = 0; head < row.heads; head += kAttentionHeads) {
    const HeadBlock heads = head_block(head, row.heads);
    const F16 largest = keys > 0 ? largest_score(row, head, 0, keys)
                                 : broadcast(-std::numeric_limits<float>::infinity());
    store_up_to(largest, heads.count, maximum + head);
  }
}

template <typename T>
void attend_heads(const AttentionRow& row, HeadBlock heads, bool narrow,
                  const AttentionOutput& output) {
  const int64_t keys = row.values.rows;
  LeafWalk<T> walk(row, heads, narrow,
                   narrow && keys > 0 ? largest_score(row, heads.first, 0, keys) : zero());
  Partial result = walk.make_partial();
  const bool found = walk.node({0, kCanonicalLeaves}, result);
  walk.write(found, result, output);
}

void attend(const AttentionRow& row, bool narrow, const AttentionOutput& output) {
  for (int64_t head = 0; head < row.heads; head += kAttentionHeads) {
    if (row.values.type == ElementType::kBf16) {
      attend_heads<uint16_t>(row, head_block(head, row.heads), narrow, output);
    } else {
      attend_heads<float>(row, head_block(head, row.heads), narrow, output);
    }
  }
}

template <typename T>
void partials_of_heads(const AttentionRow& row, HeadBlock heads, const float* list_maximum,
                       const PartialRow& partials) {
  const bool narrow = list_maximum != nullptr;
  LeafWalk<T> walk(row, heads, narrow,
                   narrow ? load_up_to(list_maximum + heads.first, heads.count) : zero());
  Partial result = walk.make_partial();
  for (int64_t i = 0; i < partials.count; ++i) {
    if (walk.node(partials.subtrees[i], result)) walk.write(result, partials, i);
  }
}

void partials(const AttentionRow& row, const float* list_maximum, const PartialRow& partials) {
  for (int64_t i = 0; i < partials.count; ++i) {
    const Subtree& subtree = partials.subtrees[i];
    const int64_t* begin = row.position_begin + (subtree.begin - row.first_position);
    if (begin[0] < begin[subtree.count]) continue;
    const int64_t first = partials.place(i, 0);
    std::fill_n(partials.maximum + first, row.heads, -std::numeric_limits<float>::infinity());
    std::fill_n(partials.sum + first, row.heads, 0.0f);
    std::fill_n(partials.out + first * row.channels, row.heads * row.channels, 0.0f);
  }
  for (int64_t head = 0; head < row.heads; head += kAttentionHeads) {
    if (row.values.type == ElementType::kBf16) {
      partials_of_heads<uint16_t>(row, head_block(head, row.heads), list_maximum, partials);
    } else {
      partials_of_heads<float>(row, head_block(head, row.heads), list_maximum, partials);
    }
  }
}

// Absent partials of sixteen heads have a 1 in their lane: C7.7. One of a leaf whose scores are all
// -inf has that maximum too, and a sum that is no zero.
inline F16 absence(F16 maximum, F16 sum) {
  const F16 one = broadcast(1.0f);
  const F16 no_sum = select(sum == zero(), one, zero());
  return select(maximum == broadcast(-std::numeric_limits<float>::infinity()), no_sum, zero());
}

void merge(const PartialList& row, const AttentionOutput& output, float* scratch) {
  const int64_t width = (row.channels + kLanes - 1) / kLanes * kLanes;
  uint64_t begins = 0;
  for (int64_t i = 0; i < row.count; ++i) begins |= uint64_t{1} << row.subtrees[i].begin;
  for (int64_t head = 0; head < row.heads; head += kAttentionHeads) {
    const HeadBlock block = head_block(head, row.heads);
    uint64_t present[kAttentionHeads] = {};  // as PartialWalk's
    for (int64_t i = 0; i < row.count; ++i) {
      const int64_t first = row.place(i, head);
      alignas(64) float absent[kAttentionHeads];
      store_bits(absence(load_up_to(row.maximum + first, block.count),
                         load_up_to(row.sum + first, block.count)),
                 absent);
      for (int64_t h = 0; h < block.count; ++h) {
        present[h] |= uint64_t{absent[h] == 0} << row.subtrees[i].begin;
      }
    }
    // Partials of attention_partials are there for all heads or for none. Others are walked head by
    // head.
    bool same = true;
    for (int64_t h = 1; h < block.count; ++h) same = same && present[h] == present[0];
    const int64_t step = same ? block.count : 1;
    for (int64_t h = 0; h < block.count; h += step) {
      PartialWalk walk(row, {head + h, step}, width, begins, present[h], scratch);
      Partial result = walk.make_partial();
      const bool found = walk.node({0, kCanonicalLeaves}, result);
      walk.write(found, result, output);
    }
  }
}

inline constexpr AttentionKernels kAttentionKernels = {compress_pool, maximum, attend, partials,
                                                       merge};

}  // namespace
#endif  // DEEPINFER_SIM_HAVE_LANES
}  // namespace deepinfer::DEEPINFER_SIM_LANES_NAMESPACE
DEEPINFER_SIM_AFTER_LANES();

#endif  // include guard that Highway toggles per target
