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

#include "sim/kernels/attention_dots-inl.h"
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

// Up to sixteen numbers, one a head, to and from lanes.
inline F16 load_heads(const float* from, int64_t count) {
  return count == 1 ? broadcast(*from) : load_up_to(from, count);
}
inline void store_heads(F16 a, int64_t count, float* to) {
  if (count > 1) return store_up_to(a, count, to);
  alignas(64) float lanes[kLanes];
  store(a, lanes);
  *to = lanes[0];
}

// Bits 0 to count - 1.
inline uint64_t below(int64_t count) {
  return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}
inline uint64_t bits_of(const Subtree& subtree) { return below(subtree.count) << subtree.begin; }

// Where a row's arrays are in its scratch memory.
struct RowScratch {
  explicit RowScratch(const AttentionRow& row)
      : width((row.channels() + kLanes - 1) / kLanes * kLanes),
        keys(attention_scratch_keys(row.key_count)),
        slots(row.scratch),
        dots(slots + kAttentionHeads * 7 * width),
        turned(dots + kAttentionHeads * keys),
        probabilities(turned + kAttentionHeads * keys) {}

  int64_t width, keys;
  float* slots;          // of a TreeWalk
  float* dots;           // [heads, keys]
  float* turned;         // [keys, 16]
  float* probabilities;  // [keys of a leaf, 16], or [2, keys]
};

// ---- Scores of heads in lanes: their dots lie side by side.

// [keys, stride]
struct HeadDots {
  const float* data;
  int64_t stride;
};

// Those of heads [first, first + 16).
inline HeadDots head_dots(const AttentionRow& row, const RowScratch& scratch, int64_t first) {
  if (row.dots != nullptr) return {row.dots + first, row.dot_stride};
  make_dots(row, scratch.dots, scratch.keys);
  for (int64_t key = 0; key < row.key_count; key += kLanes) {
    const void* from[kLanes];
    for (int64_t h = 0; h < kLanes; ++h) {
      from[h] = scratch.dots + std::min(h, row.heads() - 1) * scratch.keys + key;
    }
    F16 turned[kLanes];
    load_transposed(from, turned);
    for (int64_t i = 0; i < kLanes; ++i) store_bits(turned[i], scratch.turned + (key + i) * kLanes);
  }
  return {scratch.turned, kLanes};
}

// Largest score of keys [begin, begin + count), count > 0.
inline F16 largest_score(const HeadDots& dots, float scale, int64_t begin, int64_t count) {
  const float* from = dots.data + begin * dots.stride;
  F16 maximum = load(from) * broadcast(scale);
  for (int64_t i = 1; i < count; ++i)
    maximum = max_of(maximum, load(from + i * dots.stride) * broadcast(scale));
  return maximum;
}

