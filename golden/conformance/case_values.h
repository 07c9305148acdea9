// What the inputs of a case are like, and the tensors made of it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>

#include "platform/random.h"

namespace deepinfer::conformance {

enum class Values {
  kOrdinary,  // uniform in (-1, 1)
  kSpread,    // the same times 2^-10 .. 2^10
  kTiny,      // subnormals, numbers around 2^-126, and around 2^-63, whose products are
  kExtreme,   // every finite exponent, the largest finite numbers among them
  kZeros,     // zeros of both signs, one number in eight
  kIntegers,  // -3 .. 3: sums and products are exact in fp32, so that equal scores are ties
  kSpecial,   // ordinary, one in 24 an infinity or NaN
};
std::string_view values_name(Values values);

// fp32 or bf16 (bits cut off, so that what is finite stays so) of any shape.
at::Tensor random_tensor(RandomStream& random, at::IntArrayRef shape, at::ScalarType dtype,
                         Values values = Values::kOrdinary);
// In 0 .. bound - 1.
at::Tensor random_integers(RandomStream& random, at::IntArrayRef shape, int64_t bound,
                           at::ScalarType dtype = at::kLong);
// Codes of e4m3fn; NaN codes only where `special`.
at::Tensor random_e4m3(RandomStream& random, at::IntArrayRef shape, bool special = false);
// e8m0 scales: 2^-8 .. 2^8 for ordinary values, every code for extreme ones, around 2^-126 for tiny
// ones, with the NaN code for special ones.
at::Tensor random_scales(RandomStream& random, at::IntArrayRef shape, Values values);

std::string dtype_name(at::ScalarType dtype);   // "fp32", "bf16"
std::string shape_text(at::IntArrayRef shape);  // "[3, 33]"
at::Tensor long_tensor(const std::vector<int64_t>& values);
at::Tensor int_tensor(const std::vector<int64_t>& values, at::IntArrayRef shape);
at::Tensor float_tensor(const std::vector<float>& values, at::IntArrayRef shape);
// A view of a flat tensor whose every other element is skipped: equal to x, not contiguous.
at::Tensor strided_copy(const at::Tensor& x);

}  // namespace deepinfer::conformance
