// Cases of functions, rows, quantisers and hyper-connections.
#include <torch/version.h>

#include "sim/kernels/hyper_connection.h"
#include "sim/kernels/math.h"
#include "sim/kernels/quantize.h"
#include "sim/kernels/rows.h"
#include "sim/ops/bench/aten_bench.h"
#include "sim/ops/bench/bench_tensors.h"

namespace deepinfer {

using namespace bench;
using host::mutable_rows_view;
using host::rows_view;
using host::span_of;

namespace {

constexpr auto kBf16 = at::kBFloat16;
constexpr auto kFp32 = at::kFloat;

void expect_none(int64_t bad_row) { TORCH_INTERNAL_ASSERT(bad_row < 0, "row ", bad_row); }

struct FunctionPeer {
  const char* name;
  MathFunction function;
  Tensor (*peer)(const Tensor&);
  bool positive;  // its arguments
};

KernelBenchCase function_case(const FunctionPeer& one) {
  constexpr int64_t kCount = 16'384;  // 64 KiB in, 64 KiB out: what a second-level cache holds
  return aten_case(one.name, "math.h", shape_text({kCount}) + " fp32",
                   std::string("at::") + one.name, kCount, kFp32Tolerance, [one] {
                     Tensor x = normal_numbers({kCount}, kFp32) * 4;
                     if (one.positive) x = x.abs() + 0x1p-20;
                     const Tensor y = at::empty_like(x);
                     return aten_pair(
                         [one, x, y](Target target) {
                           evaluate(one.function, span_of<float>(x), span_of<float>(y), target);
                         },
                         {y}, [one, x] { return std::vector<Tensor>{one.peer(x)}; });
                   });
}

KernelBenchCase rms_norm_case(int64_t rows) {
  return aten_case(
      "rms_norm", "rows.h", shape_text({rows, kHidden}) + " bf16",
      "fp32 square, mean, rsqrt, two products", rows * kHidden, kBf16Tolerance, [rows] {
        const Tensor x = normal_numbers({rows, kHidden}, kBf16),
                     w = normal_numbers({kHidden}, kBf16), y = at::empty_like(x);
        return aten_pair(
            [x, w, y](Target target) {
              rms_norm(rows_view(x, kHidden, "x"), rows_view(w, kHidden, "w"),
                       static_cast<float>(kNormEps), mutable_rows_view(y, kHidden, "y"), target);
            },
            {y},
            [x, w] {
              const Tensor wide = x.to(kFp32);
              const Tensor r = at::rsqrt(wide.square().mean(-1, true) + kNormEps);
              return std::vector<Tensor>{(wide * r).mul_(w.to(kFp32)).to(kBf16)};
            });
      });
}

KernelBenchCase rope_table_case(int64_t rows) {
  constexpr int64_t kPairs = kRotatedChannels / 2;
  return aten_case(
      "rope_table", "rows.h", shape_text({rows, kPairs}) + " angles", "outer, cos, sin",
      rows * kPairs * 2, kFp32Tolerance, [rows] {
        const Tensor positions = at::arange(1000, 1000 + rows, at::kLong);
        const Tensor frequencies = at::pow(10000.0, at::arange(0, kPairs, kFp32) / -32.0);
        const Tensor cos = at::empty({rows, kPairs}, kFp32), sin = at::empty_like(cos);
        return aten_pair(
            [=](Target target) {
              rope_table(positions.data_ptr<int64_t>(), rows, frequencies.data_ptr<float>(), kPairs,
                         cos.data_ptr<float>(), sin.data_ptr<float>(), target);
            },
            {cos, sin},
            [=] {
              const Tensor angle = at::outer(positions.to(kFp32), frequencies);
              return std::vector<Tensor>{angle.cos(), angle.sin()};
            });
      });
}

KernelBenchCase rope_case(int64_t rows) {
  constexpr int64_t kPairs = kRotatedChannels / 2;
  return aten_case(
      "rope", "rows.h", shape_text({rows, kHeads, kHeadChannels}) + " bf16, 64 channels rotated",
      "complex product of the rotated channels, cat with the others", rows * kHeads * kHeadChannels,
      kBf16Tolerance, [rows] {
        const Tensor x = normal_numbers({rows, kHeads, kHeadChannels}, kBf16),
                     y = at::empty_like(x);
        const Tensor angle = normal_numbers({rows, kPairs}, kFp32);
        const Tensor cos = angle.cos(), sin = angle.sin();
        const Tensor turn = at::complex(cos, sin).unsqueeze(1);
        return aten_pair(
            [=](Target target) {
              rope(rows_view(x, kHeadChannels, "x"), kHeads, cos.data_ptr<float>(),
                   sin.data_ptr<float>(), kPairs, false, mutable_rows_view(y, kHeadChannels, "y"),
                   target);
            },
            {y},
            [=] {
              constexpr int64_t kPlain = kHeadChannels - kRotatedChannels;
              const Tensor pairs = x.narrow(-1, kPlain, kRotatedChannels)
                                       .to(kFp32)
                                       .reshape({rows, kHeads, kPairs, 2});
              const Tensor turned =
                  at::view_as_real(at::view_as_complex(pairs) * turn).flatten(-2).to(kBf16);
              return std::vector<Tensor>{at::cat({x.narrow(-1, 0, kPlain), turned}, -1)};
            });
      });
}

KernelBenchCase swiglu_case(int64_t rows) {
  return aten_case(
      "swiglu", "rows.h", shape_text({rows, kExpertHidden}) + " bf16",
      "fp32 clamps, silu, product, row weight", rows * kExpertHidden, kBf16Tolerance, [rows] {
        const Tensor gate = normal_numbers({rows, kExpertHidden}, kBf16) * 4,
                     up = normal_numbers({rows, kExpertHidden}, kBf16).flip(-1).contiguous(),
                     weights = at::rand({rows}, kFp32), y = at::empty_like(gate);
        return aten_pair(
            [=](Target target) {
              swiglu(rows_view(gate, kExpertHidden, "gate"), rows_view(up, kExpertHidden, "up"),
                     weights.data_ptr<float>(), static_cast<float>(kSwigluLimit),
                     mutable_rows_view(y, kExpertHidden, "y"), target);
            },
            {y},
            [=] {
              const Tensor g = gate.to(kFp32).clamp_max_(kSwigluLimit);
              const Tensor u = up.to(kFp32).clamp_(-kSwigluLimit, kSwigluLimit);
              return std::vector<Tensor>{at::silu(g).mul_(u).mul_(weights.unsqueeze(-1)).to(kBf16)};
            });
      });
}

KernelBenchCase store_rows_case(int64_t rows) {
  constexpr int64_t kPoolRows = 4096;
  KernelBenchCase bench = aten_case(
      "store_rows", "rows.h", shape_text({rows, kHeadChannels}) + " bf16 into a pool",
      "index_copy_", rows * kHeadChannels, 0, [rows] {
        const Tensor pool = at::zeros({kPoolRows, kHeadChannels}, kBf16), peer_pool = pool.clone();
        const Tensor x = normal_numbers({rows, kHeadChannels}, kBf16);
        const Tensor slots = at::arange(0, rows, at::kLong) * 37;
        return aten_pair(
            [=](Target) {
              expect_none(store_rows(mutable_rows_view(pool, kHeadChannels, "pool"),
                                     rows_view(x, kHeadChannels, "rows"),
                                     slots.data_ptr<int64_t>()));
            },
            {pool}, [=] { return std::vector<Tensor>{peer_pool.index_copy_(0, slots, x)}; });
      });
  bench.targets = BenchTargets::kOneForAll;
  return bench;
}

// --- Quantisers, in fp32 arithmetic on blocks [..., blocks, block].

// 2^ceil(log2 x).
Tensor power_of_two_at_least(const Tensor& x) { return at::exp2(x.log2().ceil_()); }

// The magnitude of x in steps of a format with `mantissa_bits`, and the exponent of its binade.
struct Steps {
  Tensor steps, exponent;
};
Steps steps_of(const Tensor& magnitude, int64_t min_exponent, int64_t mantissa_bits) {
  const Tensor exponent = magnitude.log2().floor_().clamp_min_(min_exponent);
  return {at::round(magnitude * at::exp2(mantissa_bits - exponent)), exponent};
}

// Nearest e4m3fn and e2m1 values. torch has no fp4, and fp8 from 2.1 on.
Tensor e4m3fn_rounded(const Tensor& x) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 1)
  return x.to(at::kFloat8_e4m3fn).to(kFp32);
#else
  const Steps s = steps_of(x.abs(), -6, 3);
  return at::copysign(s.steps * at::exp2(s.exponent - 3), x);
#endif
}
Tensor e4m3fn_codes(const Tensor& x) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 1)
  return x.to(at::kFloat8_e4m3fn).view(at::kByte);
