// Reference attention: KV stores, compression pooling, sparse attention with sink and log-sum-exp.
#include <limits>

#include "platform/fault.h"
#include "platform/reference/reference.h"

namespace deepinfer::reference {

using at::Tensor;

namespace {

// The running maximum starts at a finite value, so that an empty row gives 0 and not NaN
// (model.md 3.3).
constexpr double kMaximumFloor = -1e30;
// List entries that share a running maximum in the official kernel (model.md 4.3).
constexpr int64_t kListBlock = 64;
// Gathered keys of one step have at most this many elements.
constexpr int64_t kGatherElements = int64_t{32} << 20;

struct Attended {
  Tensor out;  // fp64 [T, H, C]
  Tensor lse;  // fp64 [T, H]
};

// q fp64 [T, H, C], keys fp64 [N, C] (all sources), index int64 [T, L] with -1 for unused places.
Attended attend(const Tensor& q, const Tensor& keys, const Tensor& index,
                const ops::OptionalTensor& sink, double scale, bool narrow) {
  const int64_t rows = q.size(0), heads = q.size(1), channels = q.size(2), length = index.size(1);
  const Tensor unused = index.lt(0);
  const Tensor gathered =
      keys.index_select(0, index.clamp_min(0).reshape({-1})).view({rows, length, channels});
  Tensor scores = at::matmul(q, gathered.transpose(1, 2)) * scale;  // [T, H, L]
  scores = scores.masked_fill(unused.unsqueeze(1), -std::numeric_limits<float>::infinity());

  const Tensor wide_sink = sink.has_value() ? widen(*sink).view({1, heads, 1}) : Tensor();
  Tensor maximum = at::full({rows, heads, 1}, kMaximumFloor, scores.options());
  if (sink.has_value() && fault("sink_in_the_maximum")) maximum = at::maximum(maximum, wide_sink);
  Tensor sum = at::zeros({rows, heads, 1}, scores.options());
  Tensor out = at::zeros({rows, heads, channels}, scores.options());
  const int64_t block = narrow ? kListBlock : std::max<int64_t>(length, 1);
  for (int64_t begin = 0; begin < length; begin += block) {
    const int64_t end = std::min(length, begin + block);
    const Tensor s = scores.slice(2, begin, end);
    const Tensor new_maximum = at::maximum(maximum, s.amax({2}, /*keepdim=*/true));
    const Tensor rescale = (maximum - new_maximum).exp();
    const Tensor p = (s - new_maximum).exp();
    // The denominator takes the probabilities as they are, the values the rounded ones
    // (model-verified.md 7).
    const Tensor p_values = narrow ? widen(p.to(at::kBFloat16)) : p;
    sum = sum * rescale + p.sum({2}, /*keepdim=*/true);
    out = out * rescale + at::matmul(p_values, gathered.slice(1, begin, end));
    maximum = new_maximum;
  }
  const Tensor lse = (maximum + sum.log()).squeeze(-1);  // log 0 = -inf for an empty row
  Tensor denominator = sum;
  if (sink.has_value() && !fault("sink_missing")) {
    denominator = sum + (wide_sink * (fault("sink_scaled") ? scale : 1.0) - maximum).exp();
  }
  // Without a sink an empty row has denominator 0; its output is 0 by definition.
  return {at::where(sum.gt(0), out / denominator, at::zeros({}, out.options())), lse};
}

}  // namespace

void kv_store(const Tensor& pool, const Tensor& rows, const Tensor& slots) {
  TORCH_CHECK(pool.dim() == 2 && rows.dim() == 2 && rows.size(1) == pool.size(1) &&
                  slots.dim() == 1 && slots.size(0) == rows.size(0) &&
                  pool.scalar_type() == rows.scalar_type(),
              "kv_store: pool [P, C], rows [T, C] of one dtype and slots [T] expected, found ",
              pool.sizes(), " ", pool.scalar_type(), ", ", rows.sizes(), " ", rows.scalar_type(),
              ", ", slots.sizes());
  Tensor target = pool;
  target.index_copy_(0, slots, rows);
}

Tensor compress_pool(const Tensor& values, const Tensor& gates) {
  TORCH_CHECK(values.dim() == 3 && values.sizes() == gates.sizes() &&
                  values.scalar_type() == at::kFloat && gates.scalar_type() == at::kFloat,
              "compress_pool: fp32 values and gates [G, R, C] expected, found ", values.sizes(),
              " and ", gates.sizes());
  return (widen(values) * at::softmax(widen(gates), fault("pool_softmax_over_channels") ? 2 : 1))
      .sum(1)
      .to(at::kFloat);
}

ops::TensorPair sparse_attention(const Tensor& q, const Tensor& window, int64_t /*window_position*/,
                                 const Tensor& window_index, const Tensor& compressed,
                                 const Tensor& compressed_index, const ops::OptionalTensor& sink,
                                 double scale, bool narrow) {
  const int64_t rows = q.size(0);
  TORCH_CHECK(
      q.dim() == 3 && window.dim() == 2 && window.size(1) == q.size(2) && compressed.dim() == 2 &&
          compressed.size(1) == q.size(2) && window_index.dim() == 2 &&
          window_index.size(0) == rows && compressed_index.dim() == 2 &&
          compressed_index.size(0) == rows,
      "sparse_attention: q [T, H, C], window [N, C], window_index [T, W], compressed [M, C], "
      "compressed_index [T, K] expected, found ",
      q.sizes(), ", ", window.sizes(), ", ", window_index.sizes(), ", ", compressed.sizes(), ", ",
      compressed_index.sizes());
  TORCH_CHECK(!sink.has_value() || sink->numel() == q.size(1), "sparse_attention: sink must be [",
              q.size(1), "]");
  const Tensor keys = widen(at::cat({window, compressed}, 0));
  const Tensor shifted =
      at::where(compressed_index.ge(0), compressed_index + window.size(0), compressed_index);
  const Tensor index = at::cat({window_index.to(at::kLong), shifted.to(at::kLong)}, 1);
  const Tensor wide_q = widen(q);

  const int64_t by_row = std::max<int64_t>(index.size(1) * q.size(2), 1);
  const int64_t step = std::max<int64_t>(kGatherElements / by_row, 1);
  std::vector<Tensor> outs, lses;
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t end = std::min(rows, begin + step);
    Attended part =
        attend(wide_q.slice(0, begin, end), keys, index.slice(0, begin, end), sink, scale, narrow);
    outs.push_back(part.out.to(q.scalar_type()));
    lses.push_back(part.lse.to(at::kFloat));
  }
  if (outs.empty()) {
    return {at::zeros_like(q), at::zeros({0, q.size(1)}, q.options().dtype(at::kFloat))};
  }
  return {at::cat(outs, 0), at::cat(lses, 0)};
}

}  // namespace deepinfer::reference
