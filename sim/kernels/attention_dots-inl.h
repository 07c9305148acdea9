// Products of a query row of a few heads with its keys (CANONICAL.md C7.4), sixteen keys at a time,
// one a lane, for one target. Included once per target by attention-inl.h.

#if defined(DEEPINFER_SIM_ATTENTION_DOTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_SIM_ATTENTION_DOTS_INL_H_
#undef DEEPINFER_SIM_ATTENTION_DOTS_INL_H_
#else
#define DEEPINFER_SIM_ATTENTION_DOTS_INL_H_
#endif

#include <algorithm>

#include "sim/kernels/kernel_tables.h"
#include "sim/kernels/lanes-inl.h"

DEEPINFER_SIM_BEFORE_LANES();
namespace deepinfer::DEEPINFER_SIM_LANES_NAMESPACE {
#if DEEPINFER_SIM_HAVE_LANES
namespace {

// Heads that share a vector of keys.
#if defined(DEEPINFER_SIM_SOFTWARE_LANES)
inline constexpr int kDotHeads = 1;
#elif HWY_TARGET == HWY_AVX3
inline constexpr int kDotHeads = 4;
#else
inline constexpr int kDotHeads = 2;
#endif

// C2.1 over one block of 32 channels, added to dots[head * stride + lane]. words[j] has channels 2j
// and 2j + 1 of each key; q is fp32, a head after q_stride.
template <int kHeads>
inline void add_block_of_dots(const F16* words, const float* q, int64_t q_stride, float* dots,
                              int64_t stride) {
  F16 even[kHeads], odd[kHeads];
  for (int h = 0; h < kHeads; ++h) even[h] = odd[h] = zero();
  for (int64_t pair = 0; pair < kKeyChannels / 2; ++pair) {
    const I16 word = bits(words[pair]);
    const F16 key_even = from_bits(shift_left<16>(word)),
              key_odd = from_bits(word & broadcast_int(static_cast<int32_t>(0xFFFF0000)));
    for (int h = 0; h < kHeads; ++h) {
      const float* at = q + h * q_stride + 2 * pair;
      even[h] = fma(key_even, broadcast(at[0]), even[h]);
      odd[h] = fma(key_odd, broadcast(at[1]), odd[h]);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    float* at = dots + h * stride;
    store(load(at) + (even[h] + odd[h]), at);
  }
}

// Dots of `count` <= 16 keys by C2.1; the other lanes get numbers that nobody looks at.
inline void sixteen_dots_bf16(const void* const* keys, int64_t count, const RowView& q, float* dots,
                              int64_t stride) {
  for (int64_t h = 0; h < q.rows; ++h) store_bits(zero(), dots + h * stride);
  for (int64_t c = 0; c < q.columns; c += kKeyChannels) {
    alignas(64) float wide[kMostDotHeads * kKeyChannels];
    for (int64_t h = 0; h < q.rows; ++h) {
      for (int64_t i = 0; i < kKeyChannels; i += kLanes) {
        const int64_t left = std::clamp<int64_t>(q.columns - c - i, 0, kLanes);
        store_bits(load_up_to(q.row<uint16_t>(h) + (left > 0 ? c + i : 0), left),
                   wide + h * kKeyChannels + i);
      }
    }
    const void* from[kLanes];
    for (int64_t i = 0; i < kLanes; ++i)
      from[i] = static_cast<const uint16_t*>(keys[std::min(i, count - 1)]) + c;
    F16 words[kLanes];
    load_transposed(from, words);
    int64_t h = 0;
    for (; h + kDotHeads <= q.rows; h += kDotHeads) {
      add_block_of_dots<kDotHeads>(words, wide + h * kKeyChannels, kKeyChannels, dots + h * stride,
                                   stride);
    }
    for (; h < q.rows; ++h) {
      add_block_of_dots<1>(words, wide + h * kKeyChannels, kKeyChannels, dots + h * stride, stride);
    }
  }
}

// The same by C2.2.
template <typename Q, typename Key>
inline void sixteen_dots_fp32(const void* const* keys, int64_t count, const RowView& q, float* dots,
                              int64_t stride) {
  for (int64_t h = 0; h < q.rows; ++h) {
    alignas(64) float lanes[kLanes][kLanes];
    const void* rows[kLanes];
    const Q* q_row = q.row<Q>(h);
    for (int64_t i = 0; i < kLanes; ++i) rows[i] = lanes[std::min(i, count - 1)];
    for (int64_t i = 0; i < count; ++i) {
      const Key* key = static_cast<const Key*>(keys[i]);
      F16 sum = zero();
      int64_t c = 0;
      for (; c + kLanes <= q.columns; c += kLanes) sum = fma(load(q_row + c), load(key + c), sum);
      if (c < q.columns) {
        // Lanes that miss an element keep their value.
        const int64_t left = q.columns - c;
        sum = select(first_lanes(left), fma(load_part(q_row + c, left), load(key + c), sum), sum);
      }
      store_bits(sum, lanes[i]);
    }
    F16 l[kLanes];
    load_transposed(rows, l);
    for (int64_t half = kLanes / 2; half > 0; half /= 2) {
      for (int64_t j = 0; j < half; ++j) l[j] = l[j] + l[j + half];
    }
    store(l[0], dots + h * stride);
  }
}

// dots[h * stride + i] of all heads and keys; stride is attention_scratch_keys. A group of zeros
// follows, since groups of keys are read from any key on.
inline void make_dots(const AttentionRow& row, float* dots, int64_t stride) {
  const bool q_bf16 = row.q.type == ElementType::kBf16,
             key_bf16 = row.key_type == ElementType::kBf16;
  const auto sixteen = q_bf16 ? key_bf16 ? sixteen_dots_bf16 : sixteen_dots_fp32<uint16_t, float>
                       : key_bf16 ? sixteen_dots_fp32<float, uint16_t>
                                  : sixteen_dots_fp32<float, float>;
  for (int64_t first = 0; first < row.key_count; first += kLanes) {
    sixteen(row.keys + first, std::min(kLanes, row.key_count - first), row.q, dots + first, stride);
  }
  const int64_t end = (row.key_count + kLanes - 1) / kLanes * kLanes;
  for (int64_t h = 0; h < row.heads(); ++h) store_bits(zero(), dots + h * stride + end);
}

}  // namespace
#endif  // DEEPINFER_SIM_HAVE_LANES
}  // namespace deepinfer::DEEPINFER_SIM_LANES_NAMESPACE
DEEPINFER_SIM_AFTER_LANES();

#endif  // include guard that Highway toggles per target