#else
  // 8 codes a binade; below the first one the steps are the codes.
  const Steps s = steps_of(x.abs(), -6, 3);
  return ((s.exponent + 6) * 8 + s.steps + at::signbit(x) * 128).to(at::kByte);
#endif
}
Tensor e2m1_rounded(const Tensor& x) {
  const Steps s = steps_of(x.abs(), 0, 1);
  return at::copysign(s.steps * at::exp2(s.exponent - 1), x);
}

constexpr double kFp8Max = 448;

// C5.1's scale of each block: [..., blocks, 1].
Tensor aq32_scales(const Tensor& blocks) {
  return power_of_two_at_least(blocks.abs().amax(-1, true).clamp_min_(1e-4) * (1 / kFp8Max));
}

KernelBenchCase quantize_case(int64_t rows) {
  return aten_case("quantize_aq32", "quantize.h", shape_text({rows, kHidden}) + " bf16",
                   "fp32 amax, scale, quotient, fp8 code", rows * kHidden, kCodeTolerance, [rows] {
                     const Tensor x = normal_numbers({rows, kHidden}, kBf16);
                     const Tensor codes = at::empty({rows, kHidden}, at::kByte),
                                  scales = at::empty({rows, kHidden / 32}, at::kByte);
                     return aten_pair(
                         [=](Target target) {
                           expect_none(quantize_aq32(
                               rows_view(x, kHidden, "x"), kFp8Max, codes.data_ptr<uint8_t>(),
                               kHidden, scales.data_ptr<uint8_t>(), kHidden / 32, target));
                         },
                         {codes, scales},
                         [=] {
                           const Tensor blocks = x.to(kFp32).view({rows, -1, 32});
                           const Tensor scale = aq32_scales(blocks);
                           return std::vector<Tensor>{e4m3fn_codes(blocks / scale),
                                                      (scale.log2() + 127).to(at::kByte)};
                         });
                   });
}

