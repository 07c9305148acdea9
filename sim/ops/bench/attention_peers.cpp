// Cases of attention, pooling, index scores and selections.
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

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

struct AttentionShape {
  int64_t rows, heads, channels;
  int64_t window;           // keys of a row
  int64_t chosen, entries;  // compressed keys of a row, and all there are
  bool narrow;

  int64_t keys() const { return window + chosen; }
};

// Operands, and what peers make of them.
struct AttentionTensors {
  explicit AttentionTensors(const AttentionShape& of)
      : shape(of),
        q(normal_numbers({of.rows, of.heads, of.channels}, kBf16)),
        window(normal_numbers({of.window + of.rows - 1, of.channels}, kBf16)),
        compressed(normal_numbers({of.entries, of.channels}, kBf16).neg()),
        window_index(at::arange(0, of.rows, at::kInt).unsqueeze(1) +
                     at::arange(0, of.window, at::kInt)),
        compressed_index(chosen_rows(of.rows, of.chosen, of.entries)),
        window_positions(at::arange(0, window.size(0), at::kLong)),
        compressed_entries(at::arange(0, of.entries, at::kLong)),
        scale(1 / std::sqrt(static_cast<double>(of.channels))) {}

  AttentionLists lists() const {
    AttentionLists lists;
    lists.q = rows_view(q, shape.channels, "q");
    lists.heads = shape.heads;
    lists.window = rows_view(window, shape.channels, "window");
    lists.window_index = window_index.data_ptr<int32_t>();
    lists.window_count = shape.window;
    lists.compressed = rows_view(compressed, shape.channels, "compressed");
    lists.compressed_index = compressed_index.data_ptr<int32_t>();
    lists.compressed_count = shape.chosen;
    lists.scale = static_cast<float>(scale);
    return lists;
  }
  Tensor keys() const {  // [rows, keys, channels]
    return at::cat({window.index_select(0, window_index.flatten())
                        .view({shape.rows, shape.window, shape.channels}),
                    compressed.index_select(0, compressed_index.flatten())
                        .view({shape.rows, shape.chosen, shape.channels})},
                   1)
        .to(kFp32);
  }
  Tensor scores(const Tensor& keys) const {  // [rows, heads, keys]
    return at::bmm(q.to(kFp32), keys.transpose(1, 2)).mul_(scale);
  }
  Tensor number_a_head() const { return at::empty({shape.rows, shape.heads}, kFp32); }

  AttentionShape shape;
  Tensor q, window, compressed, window_index, compressed_index;
  Tensor window_positions, compressed_entries;
  double scale;
};

// `products` of the size of q times keys.
KernelBenchCase attention_case(const std::string& kernel, const std::string& peer,
                               const AttentionShape& shape, double products,
                               std::function<BenchPair()> prepare) {
  // narrow: probabilities are rounded, where the peer's are not.
  KernelBenchCase bench =
      aten_case(kernel, "attention.h",
                shape_text({shape.rows, shape.heads, shape.channels}) + " bf16, " +
                    std::to_string(shape.window) + " + " + std::to_string(shape.chosen) + " keys" +
                    (shape.narrow ? ", narrow" : ""),
                peer, 0, (shape.narrow ? 2 : 1) * kBf16Tolerance, std::move(prepare));
  bench.targets = BenchTargets::kAll;
  bench.work = products * gemm_gflop(shape.rows * shape.heads, shape.keys(), shape.channels);
  bench.unit = "Gflop/s";
  return bench;
}

KernelBenchCase sparse_attention_case(const AttentionShape& shape) {
  return attention_case(
      "sparse_attention", "gather, fp32 bmm, softmax with a sink, bmm", shape, 2, [shape] {
        const AttentionTensors tensors(shape);
        const Tensor sink = normal_numbers({shape.heads}, kFp32);
        const Tensor out = at::empty_like(tensors.q), lse = tensors.number_a_head();
        SparseAttention args;
        static_cast<AttentionLists&>(args) = tensors.lists();
        args.sink = sink.data_ptr<float>();
        args.narrow = shape.narrow;
        args.out = mutable_rows_view(out, shape.channels, "out");
        args.lse = lse.data_ptr<float>();
        return aten_pair(
            [args, tensors, sink, out, lse](Target target) { sparse_attention(args, target); },
            {out, lse},
            [=] {
              const Tensor keys = tensors.keys(), scores = tensors.scores(keys);
              const Tensor sinks =
                  sink.view({1, shape.heads, 1}).expand({shape.rows, shape.heads, 1});
              const Tensor p = at::cat({scores, sinks}, -1).softmax(-1).narrow(-1, 0, shape.keys());
              return std::vector<Tensor>{at::bmm(p, keys).to(kBf16), scores.logsumexp(-1)};
            });
      });
}

// The two steps of a rank, which here has all keys.
KernelBenchCase attention_maximum_case(const AttentionShape& shape) {
  return attention_case("attention_maximum", "gather, fp32 bmm, amax", shape, 1, [shape] {
    const AttentionTensors tensors(shape);
    const Tensor maximum = tensors.number_a_head();
    return aten_pair(
        [tensors, lists = tensors.lists(), maximum](Target target) {
          attention_maximum(lists, maximum.data_ptr<float>(), target);
        },
        {maximum}, [=] { return std::vector<Tensor>{tensors.scores(tensors.keys()).amax(-1)}; });
  });
}

KernelBenchCase attention_partials_case(const AttentionShape& shape) {
  return attention_case(
      "attention_partials", "gather, fp32 bmm, amax, exp, sum, bmm", shape, 2, [shape] {
        const AttentionTensors tensors(shape);
        const Tensor maximum = tensors.number_a_head(), sum = tensors.number_a_head();
        const Tensor out = at::empty({shape.rows, shape.heads, shape.channels}, kFp32);
        const Tensor list_maximum = tensors.scores(tensors.keys()).amax(-1);
        AttentionPartials args;
        static_cast<AttentionLists&>(args) = tensors.lists();
        args.window_positions = tensors.window_positions.data_ptr<int64_t>();
        args.compressed_entries = tensors.compressed_entries.data_ptr<int64_t>();
        args.positions = {0, kCanonicalLeaves};
        args.list_maximum = shape.narrow ? list_maximum.data_ptr<float>() : nullptr;
        args.maximum = maximum.data_ptr<float>();
        args.sum = sum.data_ptr<float>();
        args.out = out.data_ptr<float>();
        return aten_pair(
            [args, tensors, list_maximum, maximum, sum, out](Target target) {
              const auto misplaced = attention_partials(args, target);
              TORCH_INTERNAL_ASSERT(!misplaced.has_value());
            },
            {maximum, sum, out},
            [=] {
              const Tensor keys = tensors.keys();
              Tensor p = tensors.scores(keys);
              const Tensor largest = p.amax(-1);
              p.sub_(largest.unsqueeze(-1)).exp_();
              return std::vector<Tensor>{largest, p.sum(-1), at::bmm(p, keys)};
            });
      });
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
  constexpr int64_t kEntries = 4096;
  std::vector<AttentionShape> shapes;
  for (const int64_t rows : kLongRowCounts) {
    shapes.push_back({rows, kHeads, kHeadChannels, kWindow, kIndexTopK, kEntries, false});
  }
  // A rank's heads of a small model, from one of 64 ranks to one of one.
  for (const int64_t heads : {1, 2, 4, 8, 64}) shapes.push_back({307, heads, 32, 24, 12, 80, true});
  for (const auto make : {sparse_attention_case, attention_maximum_case, attention_partials_case}) {
    for (const AttentionShape& shape : shapes) cases.push_back(make(shape));
  }
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