// The same of one head, whose dots of keys lie side by side; in all lanes.
inline F16 largest_score(const float* dots, float scale, int64_t count) {
  const F16 factor = broadcast(scale), first = broadcast(dots[0]) * factor;
  if (count >= kLanes) {
    // Lane by lane. Which comes first matters among zeros, and to a NaN.
    F16 lanes = load(dots) * factor;
    for (int64_t i = kLanes; i < count; i += kLanes) {
      const F16 scores = load(dots + i) * factor;
      lanes = max_of(lanes, select(first_lanes(count - i), scores, first));
    }
    alignas(64) float largest[kLanes];
    store_bits(lanes, largest);
    for (int64_t half = kLanes / 2; half > 0; half /= 2) {
      for (int64_t j = 0; j < half; ++j)
        largest[j] = largest[j] < largest[j + half] ? largest[j + half] : largest[j];
    }
    if (largest[0] != 0 && !any(is_nan(lanes))) return broadcast(largest[0]);
  }
  F16 maximum = first;
  for (int64_t i = 1; i < count; ++i) maximum = max_of(maximum, broadcast(dots[i]) * factor);
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
//   void fill(position, partial)   the partial of the unit that begins at a tree position
template <typename Walk>
class TreeWalk {
 public:
  TreeWalk(HeadBlock heads, int64_t channels, int64_t width, float* slots)
      : heads_(heads), channels_(channels), width_(width), next_slot_(slots) {}

  Partial make_partial() {
    Partial partial{zero(), zero(), next_slot_, next_slot_};
    next_slot_ += heads_.count * width_;
    return partial;
  }

  // The partial of the units that begin at the positions in `units`, at least one.
  void node(uint64_t units, Partial& to) {
    const int lowest = std::countr_zero(units), highest = std::bit_width(units) - 1;
    if (lowest == highest) return static_cast<Walk&>(*this).fill(lowest, to);
    // The upper half of the smallest subtree with all of them; absent ones are skipped.
    const int half = std::bit_width(static_cast<uint64_t>(lowest ^ highest)) - 1;
    const uint64_t lower = units & below(highest >> half << half);
    node(lower, to);
    Partial other = make_partial();
    node(units ^ lower, other);
    merge(to, other);
    next_slot_ = other.slot;
  }

  // C7.6.
  void write(bool found, const Partial& result, const AttentionOutput& output) const {
    F16 denominator = result.sum;
    if (output.sink != nullptr) {
      const F16 sink = load_heads(output.sink + heads_.first, heads_.count);
      denominator = denominator + exp(sink - result.maximum);
    }
    const F16 none = broadcast(-std::numeric_limits<float>::infinity());
    const F16 lse = found ? result.maximum + log(result.sum) : none;
    store_heads(lse, heads_.count, output.lse + heads_.first);
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
    store_heads(result.maximum, heads_.count, to.maximum + first);
    store_heads(result.sum, heads_.count, to.sum + first);
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

  // All units have this maximum.
  void set_maximum(F16 maximum) {
    one_maximum_ = true;
    factor_ = exp(maximum - maximum);
  }

 private:
  // C7.5.
  void merge(Partial& a, const Partial& b) const {
    const F16 maximum = max_of(a.maximum, b.maximum);
    const F16 x = one_maximum_ ? factor_ : exp(a.maximum - maximum),
              y = one_maximum_ ? factor_ : exp(b.maximum - maximum);
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
  bool one_maximum_ = false;
  F16 factor_ = zero();  // of C7.5, then: 1, or NaN
};

// o_c = fma(p, v_c, o_c) of a leaf (C7.4), the p of key i and head h being
// weights[i * weight_stride + h].
struct WeightedKeys {
  const void* const* keys;
  int64_t count;
  const float* weights;
  int64_t weight_stride;
};

// Of kHeads heads, and kGroups groups of channels.
template <typename T, int kHeads, int kGroups>
inline void weighted_sum_block(const WeightedKeys& leaf, int64_t head, int64_t channel,
                               int64_t width, float* out) {
  F16 acc[kHeads][kGroups];
  for (int h = 0; h < kHeads; ++h) {
    for (int g = 0; g < kGroups; ++g) acc[h][g] = zero();
  }
  const float* weights = leaf.weights + head;
  for (int64_t i = 0; i < leaf.count; ++i, weights += leaf.weight_stride) {
    const T* values = static_cast<const T*>(leaf.keys[i]) + channel;
    F16 value[kGroups];
    for (int g = 0; g < kGroups; ++g) value[g] = load(values + g * kLanes);
    for (int h = 0; h < kHeads; ++h) {
      const F16 p = broadcast(weights[h]);
      for (int g = 0; g < kGroups; ++g) acc[h][g] = fma(p, value[g], acc[h][g]);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int g = 0; g < kGroups; ++g)
      store_bits(acc[h][g], out + (head + h) * width + channel + g * kLanes);
  }
}

// Of all heads, and channels [channel, width).
template <typename T, int kGroups>
inline void weighted_sums(const WeightedKeys& leaf, int64_t heads, int64_t channel, int64_t width,
                          float* out) {
  for (; channel + kGroups * kLanes <= width; channel += kGroups * kLanes) {
    int64_t h = 0;
    for (; h + kOutHeads <= heads; h += kOutHeads)
      weighted_sum_block<T, kOutHeads, kGroups>(leaf, h, channel, width, out);
    for (; h < heads; ++h) weighted_sum_block<T, 1, kGroups>(leaf, h, channel, width, out);
  }
  if constexpr (kGroups > 1) weighted_sums<T, kGroups / 2>(leaf, heads, channel, width, out);
}

// From the leaves of a row, with heads in lanes.
template <typename T>
class HeadsWalk : public TreeWalk<HeadsWalk<T>> {
 public:
  // `list_maximum` is read in narrow rows.
  HeadsWalk(const AttentionRow& row, const RowScratch& scratch, HeadBlock heads,
            const HeadDots& dots, bool narrow, F16 list_maximum)
      : TreeWalk<HeadsWalk<T>>(heads, row.channels(), scratch.width, scratch.slots),
        row_(row),
        dots_(dots),
        narrow_(narrow),
        list_maximum_(list_maximum),
        probabilities_(scratch.probabilities) {
    if (narrow) this->set_maximum(list_maximum);
  }

  // C7.4.
  void fill(int64_t position, Partial& to) {
    const int64_t begin = row_.leaves[position].begin, count = row_.leaves[position].end - begin;
    const float* dots = dots_.data + begin * dots_.stride;
    const F16 scale = broadcast(row_.scale);
    const F16 maximum = narrow_ ? list_maximum_ : largest_score(dots_, row_.scale, begin, count);
    const F16 below = negate(maximum);
    F16 sum = zero();
    for (int64_t i = 0; i < count; ++i) {
      const F16 p = exp(fma(load(dots + i * dots_.stride), scale, below));
      sum = sum + p;
      store_bits(narrow_ ? round_bf16(p) : p, probabilities_ + i * kAttentionHeads);
    }
    to.maximum = maximum, to.sum = sum, to.out = to.slot;
    weighted_sums<T, kOutGroups>({row_.keys + begin, count, probabilities_, kAttentionHeads},
                                 this->heads_.count, 0, this->width_, to.slot);
  }

 private:
  const AttentionRow& row_;
  const HeadDots dots_;
  const bool narrow_;
  const F16 list_maximum_;  // over all leaves
  float* probabilities_;    // [keys of a leaf, 16]
};

// The same for one head, with keys in lanes. Partials have the head in all lanes.
template <typename T>
class KeysWalk : public TreeWalk<KeysWalk<T>> {
 public:
  KeysWalk(const AttentionRow& row, const RowScratch& scratch, int64_t head, bool narrow,
           F16 list_maximum)
      : TreeWalk<KeysWalk<T>>({head, 1}, row.channels(), scratch.width, scratch.slots),
        row_(row),
        dots_(scratch.dots + head * scratch.keys),
        narrow_(narrow),
        list_maximum_(list_maximum),
        probabilities_(scratch.probabilities),
        weights_(narrow ? probabilities_ + scratch.keys : probabilities_) {
    if (!narrow) return;
    this->set_maximum(list_maximum);
    make_probabilities(0, row.key_count, list_maximum);
  }

  // C7.4.
  void fill(int64_t position, Partial& to) {
    const int64_t begin = row_.leaves[position].begin, count = row_.leaves[position].end - begin;
    to.maximum = list_maximum_;
    if (!narrow_) {
      to.maximum = largest_score(dots_ + begin, row_.scale, count);
      make_probabilities(begin, count, to.maximum);
    }
    F16 sum = zero();
    for (int64_t i = 0; i < count; ++i) sum = sum + broadcast(probabilities_[begin + i]);
    to.sum = sum, to.out = to.slot;
    weighted_sums<T, kOutGroups>({row_.keys + begin, count, weights_ + begin, 1}, 1, 0,
                                 this->width_, to.slot);
  }

 private:
  // Of keys [begin, begin + count), and up to fifteen that follow, which are made again later.
  void make_probabilities(int64_t begin, int64_t count, F16 maximum) {
    const F16 scale = broadcast(row_.scale), below = negate(maximum);
    for (int64_t i = begin; i < begin + count; i += kLanes) {
      const F16 p = exp(fma(load(dots_ + i), scale, below));
      store_bits(p, probabilities_ + i);
      if (narrow_) store_bits(round_bf16(p), weights_ + i);
    }
  }

  const AttentionRow& row_;
  const float* dots_;
  const bool narrow_;
  const F16 list_maximum_;
  float *probabilities_, *weights_;  // [keys]
};

// Narrow rows of so few heads, and others of one, are walked head by head with keys in lanes.
#if !defined(DEEPINFER_SIM_SOFTWARE_LANES) && HWY_TARGET == HWY_AVX3
inline constexpr int64_t kFewNarrowHeads = 2;
#else
inline constexpr int64_t kFewNarrowHeads = 4;
#endif

static_assert(kFewNarrowHeads <= kMostFp32DotHeads);  // whose dots no GEMM has made

// use(walk) for each block of heads of a row. maximum(head) is that of narrow rows' lists, or
// made here if `maximum` is null.
template <typename T, typename Use>
void walk_leaves(const AttentionRow& row, bool narrow, const float* list_maximum, const Use& use) {
  const RowScratch scratch(row);
  if (row.heads() <= (narrow ? kFewNarrowHeads : 1)) {
    make_dots(row, scratch.dots, scratch.keys);
    for (int64_t head = 0; head < row.heads(); ++head) {
      F16 maximum = zero();
      if (list_maximum != nullptr) {
        maximum = broadcast(list_maximum[head]);
      } else if (narrow && row.key_count > 0) {
        maximum = largest_score(scratch.dots + head * scratch.keys, row.scale, row.key_count);
      }
      KeysWalk<T> walk(row, scratch, head, narrow, maximum);
      use(walk);
    }
    return;
  }
  for (int64_t head = 0; head < row.heads(); head += kAttentionHeads) {
    const HeadBlock heads = head_block(head, row.heads());
    const HeadDots dots = head_dots(row, scratch, head);
    F16 maximum = zero();
    if (list_maximum != nullptr) {
      maximum = load_up_to(list_maximum + head, heads.count);
    } else if (narrow && row.key_count > 0) {
      maximum = largest_score(dots, row.scale, 0, row.key_count);
    }
    HeadsWalk<T> walk(row, scratch, heads, dots, narrow, maximum);
    use(walk);
  }
}
template <typename Use>
void walk_leaves(const AttentionRow& row, bool narrow, const float* list_maximum, const Use& use) {
  if (row.key_type == ElementType::kBf16) {
    walk_leaves<uint16_t>(row, narrow, list_maximum, use);
  } else {
    walk_leaves<float>(row, narrow, list_maximum, use);
  }
}

// From partials in memory, for heads that have the same of them.
class PartialWalk : public TreeWalk<PartialWalk> {
 public:
  // `begins` has a bit for the first tree position of every subtree.
  PartialWalk(const PartialList& row, HeadBlock heads, int64_t width, uint64_t begins, float* slots)
      : TreeWalk<PartialWalk>(heads, row.channels, width, slots), row_(row), begins_(begins) {}

  void fill(int64_t position, Partial& to) const {
    const int64_t first = row_.place(std::popcount(begins_ & below(position)), heads_.first);
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
  const PartialList& row_;
  const uint64_t begins_;
};

void maximum(const AttentionRow& row, float* maximum) {
  if (row.key_count == 0) {
    std::fill_n(maximum, row.heads(), -std::numeric_limits<float>::infinity());
    return;
  }
  const RowScratch scratch(row);
  if (row.dots == nullptr) {
    make_dots(row, scratch.dots, scratch.keys);
    for (int64_t h = 0; h < row.heads(); ++h) {
      const F16 largest = largest_score(scratch.dots + h * scratch.keys, row.scale, row.key_count);
      store_heads(largest, 1, maximum + h);
    }
    return;
  }
  for (int64_t head = 0; head < row.heads(); head += kAttentionHeads) {
    const HeadDots dots = head_dots(row, scratch, head);
    store_up_to(largest_score(dots, row.scale, 0, row.key_count),
                head_block(head, row.heads()).count, maximum + head);
  }
}

// What is done with the walk of each block of heads. (A lambda would not be compiled for the
// target.)
struct WriteResult {
  uint64_t present;
  const AttentionOutput& output;

  template <typename Walk>
  void operator()(Walk& walk) const {
    Partial result = walk.make_partial();
    if (present != 0) walk.node(present, result);
    walk.write(present != 0, result, output);
  }
};
struct WritePartials {
  uint64_t present;
  const PartialRow& partials;

  template <typename Walk>
  void operator()(Walk& walk) const {
    Partial result = walk.make_partial();
    for (int64_t i = 0; i < partials.count; ++i) {
      const uint64_t leaves = present & bits_of(partials.subtrees[i]);
      if (leaves == 0) continue;
      walk.node(leaves, result);
      walk.write(result, partials, i);
    }
  }
};

void attend(const AttentionRow& row, bool narrow, const AttentionOutput& output) {
  walk_leaves(row, narrow, nullptr, WriteResult{row.present, output});
}

void partials(const AttentionRow& row, const float* list_maximum, const PartialRow& partials) {
  for (int64_t i = 0; i < partials.count; ++i) {
    if ((row.present & bits_of(partials.subtrees[i])) != 0) continue;
    const int64_t first = partials.place(i, 0);
    std::fill_n(partials.maximum + first, row.heads(), -std::numeric_limits<float>::infinity());
    std::fill_n(partials.sum + first, row.heads(), 0.0f);
    std::fill_n(partials.out + first * row.channels(), row.heads() * row.channels(), 0.0f);
  }
  if (row.present == 0) return;
  walk_leaves(row, list_maximum != nullptr, list_maximum, WritePartials{row.present, partials});
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
    uint64_t present[kAttentionHeads] = {};  // where the heads' partials begin
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
      PartialWalk walk(row, {head + h, step}, width, begins, scratch);
      Partial result = walk.make_partial();
      if (present[h] != 0) walk.node(present[h], result);
      walk.write(present[h] != 0, result, output);
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