KernelBenchCase dequantize_case(int64_t rows) {
  return aten_case(
      "dequantize_aq32", "quantize.h", shape_text({rows, kHidden}) + " to fp32",
      "fp8 value, exp2 of the scale, product", rows * kHidden, 0, [rows] {
        const Tensor codes = whole_numbers({rows, kHidden}, 127, at::kByte),
                     scales = whole_numbers({rows, kHidden / 32}, 16, at::kByte) + 112,
                     y = at::empty({rows, kHidden}, kFp32);
        return aten_pair(
            [=](Target target) {
              dequantize_aq32(codes.data_ptr<uint8_t>(), kHidden, scales.data_ptr<uint8_t>(),
                              kHidden / 32, mutable_rows_view(y, kHidden, "y"), target);
            },
            {y},
            [=] {
              const Tensor scale = at::exp2(scales.to(kFp32) - 127).unsqueeze(-1);
              return std::vector<Tensor>{e4m3fn_values(codes).view({rows, -1, 32}) * scale};
            });
      });
}

// `kernel(x, y, target)`, `peer(blocks)` on blocks [rows, blocks, block] fp32.
template <class Kernel, class Peer>
KernelBenchCase fake_case(const char* name, const char* how, int64_t rows, int64_t block,
                          Kernel kernel, Peer peer) {
  return aten_case(name, "quantize.h", shape_text({rows, kHidden}) + " bf16", how, rows * kHidden,
                   kBf16Tolerance, [=] {
                     const Tensor x = normal_numbers({rows, kHidden}, kBf16), y = at::empty_like(x);
                     return aten_pair(
                         [=](Target target) {
                           expect_none(kernel(rows_view(x, kHidden, "x"),
                                              mutable_rows_view(y, kHidden, "y"), target));
                         },
                         {y},
                         [=] {
                           const Tensor blocks = x.to(kFp32).view({rows, -1, block});
                           return std::vector<Tensor>{peer(blocks).to(kBf16)};
                         });
                   });
}

// --- Hyper-connections

