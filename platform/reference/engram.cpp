// Reference Engram: n-gram hash, table fetch, gate (model-verified.md 10).
#include <cmath>

#include "platform/fault.h"
#include "platform/formats.h"
#include "platform/reference/reference.h"

namespace deepinfer::reference {

using at::Tensor;

Tensor engram_hash(const Tensor& compressed_ids, int64_t rows, const Tensor& multipliers,
                   const Tensor& primes, const Tensor& offsets, int64_t pad) {
  const int64_t length = compressed_ids.size(0), order = multipliers.size(0);
  TORCH_CHECK(compressed_ids.dim() == 1 && rows >= 0 && rows <= length && order >= 2 &&
                  primes.numel() % (order - 1) == 0 && offsets.numel() == primes.numel(),
              "engram_hash: ids [L >= rows], multipliers [N >= 2], primes and offsets "
              "[(N-1)*heads] expected");
  const int64_t heads = primes.numel() / (order - 1);
  // Look-back b of every row; places before the start count as dead, like image tokens.
  const int64_t before_start = fault("hash_reads_before_the_start") ? 0 : -1;
  const Tensor padded = at::constant_pad_nd(compressed_ids, {order - 1, 0}, before_start);
  const int64_t first = order - 1 + length - rows;
  Tensor blocked = at::zeros({rows}, compressed_ids.options().dtype(at::kBool));
  Tensor hash = at::zeros({rows}, compressed_ids.options());
  std::vector<Tensor> columns;
  for (int64_t back = 0; back < order; ++back) {
    const Tensor id = padded.slice(0, first - back, first - back + rows);
    // Once a look-back is dead, all longer ones are pad.
    blocked = blocked.logical_or(id.lt(0));
    const Tensor term = at::where(blocked, at::full({}, pad, id.options()), id) * multipliers[back];
    hash = back == 0 ? term
                     : (fault("hash_adds_instead_of_xor") ? hash + term : hash.bitwise_xor(term));
    if (back == 0) continue;
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t column = (back - 1) * heads + head;
      columns.push_back(at::remainder(hash, primes[column]) + offsets[column]);
    }
  }
  return at::stack(columns, 1);
}

Tensor engram_fetch(const Tensor& codes, const Tensor& scales, const Tensor& rows,
                    at::ScalarType out_dtype) {
  TORCH_CHECK(codes.dim() == 2 && scales.dim() == 2 && codes.size(0) == scales.size(0) &&
                  codes.size(1) == scales.size(1) * kScaleBlock && rows.dim() == 2,
              "engram_fetch: codes [R, C], scales [R, C/32], rows [T, K] expected, found ",
              codes.sizes(), ", ", scales.sizes(), ", ", rows.sizes());
  const Tensor flat = rows.reshape({-1});
  const Tensor values = look_up(e4m3_table(codes.device()), codes.index_select(0, flat));
  const Tensor by_row = look_up(e8m0_table(codes.device()), scales.index_select(0, flat));
  const Tensor by_element = by_row.repeat_interleave(kScaleBlock, 1);
  return (fault("engram_scale_ignored") ? values : values * by_element)
      .view({rows.size(0), rows.size(1) * codes.size(1)})
      .to(out_dtype);
}

ops::TensorPair engram_gate(const Tensor& streams, const Tensor& key_value, const Tensor& q_weight,
                            const Tensor& k_weight, const Tensor& text, double norm_eps) {
  const int64_t rows = streams.size(0), count = streams.size(1), hidden = streams.size(2);
  TORCH_CHECK(streams.dim() == 3 && key_value.dim() == 2 && key_value.size(0) == rows &&
                  key_value.size(1) == (count + 1) * hidden && text.numel() == rows,
              "engram_gate: streams [T, S, D], key_value [T, (S+1)*D], text [T] expected, found ",
              streams.sizes(), ", ", key_value.sizes(), ", ", text.sizes());
  const Tensor x = widen(streams);
  const Tensor parts = widen(key_value).view({rows, count + 1, hidden});
  const Tensor key = parts.slice(1, 0, count);
  const Tensor value = parts.slice(1, count, count + 1);
  const auto inverse_rms = [norm_eps](const Tensor& t) {
    return (t.square().mean(-1) + norm_eps).rsqrt();
  };
  const Tensor dot = (x * (widen(q_weight) * widen(k_weight)) * key).sum(-1) * inverse_rms(x) *
                     inverse_rms(key) * (1.0 / std::sqrt(static_cast<double>(hidden)));
  const Tensor root = dot.abs().clamp_min(1e-6).sqrt();
  // copysign: a dot of zero still opens the gate by sigmoid(+-0.001) (model.md 6 row 11).
  Tensor gate = (fault("engram_gate_sign_lost") ? root : at::copysign(root, dot)).sigmoid();
  gate = gate.masked_fill(text.logical_not().unsqueeze(1), 0);
  return {(x + gate.unsqueeze(-1) * value).to(streams.scalar_type()), gate.to(at::kFloat)};
}

}  // namespace deepinfer::reference
