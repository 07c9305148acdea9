// What the ATen cases share: sizes of the model, random operands, and pairs of a kernel and a peer
// that returns tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "sim/kernels/bench/kernel_bench.h"
#include "sim/ops/tensor_views.h"

namespace deepinfer::bench {

using at::Tensor;

// configs/models/deepseek-v4.1-flash/config.json
inline constexpr int64_t kHidden = 5120;
inline constexpr int64_t kHeads = 64, kHeadChannels = 512, kRotatedChannels = 64;
inline constexpr int64_t kWindow = 128, kIndexTopK = 512, kCompressRatio = 2;
inline constexpr int64_t kIndexHeads = 32, kIndexChannels = 128;
inline constexpr int64_t kCandidateBlocks = 2048, kCandidateBlockSize = 8;
inline constexpr int64_t kExperts = 384, kExpertsPerToken = 6, kExpertHidden = 2304;
inline constexpr int64_t kStreams = 4, kSinkhornIterations = 20;
inline constexpr int64_t kVocabulary = 129280;
inline constexpr double kNormEps = 1e-20, kHcEps = 1e-6, kSwigluLimit = 10, kScaling = 1.5;

inline constexpr int64_t kRowCounts[] = {1, 64};  // decode, a chunk of a prompt
inline constexpr int64_t kGemmRowCounts[] = {1, 16};
inline constexpr int64_t kLongRowCounts[] = {1, 4};    // where a row alone takes milliseconds
inline constexpr int64_t kCompressedEntries = 32'768;  // of the context that is searched

// Tolerances, relative to the largest result. bf16: both sides round once, to neighbours at worst
// (2^-8). fp32: sums of up to 20480 terms in different orders, and functions a few ulp apart.
inline constexpr double kBf16Tolerance = 0x1p-8;
inline constexpr double kFp32Tolerance = 1e-4;
// The share of codes, values or indices that may differ, where a difference in the last bit of a
// quotient or a score decides.
inline constexpr double kCodeTolerance = 1e-2;

// Normal numbers from a generator with a fixed seed.
Tensor normal_numbers(at::IntArrayRef shape, at::ScalarType type);
// Whole numbers in [0, limit).
Tensor whole_numbers(at::IntArrayRef shape, int64_t limit, at::ScalarType type);

// The values of e4m3fn codes (uint8), fp32; through torch's own type where it has one.
Tensor e4m3fn_values(const Tensor& codes);

// A pair whose kernel writes `results`, and whose peer returns tensors of the same sizes.
BenchPair aten_pair(std::function<void(Target)> kernel, std::vector<Tensor> results,
                    std::function<std::vector<Tensor>()> peer);

// `values`: numbers that a call goes through; the throughput counts them.
KernelBenchCase aten_case(const std::string& kernel, const std::string& header,
                          const std::string& shape, const std::string& peer, int64_t values,
                          double tolerance, std::function<BenchPair()> prepare);

// "[64, 5120]"
std::string shape_text(at::IntArrayRef shape);

}  // namespace deepinfer::bench
