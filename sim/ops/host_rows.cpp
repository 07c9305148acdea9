// Host ops on rows: quantisers, norm, RoPE, swiglu, hyper-connections.
#include "platform/formats.h"
#include "sim/kernels/hyper_connection.h"
#include "sim/kernels/quantize.h"
#include "sim/kernels/rows.h"
#include "sim/ops/host_kernels.h"
#include "sim/ops/tensor_views.h"

namespace deepinfer::host {

using at::Tensor;

namespace {

void check_finite(const char* op, int64_t row) {
  TORCH_CHECK(row < 0, op, ": row ", row, " holds a NaN or an infinity");
}

void check_block(const char* op, const Tensor& x, int64_t block) {
  TORCH_CHECK(x.dim() >= 1 && x.size(-1) % block == 0, op, ": the last axis must be a multiple of ",
              block, ", found ", x.sizes());
}

std::vector<int64_t> with_last(const Tensor& x, int64_t last) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = last;
  return shape;
}

// Runs `kernel(input, output)` on x's rows, into a new tensor of x's shape and type.
template <class Kernel>
Tensor map_rows(const Tensor& x, const char* op, const Kernel& kernel) {
  const Tensor input = x.contiguous();
  const Tensor out = at::empty_like(input);
  const int64_t columns = x.size(-1);
  kernel(rows_view(input, columns, op), mutable_rows_view(out, columns, op));
  return out;
}

}  // namespace

ops::TensorPair quantize_aq32(const Tensor& x, double fp8_max) {
  check_block("quantize_aq32", x, kScaleBlock);
  const Tensor input = x.contiguous();
  const int64_t columns = x.size(-1), blocks = columns / kScaleBlock;
  const Tensor codes = at::empty(x.sizes(), x.options().dtype(at::kByte));
  const Tensor scales = at::empty(with_last(x, blocks), x.options().dtype(at::kByte));
  check_finite("quantize_aq32", deepinfer::quantize_aq32(rows_view(input, columns, "x"), fp8_max,
                                                         codes.data_ptr<uint8_t>(), columns,
                                                         scales.data_ptr<uint8_t>(), blocks));
  return {codes, scales};
}

Tensor dequantize_aq32(const Tensor& codes, const Tensor& scales) {
  TORCH_CHECK(codes.scalar_type() == at::kByte && scales.scalar_type() == at::kByte &&
                  codes.dim() == scales.dim() && codes.size(-1) == scales.size(-1) * kScaleBlock,
              "dequantize_aq32: codes [..., K] and scales [..., K/32] must be uint8, found ",
              codes.sizes(), " and ", scales.sizes());
  const Tensor code_rows = codes.contiguous(), scale_rows = scales.contiguous();
  const Tensor out = at::empty(codes.sizes(), codes.options().dtype(at::kFloat));
  const int64_t columns = codes.size(-1);
  deepinfer::dequantize_aq32(code_rows.data_ptr<uint8_t>(), columns, scale_rows.data_ptr<uint8_t>(),
                             scales.size(-1), mutable_rows_view(out, columns, "values"));
  return out;
}

Tensor fake_quantize_aq32(const Tensor& x, double fp8_max) {
  check_block("fake_quantize_aq32", x, kScaleBlock);
  return map_rows(x, "fake_quantize_aq32", [&](const RowView& in, const MutableRowView& out) {
    check_finite("fake_quantize_aq32", deepinfer::fake_quantize_aq32(in, fp8_max, out));
  });
}

Tensor fake_quantize_fq4_32(const Tensor& x) {
  check_block("fake_quantize_fq4_32", x, kScaleBlock);
  return map_rows(x, "fake_quantize_fq4_32", [&](const RowView& in, const MutableRowView& out) {
    check_finite("fake_quantize_fq4_32", deepinfer::fake_quantize_fq4_32(in, out));
  });
}

Tensor fake_quantize_fq4_16(const Tensor& x, double fp8_max) {
  check_block("fake_quantize_fq4_16", x, kFp4ScaleBlock16);
  return map_rows(x, "fake_quantize_fq4_16", [&](const RowView& in, const MutableRowView& out) {
    check_finite("fake_quantize_fq4_16", deepinfer::fake_quantize_fq4_16(in, fp8_max, out));
  });
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  TORCH_CHECK(x.size(-1) == weight.numel(), "rms_norm: weight must be [", x.size(-1), "], found ",
              weight.sizes());
  const Tensor w = weight.contiguous();
  return map_rows(x, "rms_norm", [&](const RowView& in, const MutableRowView& out) {
    deepinfer::rms_norm(in, rows_view(w, w.numel(), "weight"), static_cast<float>(eps), out);
  });
}

ops::TensorPair rope_table(const Tensor& positions, const Tensor& frequencies) {
  TORCH_CHECK(positions.dim() == 1 && positions.scalar_type() == at::kLong &&
                  frequencies.dim() == 1 && frequencies.scalar_type() == at::kFloat,
              "rope_table: positions int64 [T] and fp32 frequencies [R/2] expected, found ",
              positions.sizes(), " and ", frequencies.sizes());
  const Tensor p = positions.contiguous(), f = frequencies.contiguous();
  const Tensor cos = at::empty({p.size(0), f.size(0)}, f.options()), sin = at::empty_like(cos);
  deepinfer::rope_table(p.data_ptr<int64_t>(), p.size(0), f.data_ptr<float>(), f.size(0),
                        cos.data_ptr<float>(), sin.data_ptr<float>());
  return {cos, sin};
}

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, bool inverse) {
  const int64_t pairs = cos.size(-1);
  TORCH_CHECK(x.dim() >= 2 && cos.dim() == 2 && cos.sizes() == sin.sizes() &&
                  cos.size(0) == x.size(0) && 2 * pairs <= x.size(-1),
              "rope: x [T, ..., C] and cos, sin [T, R/2] with R <= C expected, found ", x.sizes(),
              ", ", cos.sizes(), ", ", sin.sizes());
  const Tensor c = cos.contiguous(), s = sin.contiguous();
  const int64_t rows_per_angle =
      x.size(0) == 0 || x.size(-1) == 0 ? 1 : x.numel() / x.size(0) / x.size(-1);
  return map_rows(x, "rope", [&](const RowView& in, const MutableRowView& out) {
    deepinfer::rope(in, rows_per_angle, c.data_ptr<float>(), s.data_ptr<float>(), pairs, inverse,
                    out);
  });
}

