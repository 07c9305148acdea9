// The Engram gate (CANONICAL.md C9.2), for one target. Included once per target by engram.cpp and
// scalar_kernels.cpp.

#if defined(DEEPINFER_SIM_ENGRAM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_SIM_ENGRAM_INL_H_
#undef DEEPINFER_SIM_ENGRAM_INL_H_
#else
#define DEEPINFER_SIM_ENGRAM_INL_H_
#endif

#include "sim/kernels/kernel_tables.h"
#include "sim/kernels/math-inl.h"

DEEPINFER_SIM_BEFORE_LANES();
namespace deepinfer::DEEPINFER_SIM_LANES_NAMESPACE {
#if DEEPINFER_SIM_HAVE_LANES
namespace {

inline constexpr float kGateFloor = 1e-6f;

// Sums of x^2, key^2 and (x * (q * k)) * key, each by C2.2.
struct GateSums {
  float x, key, dot;
};

template <typename T, typename W>
GateSums gate_sums(const T* x, const T* key, const W* q, const W* k, int64_t columns) {
  F16 x_lanes = zero(), key_lanes = zero(), dot_lanes = zero();
  for (int64_t c = 0; c < columns; c += kLanes) {
    const int64_t left = columns - c;
    const F16 value = load_up_to(x + c, left), other = load_up_to(key + c, left);
    const F16 weighted = value * (load_up_to(q + c, left) * load_up_to(k + c, left));
    const F16 new_x = fma(value, value, x_lanes), new_key = fma(other, other, key_lanes);
    const F16 new_dot = fma(weighted, other, dot_lanes);
    if (left >= kLanes) {
      x_lanes = new_x, key_lanes = new_key, dot_lanes = new_dot;
    } else {
      const M16 present = first_lanes(left);
      x_lanes = select(present, new_x, x_lanes);
      key_lanes = select(present, new_key, key_lanes);
      dot_lanes = select(present, new_dot, dot_lanes);
    }
  }
  return {combine(x_lanes), combine(key_lanes), combine(dot_lanes)};
}

template <typename T, typename W>
void gate_rows(const RowView& streams, int64_t count, const RowView& key_value,
               const RowView& q_weight, const RowView& k_weight, const uint8_t* text, float eps,
               const MutableRowView& out, float* gates) {
  const int64_t columns = streams.columns / count;
  const F16 inverse_root = broadcast(1.0f) / square_root(broadcast(static_cast<float>(columns)));
  for (int64_t t = 0; t < streams.rows; ++t) {
    const T* keys = key_value.row<T>(t);
    const T* value = keys + count * columns;
    for (int64_t i = 0; i < count; ++i) {
      const T* x = streams.row<T>(t) + i * columns;
      F16 gate = zero();
      if (text[t] != 0) {
        const GateSums sums =
            gate_sums(x, keys + i * columns, q_weight.row<W>(i), k_weight.row<W>(i), columns);
        const F16 d = broadcast(sums.dot) * inverse_rms(sums.x, columns, eps) *
                      inverse_rms(sums.key, columns, eps) * inverse_root;
        const F16 root = square_root(max_of(absolute(d), broadcast(kGateFloor)));
        gate = sigmoid(with_sign_of(root, d));
      }
      store_part(gate, 1, gates + t * count + i);
      T* to = out.row<T>(t) + i * columns;
      for (int64_t c = 0; c < columns; c += kLanes) {
        const int64_t left = columns - c;
        store_up_to(fma(gate, load_up_to(value + c, left), load_up_to(x + c, left)), left, to + c);
      }
    }
  }
}

template <typename T>
void gate_typed(const RowView& streams, int64_t count, const RowView& key_value,
                const RowView& q_weight, const RowView& k_weight, const uint8_t* text, float eps,
                const MutableRowView& out, float* gates) {
  if (q_weight.type == ElementType::kBf16) {
    gate_rows<T, uint16_t>(streams, count, key_value, q_weight, k_weight, text, eps, out, gates);
  } else {
    gate_rows<T, float>(streams, count, key_value, q_weight, k_weight, text, eps, out, gates);
  }
}

void engram_gate_rows(const RowView& streams, int64_t count, const RowView& key_value,
                      const RowView& q_weight, const RowView& k_weight, const uint8_t* text,
                      float eps, const MutableRowView& out, float* gates) {
  if (streams.type == ElementType::kBf16) {
    gate_typed<uint16_t>(streams, count, key_value, q_weight, k_weight, text, eps, out, gates);
  } else {
    gate_typed<float>(streams, count, key_value, q_weight, k_weight, text, eps, out, gates);
  }
}

inline constexpr EngramKernels kEngramKernels = {engram_gate_rows};

}  // namespace
#endif  // DEEPINFER_SIM_HAVE_LANES
}  // namespace deepinfer::DEEPINFER_SIM_LANES_NAMESPACE
DEEPINFER_SIM_AFTER_LANES();

#endif  // include guard that Highway toggles per target