KernelBenchCase hc_mix_case(int64_t rows) {
  constexpr int64_t kColumns = kStreams * kHidden, kMixes = 2 * kStreams + kStreams * kStreams;
  return aten_case(
      "hc_mix", "hyper_connection.h",
      shape_text({rows, kStreams, kHidden}) + " bf16, " + std::to_string(kSinkhornIterations) +
          " iterations",
      "fp32 norm, matmul, sigmoid, softmax, Sinkhorn steps", rows * kColumns, kFp32Tolerance,
      [rows] {
        const Tensor streams = normal_numbers({rows, kStreams, kHidden}, kBf16);
        const Tensor fn = normal_numbers({kMixes, kColumns}, kFp32) * 0.01,
                     scale = normal_numbers({3}, kFp32), base = normal_numbers({kMixes}, kFp32);
        const Tensor pre = at::empty({rows, kStreams}, kFp32), post = at::empty_like(pre),
                     comb = at::empty({rows, kStreams, kStreams}, kFp32);
        HcMix mix;
        mix.streams = rows_view(streams, kColumns, "streams");
        mix.count = kStreams;
        mix.fn = fn.data_ptr<float>();
        mix.scale = scale.data_ptr<float>();
        mix.base = base.data_ptr<float>();
        mix.sinkhorn_iterations = kSinkhornIterations;
        mix.hc_eps = static_cast<float>(kHcEps);
        mix.norm_eps = static_cast<float>(kNormEps);
        mix.pre = pre.data_ptr<float>();
        mix.post = post.data_ptr<float>();
        mix.comb = comb.data_ptr<float>();
        const Tensor scales = at::cat({scale[0].expand({kStreams}), scale[1].expand({kStreams}),
                                       scale[2].expand({kStreams * kStreams})});
        return aten_pair([mix, streams, fn, scale, base, pre, post,
                          comb](Target target) { hc_mix(mix, target); },
                         {pre, post, comb},
                         [=] {
                           const Tensor x = streams.to(kFp32).view({rows, kColumns});
                           const Tensor r = at::rsqrt(x.square().mean(-1, true) + kNormEps);
                           const Tensor m = at::addcmul(base, at::matmul(x, fn.t()) * r, scales);
                           const Tensor peer_pre = m.narrow(1, 0, kStreams).sigmoid().add_(kHcEps);
                           const Tensor peer_post =
                               m.narrow(1, kStreams, kStreams).sigmoid().mul_(2);
                           Tensor c = m.narrow(1, 2 * kStreams, kStreams * kStreams)
                                          .reshape({rows, kStreams, kStreams});
                           c = c.softmax(-1).add_(kHcEps);
                           c.div_(c.sum(1, true).add_(kHcEps));
                           for (int64_t i = 1; i < kSinkhornIterations; ++i) {
                             c.div_(c.sum(2, true).add_(kHcEps));
                             c.div_(c.sum(1, true).add_(kHcEps));
                           }
                           return std::vector<Tensor>{peer_pre, peer_post, c};
                         });
      });
}

KernelBenchCase hc_collapse_case(int64_t rows) {
  return aten_case(
      "hc_collapse", "hyper_connection.h", shape_text({rows, kStreams, kHidden}) + " bf16",
      "fp32 bmm", rows * kStreams * kHidden, kBf16Tolerance, [rows] {
        const Tensor streams = normal_numbers({rows, kStreams, kHidden}, kBf16);
        const Tensor pre = normal_numbers({rows, kStreams}, kFp32);
        const Tensor y = at::empty({rows, kHidden}, kBf16);
        return aten_pair(
            [=](Target target) {
              hc_collapse(rows_view(streams, kStreams * kHidden, "streams"), kStreams,
                          pre.data_ptr<float>(), mutable_rows_view(y, kHidden, "y"), target);
            },
            {y},
            [=] {
              return std::vector<Tensor>{
                  at::bmm(pre.unsqueeze(1), streams.to(kFp32)).squeeze(1).to(kBf16)};
            });
      });
}