Tensor swiglu(const Tensor& gate, const Tensor& up, const ops::OptionalTensor& row_weight,
              double limit) {
  TORCH_CHECK(gate.dim() == 2 && gate.sizes() == up.sizes() &&
                  gate.scalar_type() == up.scalar_type() &&
                  (!row_weight.has_value() || row_weight->numel() == gate.size(0)),
              "swiglu: gate and up [T, F], row_weight [T] expected, found ", gate.sizes(), " and ",
              up.sizes());
  const Tensor u = up.contiguous();
  const Tensor w = row_weight.has_value() ? row_weight->contiguous() : Tensor();
  return map_rows(gate, "swiglu", [&](const RowView& in, const MutableRowView& out) {
    deepinfer::swiglu(in, rows_view(u, u.size(1), "up"),
                      w.defined() ? w.data_ptr<float>() : nullptr, static_cast<float>(limit), out);
  });
}

ops::TensorTriple hc_mix(const Tensor& streams, const Tensor& fn, const Tensor& scale,
                         const Tensor& base, int64_t sinkhorn_iters, double hc_eps,
                         double norm_eps) {
  TORCH_CHECK(streams.dim() == 3, "hc_mix: streams must be [T, S, D], found ", streams.sizes());
  const int64_t rows = streams.size(0), count = streams.size(1), columns = count * streams.size(2);
  const int64_t coefficients = 2 * count + count * count;
  TORCH_CHECK(fn.dim() == 2 && fn.size(0) == coefficients && fn.size(1) == columns &&
                  scale.numel() == 3 && base.numel() == coefficients,
              "hc_mix: fn [", coefficients, ", ", columns, "], scale [3], base [", coefficients,
              "] expected, found ", fn.sizes(), ", ", scale.sizes(), ", ", base.sizes());
  const Tensor x = streams.contiguous();
  // Released checkpoints hold fn in fp32; a bf16 one is widened, exactly.
  const Tensor f = fn.to(at::kFloat).contiguous(), s = scale.contiguous(), b = base.contiguous();
  const auto options = streams.options().dtype(at::kFloat);
  const Tensor pre = at::empty({rows, count}, options), post = at::empty({rows, count}, options);
  const Tensor comb = at::empty({rows, count, count}, options);
  HcMix mix;
  mix.streams = rows_view(x, columns, "streams");
  mix.count = count;
  mix.fn = f.data_ptr<float>();
  mix.scale = s.data_ptr<float>();
  mix.base = b.data_ptr<float>();
  mix.sinkhorn_iterations = sinkhorn_iters;
  mix.hc_eps = static_cast<float>(hc_eps);
  mix.norm_eps = static_cast<float>(norm_eps);
  mix.pre = pre.data_ptr<float>();
  mix.post = post.data_ptr<float>();
  mix.comb = comb.data_ptr<float>();
  deepinfer::hc_mix(mix);
  return {pre, post, comb};
}

Tensor hc_collapse(const Tensor& streams, const Tensor& pre) {
  TORCH_CHECK(streams.dim() == 3 && pre.dim() == 2 && pre.size(0) == streams.size(0) &&
                  pre.size(1) == streams.size(1),
              "hc_collapse: streams [T, S, D] and pre [T, S] expected, found ", streams.sizes(),
              " and ", pre.sizes());
  const Tensor x = streams.contiguous(), p = pre.contiguous();
  const Tensor out = at::empty({x.size(0), x.size(2)}, x.options());
  deepinfer::hc_collapse(rows_view(x, x.size(1) * x.size(2), "streams"), x.size(1),
                         p.data_ptr<float>(), mutable_rows_view(out, x.size(2), "y"));
  return out;
}

Tensor hc_expand(const Tensor& y, const Tensor& streams, const Tensor& post, const Tensor& comb) {
  TORCH_CHECK(
      streams.dim() == 3 && y.dim() == 2 && y.size(0) == streams.size(0) &&
          y.size(1) == streams.size(2) && y.scalar_type() == streams.scalar_type() &&
          post.size(1) == streams.size(1) && comb.dim() == 3 && comb.size(1) == streams.size(1) &&
          comb.size(2) == streams.size(1),
      "hc_expand: y [T, D], streams [T, S, D], post [T, S], comb [T, S, S] expected, found ",
      y.sizes(), ", ", streams.sizes(), ", ", post.sizes(), ", ", comb.sizes());
  const Tensor input = y.contiguous(), x = streams.contiguous(), p = post.contiguous(),
               c = comb.contiguous();
  const Tensor out = at::empty_like(x);
  const int64_t columns = x.size(1) * x.size(2);
  deepinfer::hc_expand(rows_view(input, x.size(2), "y"), rows_view(x, columns, "streams"),
                       x.size(1), p.data_ptr<float>(), c.data_ptr<float>(),
                       mutable_rows_view(out, columns, "streams"));
  return out;
}

}  // namespace deepinfer::host
