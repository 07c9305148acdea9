// The cases of the codecs, against a copy of the bytes that they write.
#pragma once

#include <vector>

#include "sim/kernels/bench/kernel_bench.h"

namespace deepinfer {

// Decoders of each narrow format, encoders of fp8 and fp4, and bf16 both ways. The peer is memcpy:
// what a codec costs above moving its results.
std::vector<KernelBenchCase> codec_bench_cases();

}  // namespace deepinfer
