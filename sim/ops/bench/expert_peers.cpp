// Cases of the mixture of experts, of products by leaves, and of Engram.
#include <cmath>

#include "platform/formats.h"
#include "sim/kernels/engram.h"
#include "sim/kernels/gemm.h"
#include "sim/kernels/moe_combine.h"
#include "sim/ops/bench/aten_bench.h"
#include "sim/ops/bench/bench_tensors.h"

namespace deepinfer {

using namespace bench;
using host::matrix_operand;
using host::matrix_output;
using host::mutable_rows_view;
using host::rows_view;
using host::span_of;

namespace {

constexpr auto kBf16 = at::kBFloat16;
constexpr auto kFp32 = at::kFloat;
constexpr int64_t kLeaves = 64;  // architecture.md: canonical_leaves

// 0, step, 2 step, ...
std::vector<int64_t> even_offsets(int64_t parts, int64_t step) {
  std::vector<int64_t> offsets;
  for (int64_t i = 0; i <= parts; ++i) offsets.push_back(i * step);
  return offsets;
}

// Gate and up of the experts that a chunk hits: four groups of `rows` tokens.
KernelBenchCase grouped_case(int64_t rows) {
  constexpr int64_t kGroups = 4;
  KernelBenchCase bench =
      aten_case("gemm_grouped", "gemm.h",
                std::to_string(kGroups) + " x " + shape_text({rows, kHidden}) + " x " +
                    shape_text({kExpertHidden, kHidden}) + " bf16",
                "bf16 matmul of each group", 0, kBf16Tolerance, [rows] {
                  const Tensor x = normal_numbers({kGroups * rows, kHidden}, kBf16);
                  const Tensor w = normal_numbers({kGroups, kExpertHidden, kHidden}, kBf16);
                  const Tensor y = at::empty({kGroups * rows, kExpertHidden}, kBf16);
                  std::vector<GemmOperand> weights;
                  for (int64_t g = 0; g < kGroups; ++g)
                    weights.push_back(matrix_operand(w[g], "w"));
                  return aten_pair(
                      [=, offsets = even_offsets(kGroups, rows)](Target target) {
                        gemm_grouped(offsets, kExpertHidden, kHidden, matrix_operand(x, "x"),
                                     weights, matrix_output(y, kExpertHidden), {target, 1});
                      },
                      {y},
                      [=] {
                        std::vector<Tensor> parts;
                        for (int64_t g = 0; g < kGroups; ++g) {
                          parts.push_back(at::matmul(x.narrow(0, g * rows, rows), w[g].t()));
                        }
                        return std::vector<Tensor>{at::cat(parts)};
                      });
                });
  bench.targets = BenchTargets::kAll;
  bench.work = gemm_gflop(kGroups * rows, kExpertHidden, kHidden);
  bench.unit = "Gflop/s";
  return bench;
}

// attn.wo_b: K = 8192 in 64 leaves of 128.
KernelBenchCase row_parallel_case(int64_t rows) {
  constexpr int64_t kInner = 8192;
  KernelBenchCase bench = aten_case(
      "gemm_row_parallel", "gemm.h",
      shape_text({rows, kInner}) + " x " + shape_text({kHidden, kInner}) + " bf16, " +
          std::to_string(kLeaves) + " leaves",
      "bf16 matmul, not cut into leaves", 0, kBf16Tolerance, [rows] {
        const Tensor x = normal_numbers({rows, kInner}, kBf16),
                     w = normal_numbers({kHidden, kInner}, kBf16),
                     y = at::empty({rows, kHidden}, kBf16);
        return aten_pair(
            [=, offsets = even_offsets(kLeaves, kInner / kLeaves)](Target target) {
              gemm_row_parallel(rows, kHidden, offsets, matrix_operand(x, "x"),
                                matrix_operand(w, "w"), matrix_output(y, kHidden), {target, 1});
            },
            {y}, [=] { return std::vector<Tensor>{at::matmul(x, w.t())}; });
      });
  bench.targets = BenchTargets::kAll;
  bench.work = gemm_gflop(rows, kHidden, kInner);
  bench.unit = "Gflop/s";
  return bench;
}

KernelBenchCase combine_leaves_case(int64_t rows) {
  KernelBenchCase bench = aten_case(
      "combine_leaves", "gemm.h", shape_text({kLeaves, rows, kHidden}) + " fp32", "sum",
      kLeaves * rows * kHidden, kFp32Tolerance, [rows] {
        const Tensor partials = normal_numbers({kLeaves, rows * kHidden}, kFp32),
                     y = at::empty({rows * kHidden}, kFp32);
        std::vector<const float*> leaves;
        for (int64_t i = 0; i < kLeaves; ++i) leaves.push_back(partials[i].data_ptr<float>());
        return aten_pair(
            [partials, leaves, y](Target) {
              combine_leaves(leaves, y.numel(), fp32_output(y.data_ptr<float>(), y.numel()));
            },
            {y}, [partials] { return std::vector<Tensor>{partials.sum(0)}; });
      });
  bench.targets = BenchTargets::kOneForAll;
  return bench;
}

KernelBenchCase moe_combine_case(int64_t tokens) {
  const int64_t pairs = tokens * kExpertsPerToken;
  KernelBenchCase bench = aten_case(
      "moe_combine", "moe_combine.h",
      shape_text({pairs, kHidden}) + " bf16 of " + std::to_string(tokens) +
          " tokens, shared expert",
      "fp32 index_add_, sum with the shared expert", pairs * kHidden, kBf16Tolerance, [=] {
        const Tensor outputs = normal_numbers({pairs, kHidden}, kBf16),
                     shared = normal_numbers({tokens, kHidden}, kBf16).flip(-1).contiguous(),
                     y = at::empty({tokens, kHidden}, kBf16);
        // Pair i belongs to one of the experts in turns, and to tokens in turns.
        std::vector<int64_t> offsets;
        for (int64_t e = 0; e <= kExperts; ++e) offsets.push_back(e * pairs / kExperts);
        const Tensor rows = at::arange(0, pairs, at::kLong).remainder(tokens);
        ExpertOutputs args;
        args.outputs = rows_view(outputs, kHidden, "outputs");
        args.rows = rows.data_ptr<int64_t>();
        args.tokens = tokens;
        args.experts = kExperts;
        return aten_pair(
            [args, offsets, outputs, shared, rows, y](Target) {
              ExpertOutputs with_offsets = args;
              with_offsets.offsets = offsets;
              moe_combine(with_offsets, rows_view(shared, kHidden, "shared"),
                          mutable_rows_view(y, kHidden, "out"));
            },
            {y},
            [=] {
              return std::vector<Tensor>{
                  shared.to(kFp32).index_add_(0, rows, outputs.to(kFp32)).to(kBf16)};
            });
      });
  bench.targets = BenchTargets::kOneForAll;
  return bench;
}

// --- Engram: 24 hash columns of 256 channels (n-grams of 2 to 4 tokens, 8 heads each).

constexpr int64_t kNgram = 4, kHashHeads = 8, kHashColumns = (kNgram - 1) * kHashHeads;
constexpr int64_t kTableChannels = 256;
constexpr int64_t kTableRows = 65'536;  // a slice of the table: 16 MiB, past a second-level cache

KernelBenchCase engram_hash_case(int64_t rows) {
  KernelBenchCase bench = aten_case(
      "engram_hash", "engram.h", shape_text({rows, kHashColumns}) + " int64",
      "int64 products, bitwise_xor, remainder, sum", rows * kHashColumns, 0, [rows] {
        constexpr int64_t kPad = 2, kClasses = 99'092;  // config.json: engram_compressed_vocab_size
        const Tensor ids = whole_numbers({rows + kNgram - 1}, kClasses, at::kLong);
        const Tensor multipliers = whole_numbers({kNgram}, int64_t{1} << 40, at::kLong) * 2 + 1;
        const Tensor primes = at::full({kHashColumns}, 16'000'057, at::kLong),
                     offsets = at::arange(0, kHashColumns, at::kLong) * 16'000'057;
        const Tensor found = at::empty({rows, kHashColumns}, at::kLong);
        return aten_pair(
            [=](Target) {
              engram_hash(span_of<int64_t>(ids), rows, span_of<int64_t>(multipliers),
                          span_of<int64_t>(primes), span_of<int64_t>(offsets), kPad,
                          found.data_ptr<int64_t>());
            },
            {found},
            [=] {
              // Without image tokens and with the whole context at hand nothing is padded.
              Tensor hash = ids.narrow(0, kNgram - 1, rows) * multipliers[0];
              std::vector<Tensor> hashes;
              for (int64_t back = 1; back < kNgram; ++back) {
                hash = hash.bitwise_xor(ids.narrow(0, kNgram - 1 - back, rows) * multipliers[back]);
                hashes.push_back(hash);
              }
              const Tensor wide = at::stack(hashes, 1).unsqueeze(-1);  // [rows, N - 1, 1]
              return std::vector<Tensor>{wide.remainder(primes.view({kNgram - 1, kHashHeads}))
                                             .add_(offsets.view({kNgram - 1, kHashHeads}))};
            });
      });
  bench.targets = BenchTargets::kOneForAll;
  return bench;
}

KernelBenchCase engram_fetch_case(int64_t rows) {
  return aten_case(
      "engram_fetch", "engram.h",
      shape_text({rows, kHashColumns}) + " rows of " + std::to_string(kTableChannels) +
          " fp8, to bf16",
      "index_select, fp8 value, exp2 of the scale, product", rows * kHashColumns * kTableChannels,
      0, [rows] {
        constexpr int64_t kBlocks = kTableChannels / kScaleBlock;
        const Tensor codes = whole_numbers({kTableRows, kTableChannels}, 127, at::kByte),
                     scales = whole_numbers({kTableRows, kBlocks}, 16, at::kByte) + 112,
                     places = whole_numbers({rows * kHashColumns}, kTableRows, at::kLong);
        const Tensor out = at::empty({rows * kHashColumns, kTableChannels}, kBf16);
        return aten_pair(
            [=](Target target) {
              const int64_t outside =
                  engram_fetch(codes.data_ptr<uint8_t>(), scales.data_ptr<uint8_t>(), kTableRows,
                               places.data_ptr<int64_t>(),
                               mutable_rows_view(out, kTableChannels, "out"), target);
              TORCH_INTERNAL_ASSERT(outside < 0, "place ", outside);
            },
            {out},
            [=] {
              const Tensor values = e4m3fn_values(codes.index_select(0, places));
              const Tensor scale = at::exp2(scales.index_select(0, places).to(kFp32) - 127);
              return std::vector<Tensor>{
                  (values.view({-1, kBlocks, kScaleBlock}) * scale.unsqueeze(-1)).to(kBf16)};
            });
      });
}

KernelBenchCase engram_gate_case(int64_t rows) {
  return aten_case(
      "engram_gate", "engram.h", shape_text({rows, kStreams, kHidden}) + " bf16",
      "fp32 norms, dot, sigmoid, addcmul", rows * kStreams * kHidden, kBf16Tolerance, [rows] {
        constexpr int64_t kColumns = kStreams * kHidden;
        const Tensor streams = normal_numbers({rows, kStreams, kHidden}, kBf16),
                     key_value = normal_numbers({rows, kStreams + 1, kHidden}, kBf16).flip(-1);
        const Tensor kv = key_value.contiguous();
        const Tensor q = normal_numbers({kStreams, kHidden}, kBf16),
                     k = normal_numbers({kStreams, kHidden}, kBf16).flip(-1).contiguous();
        const Tensor text = at::ones({rows}, at::kByte);
        const Tensor out = at::empty_like(streams), gates = at::empty({rows, kStreams}, kFp32);
        return aten_pair(
            [=](Target target) {
              engram_gate(rows_view(streams, kColumns, "streams"), kStreams,
                          rows_view(kv, kColumns + kHidden, "key_value"),
                          rows_view(q, kHidden, "q"), rows_view(k, kHidden, "k"),
                          text.data_ptr<uint8_t>(), static_cast<float>(kNormEps),
                          mutable_rows_view(out, kColumns, "out"), gates.data_ptr<float>(), target);
            },
            {out, gates},
            [=] {
              const Tensor x = streams.to(kFp32), wide = kv.to(kFp32);
              const Tensor key = wide.narrow(1, 0, kStreams), value = wide.narrow(1, kStreams, 1);
              const auto inverse_norm = [](const Tensor& y) {
                return at::rsqrt(y.square().mean(-1, true) + kNormEps);
              };
              const Tensor weight = q.to(kFp32) * k.to(kFp32);
              const Tensor dot = (x * weight).mul_(key).sum(-1, true) * inverse_norm(x) *
                                 inverse_norm(key) * (1 / std::sqrt(double{kHidden}));
              const Tensor gate = at::copysign(dot.abs().clamp_min_(1e-6).sqrt_(), dot).sigmoid_() *
                                  text.view({-1, 1, 1});
              return std::vector<Tensor>{at::addcmul(x, gate, value).to(kBf16), gate};
            });
      });
}

}  // namespace

std::vector<KernelBenchCase> expert_bench_cases() {
  std::vector<KernelBenchCase> cases;
  for (const auto make : {grouped_case, row_parallel_case}) {
    for (const int64_t rows : kGemmRowCounts) cases.push_back(make(rows));
  }
  cases.push_back(combine_leaves_case(1));
  for (const int64_t tokens : kRowCounts) cases.push_back(moe_combine_case(tokens));
  return cases;
}

std::vector<KernelBenchCase> engram_bench_cases() {
  std::vector<KernelBenchCase> cases;
  for (const auto make : {engram_hash_case, engram_fetch_case, engram_gate_case}) {
    for (const int64_t rows : kRowCounts) cases.push_back(make(rows));
  }
  return cases;
}

}  // namespace deepinfer