KernelBenchCase hc_expand_case(int64_t rows) {
  return aten_case(
      "hc_expand", "hyper_connection.h", shape_text({rows, kStreams, kHidden}) + " bf16",
      "fp32 product, baddbmm", rows * kStreams * kHidden, kBf16Tolerance, [rows] {
        const Tensor streams = normal_numbers({rows, kStreams, kHidden}, kBf16),
                     y = normal_numbers({rows, kHidden}, kBf16).flip(-1).contiguous();
        const Tensor post = normal_numbers({rows, kStreams}, kFp32),
                     comb = normal_numbers({rows, kStreams, kStreams}, kFp32);
        const Tensor out = at::empty_like(streams);
        return aten_pair(
            [=](Target target) {
              hc_expand(rows_view(y, kHidden, "y"), rows_view(streams, kStreams * kHidden, "x"),
                        kStreams, post.data_ptr<float>(), comb.data_ptr<float>(),
                        mutable_rows_view(out, kStreams * kHidden, "out"), target);
            },
            {out},
            [=] {
              const Tensor scaled = post.unsqueeze(-1) * y.to(kFp32).unsqueeze(1);
              return std::vector<Tensor>{
                  at::baddbmm(scaled, comb.transpose(1, 2), streams.to(kFp32)).to(kBf16)};
            });
      });
}

}  // namespace

std::vector<KernelBenchCase> function_bench_cases() {
  const auto softplus = [](const Tensor& x) { return at::softplus(x); };
  const FunctionPeer functions[] = {
      {"exp", MathFunction::kExp, at::exp, false},
      {"log", MathFunction::kLog, at::log, true},
      {"log1p", MathFunction::kLog1p, at::log1p, true},
      {"sigmoid", MathFunction::kSigmoid, at::sigmoid, false},
      {"silu", MathFunction::kSilu, at::silu, false},
      {"softplus", MathFunction::kSoftplus, softplus, false},
      {"sin", MathFunction::kSin, at::sin, false},
      {"cos", MathFunction::kCos, at::cos, false},
  };
  std::vector<KernelBenchCase> cases;
  for (const FunctionPeer& one : functions) cases.push_back(function_case(one));
  return cases;
}

std::vector<KernelBenchCase> row_bench_cases() {
  std::vector<KernelBenchCase> cases;
  for (const auto make :
       {rms_norm_case, rope_table_case, rope_case, swiglu_case, store_rows_case}) {
    for (const int64_t rows : kRowCounts) cases.push_back(make(rows));
  }
  return cases;
}

std::vector<KernelBenchCase> quantize_bench_cases() {
  std::vector<KernelBenchCase> cases;
  for (const auto make : {quantize_case, dequantize_case}) {
    for (const int64_t rows : kRowCounts) cases.push_back(make(rows));
  }
  for (const int64_t rows : kRowCounts) {
    cases.push_back(fake_case(
        "fake_quantize_aq32", "fp32 amax, scale, quotient, fp8 value, product", rows, 32,
        [](const RowView& x, const MutableRowView& y, Target target) {
          return fake_quantize_aq32(x, kFp8Max, y, target);
        },
        [](const Tensor& blocks) {
          const Tensor scale = aq32_scales(blocks);
          return e4m3fn_rounded(blocks / scale).mul_(scale);
        }));
    cases.push_back(fake_case(
        "fake_quantize_fq4_32", "fp32 amax, scale, quotient, fp4 value, product", rows, 32,
        [](const RowView& x, const MutableRowView& y, Target target) {
          return fake_quantize_fq4_32(x, y, target);
        },
        [](const Tensor& blocks) {
          const Tensor amax = blocks.abs().amax(-1, true).clamp_min_(6 * 0x1p-126);
          const Tensor scale = power_of_two_at_least(amax / 6);
          return e2m1_rounded(blocks / scale).mul_(scale);
        }));
    cases.push_back(fake_case(
        "fake_quantize_fq4_16", "fp32 amax, fp8 scale, quotient, fp4 value, product", rows, 16,
        [](const RowView& x, const MutableRowView& y, Target target) {
          return fake_quantize_fq4_16(x, kFp8Max, y, target);
        },
        [](const Tensor& blocks) {
          const Tensor amax = blocks.abs().amax(-1, true).clamp_min_(6 * 0x1p-9);
          const Tensor scale = e4m3fn_rounded((amax / 6).clamp_max_(kFp8Max));
          return e2m1_rounded((blocks / scale).clamp_(-6, 6)).mul_(scale);
        }));
  }
  return cases;
}

std::vector<KernelBenchCase> hyper_connection_bench_cases() {
  std::vector<KernelBenchCase> cases;
  for (const auto make : {hc_mix_case, hc_collapse_case, hc_expand_case}) {
    for (const int64_t rows : kRowCounts) cases.push_back(make(rows));
  }
  return cases;
}

}  // namespace deepinfer
