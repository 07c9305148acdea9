// Cases of attention, pooling, index scores and selections.
#include <limits>

#include "sim/kernels/attention.h"
#include "sim/kernels/select.h"
#include "sim/ops/bench/aten_bench.h"
#include "sim/ops/bench/bench_tensors.h"

namespace deepinfer {

using namespace bench;
using host::mutable_rows_view;
using host::rows_view;

namespace {

constexpr auto kBf16 = at::kBFloat16;
constexpr auto kFp32 = at::kFloat;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

void expect_none(int64_t bad_row) { TORCH_INTERNAL_ASSERT(bad_row < 0, "row ", bad_row); }

// `count` different rows of [0, limit) for each token, ascending.
Tensor chosen_rows(int64_t tokens, int64_t count, int64_t limit) {
  const Tensor scores = normal_numbers({tokens, limit}, kFp32);
  return std::get<0>(std::get<1>(scores.topk(count)).sort(-1)).to(at::kInt);
}

KernelBenchCase sparse_attention_case(int64_t rows) {
  constexpr int64_t kKeys = kWindow + kIndexTopK, kEntries = 4096;
  KernelBenchCase bench = aten_case(
      "sparse_attention", "attention.h",
      shape_text({rows, kHeads, kHeadChannels}) + " bf16, " + std::to_string(kWindow) + " + " +
          std::to_string(kIndexTopK) + " keys",
      "gather, fp32 bmm, softmax with a sink, bmm", 0, kBf16Tolerance, [rows] {
        const Tensor q = normal_numbers({rows, kHeads, kHeadChannels}, kBf16);
        const Tensor window = normal_numbers({kWindow + rows - 1, kHeadChannels}, kBf16),
                     compressed = normal_numbers({kEntries, kHeadChannels}, kBf16).neg();
        const Tensor first = at::arange(0, rows, at::kInt).unsqueeze(1);
        const Tensor window_index = first + at::arange(0, kWindow, at::kInt);
        const Tensor compressed_index = chosen_rows(rows, kIndexTopK, kEntries);
        const Tensor sink = normal_numbers({kHeads}, kFp32);
        const Tensor out = at::empty_like(q), lse = at::empty({rows, kHeads}, kFp32);
        constexpr double kScale = 0.04419417382415922;  // 512^-1/2
        SparseAttention args;
        args.q = rows_view(q, kHeadChannels, "q");
        args.heads = kHeads;
        args.window = rows_view(window, kHeadChannels, "window");
        args.window_index = window_index.data_ptr<int32_t>();
        args.window_count = kWindow;
        args.compressed = rows_view(compressed, kHeadChannels, "compressed");
        args.compressed_index = compressed_index.data_ptr<int32_t>();
        args.compressed_count = kIndexTopK;
        args.sink = sink.data_ptr<float>();
        args.scale = static_cast<float>(kScale);
        args.out = mutable_rows_view(out, kHeadChannels, "out");
        args.lse = lse.data_ptr<float>();
        return aten_pair(
            [args, q, window, compressed, window_index, compressed_index, sink, out,
             lse](Target target) { sparse_attention(args, target); },
            {out, lse},
            [=] {
              const Tensor keys = at::cat({window.index_select(0, window_index.flatten())
                                               .view({rows, kWindow, kHeadChannels}),
                                           compressed.index_select(0, compressed_index.flatten())
                                               .view({rows, kIndexTopK, kHeadChannels})},
                                          1)
                                      .to(kFp32);
              const Tensor scores = at::bmm(q.to(kFp32), keys.transpose(1, 2)).mul_(kScale);
              const Tensor with_sink =
                  at::cat({scores, sink.view({1, kHeads, 1}).expand({rows, kHeads, 1})}, -1);
              const Tensor p = with_sink.softmax(-1).narrow(-1, 0, kKeys);
              return std::vector<Tensor>{at::bmm(p, keys).to(kBf16), scores.logsumexp(-1)};
            });
      });
  bench.targets = BenchTargets::kAll;
  // q . k and p . v
  bench.work = 2 * gemm_gflop(rows * kHeads, kKeys, kHeadChannels);
  bench.unit = "Gflop/s";
  return bench;
}

KernelBenchCase compress_pool_case(int64_t groups) {
  return aten_case(
      "compress_pool", "attention.h", shape_text({groups, kCompressRatio, kHeadChannels}) + " fp32",
      "softmax, product, sum", groups * kCompressRatio * kHeadChannels, kFp32Tolerance, [groups] {
        const Tensor values = normal_numbers({groups, kCompressRatio, kHeadChannels}, kFp32),
                     gates = values.flip(-1).contiguous();
        const Tensor pooled = at::empty({groups, kHeadChannels}, kFp32);
        return aten_pair(
            [=](Target target) {
              compress_pool(values.data_ptr<float>(), gates.data_ptr<float>(), groups,
                            kCompressRatio, kHeadChannels, pooled.data_ptr<float>(), target);
            },
            {pooled}, [=] { return std::vector<Tensor>{gates.softmax(1).mul_(values).sum(1)}; });
      });
}

KernelBenchCase index_score_case(int64_t rows, bool narrow) {
  KernelBenchCase bench = aten_case(
      "index_score", "select.h",
      shape_text({rows, kIndexHeads, kIndexChannels}) + " x " +
          shape_text({kCompressedEntries, kIndexChannels}) + (narrow ? " bf16, narrow" : " bf16"),
      narrow ? "bf16 matmul, relu, product, sum, mask" : "fp32 matmul, relu, matmul, mask", 0,
      // narrow: 32 sums rounded to bf16, against one rounding in ATen's sum
      narrow ? kIndexHeads * kBf16Tolerance : kFp32Tolerance, [rows, narrow] {
        const Tensor q = normal_numbers({rows, kIndexHeads, kIndexChannels}, kBf16),
                     keys = normal_numbers({kCompressedEntries, kIndexChannels}, kBf16).neg(),
                     weights = normal_numbers({rows, kIndexHeads}, kBf16);
        // The newest entries are not seen by the earlier rows of a chunk.
        const Tensor visible =
            at::arange(kCompressedEntries - rows + 1, kCompressedEntries + 1, at::kLong);
        const Tensor scores = at::empty({rows, kCompressedEntries}, kFp32);
        IndexScore args;
        args.q = rows_view(q, kIndexChannels, "q");
        args.weights = rows_view(weights, kIndexHeads, "weights");
        args.keys = rows_view(keys, kIndexChannels, "keys");
        args.visible = visible.data_ptr<int64_t>();
        args.narrow = narrow;
        args.scores = scores.data_ptr<float>();
        args.score_stride = kCompressedEntries;
        const Tensor entry = at::arange(0, kCompressedEntries, at::kLong);
        return aten_pair(
            [args, q, keys, weights, visible, scores](Target target) { index_score(args, target); },
            {scores},
            [=] {
              const auto type = narrow ? kBf16 : kFp32;
              const Tensor dots = at::matmul(q.to(type).view({rows * kIndexHeads, kIndexChannels}),
                                             keys.to(type).t())
                                      .relu_()
                                      .view({rows, kIndexHeads, kCompressedEntries});
              const Tensor sums = narrow ? dots.mul_(weights.unsqueeze(-1)).sum(1).to(kFp32)
                                         : at::bmm(weights.to(kFp32).unsqueeze(1), dots).squeeze(1);
              return std::vector<Tensor>{
                  sums.masked_fill_(entry.unsqueeze(0).ge(visible.unsqueeze(1)), -kInfinity)};
            });
      });
  bench.targets = BenchTargets::kAll;
  bench.work = gemm_gflop(rows * kIndexHeads, kCompressedEntries, kIndexChannels);
  bench.unit = "Gflop/s";
  return bench;
}

KernelBenchCase one_for_all(KernelBenchCase bench) {
  bench.targets = BenchTargets::kOneForAll;
  return bench;
}

KernelBenchCase topk_case(int64_t rows) {
  return one_for_all(
      aten_case("topk_select", "select.h",
                shape_text({rows, kCompressedEntries}) + ", k = " + std::to_string(kIndexTopK),
                "topk, sort of the indices", rows * kCompressedEntries, 0, [rows] {
                  const Tensor scores = normal_numbers({rows, kCompressedEntries}, kFp32);
                  const Tensor indices = at::empty({rows, kIndexTopK}, at::kInt);
                  return aten_pair(
                      [=](Target) {
                        expect_none(topk_select(rows_view(scores, kCompressedEntries, "scores"),
                                                kIndexTopK, indices.data_ptr<int32_t>()));
                      },
                      {indices},
                      [=] {
                        const Tensor found = std::get<1>(scores.topk(kIndexTopK, -1, true, false));
                        return std::vector<Tensor>{std::get<0>(found.sort(-1)).to(at::kInt)};
                      });
                }));
}

constexpr int64_t kBlocks = kCompressedEntries / kCandidateBlockSize;

KernelBenchCase candidate_blocks_case(int64_t rows) {
  return one_for_all(aten_case(
      "candidate_blocks", "select.h",
      shape_text({rows, kCompressedEntries}) + ", " + std::to_string(kCandidateBlocks) +
          " blocks of " + std::to_string(kCandidateBlockSize),
      "amax by block, topk, sort of the indices", rows * kCompressedEntries, 0, [rows] {
        const Tensor scores = normal_numbers({rows, kCompressedEntries}, kFp32);
        const Tensor visible = at::full({rows}, kCompressedEntries, at::kLong);
        const Tensor blocks = at::empty({rows, kCandidateBlocks}, at::kInt);
        return aten_pair(
            [=](Target) {
              expect_none(candidate_blocks(rows_view(scores, kCompressedEntries, "scores"),
                                           visible.data_ptr<int64_t>(), kCandidateBlockSize,
                                           kCandidateBlocks, blocks.data_ptr<int32_t>()));
            },
            {blocks},
            [=] {
              const Tensor maxima = scores.view({rows, kBlocks, kCandidateBlockSize}).amax(-1);
              const Tensor newest = (visible - 1).div(kCandidateBlockSize, "floor").unsqueeze(1);
              maxima.scatter_(1, newest, kInfinity);
              const Tensor found = std::get<1>(maxima.topk(kCandidateBlocks, -1, true, false));
              return std::vector<Tensor>{std::get<0>(found.sort(-1)).to(at::kInt)};
            });
      }));
}

// The block of each compressed entry.
Tensor blocks_of_entries() {
  return at::arange(0, kCompressedEntries, at::kLong).div_(kCandidateBlockSize, "floor");
}

KernelBenchCase block_maxima_case(int64_t rows) {
  return one_for_all(aten_case(
      "block_maxima", "select.h",
      shape_text({rows, kCompressedEntries}) + ", blocks of " + std::to_string(kCandidateBlockSize),
      "amax by block", rows * kCompressedEntries, 0, [rows] {
        const Tensor scores = normal_numbers({rows, kCompressedEntries}, kFp32);
        const Tensor block_of = blocks_of_entries(), maxima = at::empty({rows, kBlocks}, kFp32);
        return aten_pair(
            [=](Target) {
              expect_none(block_maxima(rows_view(scores, kCompressedEntries, "scores"),
                                       block_of.data_ptr<int64_t>(),
                                       mutable_rows_view(maxima, kBlocks, "maxima")));
            },
            {maxima},
            [=] {
              return std::vector<Tensor>{
                  scores.view({rows, kBlocks, kCandidateBlockSize}).amax(-1)};
            });
      }));
}

// What eight ranks chose.
KernelBenchCase topk_merge_case(int64_t rows) {
  constexpr int64_t kPairs = 8 * kIndexTopK;
  return one_for_all(aten_case(
      "topk_merge", "select.h",
      shape_text({rows, kPairs}) + " pairs, k = " + std::to_string(kIndexTopK),
      "topk, gather, sort of the indices", rows * kPairs, 0, [rows] {
        const Tensor scores = normal_numbers({rows, kPairs}, kFp32);
        // Each rank's share of the entries, so many of each, in order.
        const Tensor indices = at::arange(0, kPairs, at::kInt)
                                   .mul_(kCompressedEntries / kPairs)
                                   .expand({rows, kPairs})
                                   .contiguous();
        const Tensor found = at::empty({rows, kIndexTopK}, at::kInt);
        return aten_pair(
            [=](Target) {
              const MergeStatus status =
                  topk_merge(rows_view(scores, kPairs, "scores"), indices.data_ptr<int32_t>(),
                             kIndexTopK, found.data_ptr<int32_t>());
              expect_none(status.row);
            },
            {found},
            [=] {
              const Tensor best = std::get<1>(scores.topk(kIndexTopK, -1, true, false));
              return std::vector<Tensor>{std::get<0>(indices.gather(1, best).sort(-1))};
            });
      }));
}

KernelBenchCase candidate_mask_case(int64_t rows) {
  return one_for_all(aten_case(
      "candidate_mask", "select.h",
      shape_text({rows, kCompressedEntries}) + ", " + std::to_string(kCandidateBlocks) + " blocks",
      "scatter of the blocks, masked_fill", rows * kCompressedEntries, 0, [rows] {
        const Tensor scores = normal_numbers({rows, kCompressedEntries}, kFp32);
        const Tensor blocks = chosen_rows(rows, kCandidateBlocks, kBlocks);
        const Tensor block_of = blocks_of_entries(), masked = at::empty_like(scores);
        return aten_pair(
            [=](Target) {
              candidate_mask(rows_view(scores, kCompressedEntries, "scores"),
                             blocks.data_ptr<int32_t>(), kCandidateBlocks,
                             block_of.data_ptr<int64_t>(),
                             mutable_rows_view(masked, kCompressedEntries, "masked"));
            },
            {masked},
            [=] {
              const Tensor outside =
                  at::ones({rows, kBlocks}, at::kBool).scatter_(1, blocks.to(at::kLong), false);
              return std::vector<Tensor>{scores.view({rows, kBlocks, kCandidateBlockSize})
                                             .masked_fill(outside.unsqueeze(-1), -kInfinity)};
            });
      }));
}

KernelBenchCase greedy_case(int64_t rows) {
  return one_for_all(aten_case("greedy_sample", "select.h", shape_text({rows, kVocabulary}),
                               "argmax", rows * kVocabulary, 0, [rows] {
                                 const Tensor logits = normal_numbers({rows, kVocabulary}, kFp32);
                                 const Tensor ids = at::empty({rows}, at::kLong);
                                 return aten_pair(
                                     [=](Target) {
                                       expect_none(
                                           greedy_sample(rows_view(logits, kVocabulary, "logits"),
                                                         ids.data_ptr<int64_t>()));
                                     },
                                     {ids}, [=] { return std::vector<Tensor>{logits.argmax(-1)}; });
                               }));
}

KernelBenchCase moe_gate_case(int64_t rows) {
  KernelBenchCase bench = aten_case(
      "moe_gate", "select.h",
      shape_text({rows, kHidden}) + " x " + shape_text({kExperts, kHidden}) +
          " bf16, k = " + std::to_string(kExpertsPerToken),
      "fp32 matmul (W widened beforehand), softplus, sqrt, topk, gather", 0, kCodeTolerance,
      [rows] {
        const Tensor x = normal_numbers({rows, kHidden}, kBf16),
                     w = normal_numbers({kExperts, kHidden}, kBf16).flip(-1).mul(0.02),
                     bias = normal_numbers({kExperts}, kFp32) * 0.1;
        const Tensor wide = w.to(kFp32).t();
        const Tensor experts = at::empty({rows, kExpertsPerToken}, at::kInt),
                     weights = at::empty({rows, kExpertsPerToken}, kFp32);
        MoeGate args;
        args.x = rows_view(x, kHidden, "x");
        args.weight = rows_view(w, kHidden, "weight");
        args.bias = bias.data_ptr<float>();
        args.k = kExpertsPerToken;
        args.scaling = static_cast<float>(kScaling);
        args.experts = experts.data_ptr<int32_t>();
        args.weights = weights.data_ptr<float>();
        return aten_pair(
            [args, x, w, bias, experts, weights](Target target) {
              expect_none(moe_gate(args, target));
            },
            {experts, weights},
            [=] {
              const Tensor scores = at::softplus(at::matmul(x.to(kFp32), wide)).sqrt_();
              const Tensor found = std::get<1>((scores + bias).topk(kExpertsPerToken));
              const Tensor chosen = scores.gather(1, found);
              return std::vector<Tensor>{found, chosen / (chosen.sum(1, true) + 1e-20) * kScaling};
            });
      });
  bench.work = gemm_gflop(rows, kExperts, kHidden);
  bench.unit = "Gflop/s";
  return bench;
}

}  // namespace

std::vector<KernelBenchCase> attention_bench_cases() {
  std::vector<KernelBenchCase> cases;
  for (const int64_t rows : kLongRowCounts) cases.push_back(sparse_attention_case(rows));
  for (const int64_t groups : kRowCounts) cases.push_back(compress_pool_case(groups));
  return cases;
}

std::vector<KernelBenchCase> selection_bench_cases() {
  std::vector<KernelBenchCase> cases;
  for (const bool narrow : {false, true}) {
    for (const int64_t rows : kLongRowCounts) cases.push_back(index_score_case(rows, narrow));
  }
  for (const auto make : {topk_case, topk_merge_case, candidate_blocks_case, block_maxima_case,
                          candidate_mask_case, greedy_case}) {
    for (const int64_t rows : kLongRowCounts) cases.push_back(make(rows));
  }
  for (const int64_t rows : kRowCounts) cases.push_back(moe_gate_case(rows));
  return cases;
}

}  // namespace deepinfer
