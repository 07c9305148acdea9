// Host ops of the mixture of experts and of Engram.
#include "platform/formats.h"
#include "platform/partials.h"
#include "sim/kernels/engram.h"
#include "sim/kernels/moe_combine.h"
#include "sim/kernels/select.h"
#include "sim/ops/host_kernels.h"
#include "sim/ops/tensor_views.h"

namespace deepinfer::host {

using at::Tensor;

namespace {

// Of contiguous tensors, which must outlive it.
ExpertOutputs expert_outputs(const Tensor& outputs, const Tensor& rows, const Tensor& offsets,
                             int64_t tokens) {
  ExpertOutputs made;
  made.outputs = rows_view(outputs, outputs.size(1), "outputs");
  made.outputs.rows = outputs.size(0);
  made.rows = rows.data_ptr<int64_t>();
  made.offsets = span_of<int64_t>(offsets);
  made.tokens = tokens;
  return made;
}

}  // namespace

ops::TensorPair moe_gate(const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t k,
                         double gate_temp, double scaling) {
  TORCH_CHECK(
      x.dim() == 2 && weight.dim() == 2 && weight.size(1) == x.size(1) &&
          bias.size(-1) == weight.size(0) && bias.scalar_type() == at::kFloat && k > 0 &&
          k <= weight.size(0),
      "moe_gate: x [T, D], weight [E, D], fp32 bias [E] or [T, E] and 0 < k <= E expected, found ",
      x.sizes(), ", ", weight.sizes(), ", ", bias.sizes(), ", ", k);
  const Tensor input = x.contiguous(), w = weight.contiguous(), b = bias.contiguous();
  const Tensor ids = at::empty({x.size(0), k}, x.options().dtype(at::kInt));
  const Tensor weights = at::empty({x.size(0), k}, x.options().dtype(at::kFloat));
  MoeGate args;
  args.x = rows_view(input, x.size(1), "x");
  args.weight = rows_view(w, w.size(1), "weight");
  args.bias = b.data_ptr<float>();
  args.bias_stride = b.dim() == 2 ? b.size(1) : 0;
  args.k = k;
  args.gate_temp = static_cast<float>(gate_temp);
  args.scaling = static_cast<float>(scaling);
  args.experts = ids.data_ptr<int32_t>();
  args.weights = weights.data_ptr<float>();
  const int64_t row = deepinfer::moe_gate(args);
  TORCH_CHECK(row < 0, "moe_gate: a score in row ", row, " is NaN");
  return {ids, weights};
}

Tensor moe_combine(const Tensor& outputs, const Tensor& rows, const Tensor& offsets,
                   const ops::OptionalTensor& shared, int64_t tokens) {
  TORCH_CHECK(outputs.dim() == 2 && rows.dim() == 1 && rows.size(0) == outputs.size(0) &&
                  rows.scalar_type() == at::kLong && offsets.scalar_type() == at::kLong &&
                  offsets.numel() >= 1 && offsets.is_contiguous(),
              "moe_combine: outputs [P, D], int64 rows [P], int64 offsets [E+1] expected, found ",
              outputs.sizes(), ", ", rows.sizes(), ", ", offsets.sizes());
  TORCH_CHECK(!shared.has_value() || (shared->dim() == 2 && shared->size(0) == tokens &&
                                      shared->size(1) == outputs.size(1) &&
                                      shared->scalar_type() == outputs.scalar_type()),
              "moe_combine: shared must be [", tokens, ", ", outputs.size(1),
              "] in the outputs' dtype");
  const Tensor y = outputs.contiguous(), r = rows.contiguous();
  const Tensor s = shared.has_value() ? shared->contiguous() : Tensor();
  const Tensor out = at::empty({tokens, outputs.size(1)}, outputs.options());
  ExpertOutputs args = expert_outputs(y, r, offsets, tokens);
  args.experts = offsets.numel() - 1;
  std::optional<RowView> shared_rows;
  if (s.defined()) shared_rows = rows_view(s, s.size(1), "shared");
  MutableRowView to = mutable_rows_view(out, out.size(1), "out");
  to.rows = tokens;
  deepinfer::moe_combine(args, shared_rows, to);
  return out;
}

Tensor moe_partials(const Tensor& outputs, const Tensor& rows, const Tensor& offsets,
                    int64_t tokens, int64_t first_expert, int64_t experts, int64_t first_position,
                    int64_t positions) {
  const std::vector<Subtree> subtrees = check_moe_partials(
      outputs, rows, offsets, tokens, first_expert, experts, first_position, positions);
  const Tensor y = outputs.contiguous(), r = rows.contiguous();
  const Tensor out = at::empty({static_cast<int64_t>(subtrees.size()), tokens, outputs.size(1)},
                               outputs.options().dtype(at::kFloat));
  ExpertOutputs args = expert_outputs(y, r, offsets, tokens);
  args.first_expert = first_expert;
  args.experts = experts;
  deepinfer::moe_partials(args, {first_position, first_position + positions},
                          out.data_ptr<float>());
  return out;
}

Tensor engram_hash(const Tensor& compressed_ids, int64_t rows, const Tensor& multipliers,
                   const Tensor& primes, const Tensor& offsets, int64_t pad) {
  const int64_t length = compressed_ids.size(0), order = multipliers.size(0);
  TORCH_CHECK(compressed_ids.dim() == 1 && rows >= 0 && rows <= length && order >= 2 &&
                  primes.numel() % (order - 1) == 0 && offsets.numel() == primes.numel(),
              "engram_hash: ids [L >= rows], multipliers [N >= 2], primes and offsets "
              "[(N-1)*heads] expected");
  const Tensor ids = compressed_ids.contiguous(), m = multipliers.contiguous(),
               p = primes.contiguous();
  const Tensor o = offsets.contiguous();
  const Tensor out = at::empty({rows, primes.numel()}, ids.options());
  deepinfer::engram_hash(span_of<int64_t>(ids), rows, span_of<int64_t>(m), span_of<int64_t>(p),
                         span_of<int64_t>(o), pad, out.data_ptr<int64_t>());
  return out;
}

Tensor engram_fetch(const Tensor& codes, const Tensor& scales, const Tensor& rows,
                    at::ScalarType out_dtype) {
  TORCH_CHECK(
      codes.dim() == 2 && scales.dim() == 2 && codes.size(0) == scales.size(0) &&
          codes.size(1) == scales.size(1) * kScaleBlock && rows.dim() == 2 &&
          codes.is_contiguous() && scales.is_contiguous() && codes.scalar_type() == at::kByte &&
          scales.scalar_type() == at::kByte && rows.scalar_type() == at::kLong,
      "engram_fetch: uint8 codes [R, C] and scales [R, C/32], int64 rows [T, K] expected, found ",
      codes.sizes(), ", ", scales.sizes(), ", ", rows.sizes());
  const Tensor places = rows.contiguous();
  const Tensor out =
      at::empty({rows.size(0), rows.size(1) * codes.size(1)}, codes.options().dtype(out_dtype));
  const int64_t outside = deepinfer::engram_fetch(
      codes.data_ptr<uint8_t>(), scales.data_ptr<uint8_t>(), codes.size(0),
      places.data_ptr<int64_t>(), mutable_rows_view(out, codes.size(1), "out"));
  TORCH_CHECK(outside < 0, "engram_fetch: place ", outside, " names row ",
              places.data_ptr<int64_t>()[outside], " of a table of ", codes.size(0));
  return out;
}

ops::TensorPair engram_gate(const Tensor& streams, const Tensor& key_value, const Tensor& q_weight,
                            const Tensor& k_weight, const Tensor& text, double norm_eps) {
  const int64_t rows = streams.size(0), count = streams.size(1), hidden = streams.size(2);
  TORCH_CHECK(streams.dim() == 3 && key_value.dim() == 2 && key_value.size(0) == rows &&
                  key_value.size(1) == (count + 1) * hidden &&
                  key_value.scalar_type() == streams.scalar_type() && text.numel() == rows &&
                  text.scalar_type() == at::kBool,
              "engram_gate: streams [T, S, D], key_value [T, (S+1)*D] of one dtype, bool text [T] "
              "expected, found ",
              streams.sizes(), ", ", key_value.sizes(), ", ", text.sizes());
  const Tensor x = streams.contiguous(), kv = key_value.contiguous(), t = text.contiguous();
  const Tensor q = q_weight.contiguous(), k = k_weight.contiguous();
  const Tensor out = at::empty_like(x);
  const Tensor gate = at::empty({rows, count}, x.options().dtype(at::kFloat));
  deepinfer::engram_gate(rows_view(x, count * hidden, "streams"), count,
                         rows_view(kv, (count + 1) * hidden, "key_value"),
                         rows_view(q, hidden, "q_weight"), rows_view(k, hidden, "k_weight"),
                         static_cast<const uint8_t*>(t.data_ptr()), static_cast<float>(norm_eps),
                         mutable_rows_view(out, count * hidden, "streams"), gate.data_ptr<float>());
  return {out, gate};
}

}  // namespace deepinfer::host
