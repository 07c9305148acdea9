// The cases of the ops of platform/ops.h: inputs by (seed, op, case), how to run them, and how far
// a result may lie from the truth.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>

#include "platform/random.h"

namespace deepinfer::conformance {

using at::Tensor;
using Tensors = std::vector<Tensor>;  // an undefined tensor stands for an optional one left out

// In which order an implementation adds the terms of a dot product or sum.
enum class SumOrder {
  kCanonical,  // CANONICAL.md C2.1 and C2.2
  kAny,        // not known, but in fp32 and each term once: what a device may do
};

// One case. Derived error bounds assume `fp32 inside`, u = 2^-24 (half the distance of 1 and the
// next fp32), and that a subnormal fp32 operand or result may count as zero (CANONICAL.md C1.2).
struct OpCase {
  std::string op;      // "linear"
  int64_t number = 0;  // among the op's cases, from 0: names the case on the command line
  std::string name;    // dtypes, shapes, values
  std::vector<std::string> outputs;  // their names

  // Inputs on the CPU; a pure function of the stream.
  std::function<Tensors(RandomStream& random)> inputs;
  // Places among the inputs that stay on the host (offsets).
  std::vector<size_t> host_inputs = {};
  // Runs the op on inputs of any device. `wide`: with floating-point inputs or result type in fp64,
  // so that the reference returns what it has before the rounding of its result.
  std::function<Tensors(const Tensors& in, bool wide)> run;

  // Error of each output before it is rounded to the output's dtype, fp64 in the output's shape,
  // given the inputs and the truth (the reference's wide run). An undefined tensor: the output is
  // exact, bit by bit (NaN by being NaN). Elements: finite, the largest |found - truth|; infinity,
  // nothing is promised (fp32 may overflow inside); NaN, infinities and NaN are involved, and found
  // must be the truth's infinity or NaN. Empty: every output is exact.
  std::function<Tensors(const Tensors& in, const Tensors& truth, SumOrder order)> errors = {};

  // CANONICAL.md C2.7: NaN results are written as one pattern, so their bits count.
  bool canonical_nan = false;
  // Values lie at the edges of fp32's range, where flushed and overflowing numbers are all that a
  // figure of precision would show; the bound knows them.
  bool at_edges = false;
  // What results are rounded to on the way, if that is coarser than their own dtype: the unit of
  // their ulp.
  std::optional<at::ScalarType> rounded_to = {};

  // What must be thrown instead of a result.
  struct Throws {
    std::string text;  // in the message of canonical kernels; "row 3" where a row must be named
    bool by_reference = true;  // platform/ops.h promises it, so every implementation throws
  };
  std::optional<Throws> throws = {};
};

// All cases of all ops, in the order of platform/ops.h, numbered within each op.
const std::vector<OpCase>& all_cases();
// The ops that have cases, in that order.
const std::vector<std::string>& all_case_ops();

namespace internal {
// By family; numbers are set by all_cases().
void add_linear_cases(std::vector<OpCase>& cases);
void add_quantize_cases(std::vector<OpCase>& cases);
void add_row_cases(std::vector<OpCase>& cases);
void add_hyper_connection_cases(std::vector<OpCase>& cases);
void add_key_value_cases(std::vector<OpCase>& cases);
void add_attention_cases(std::vector<OpCase>& cases);
void add_selection_cases(std::vector<OpCase>& cases);
void add_moe_cases(std::vector<OpCase>& cases);
void add_engram_cases(std::vector<OpCase>& cases);
}  // namespace internal

}  // namespace deepinfer::conformance
