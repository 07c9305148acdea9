// The numerics of a run: activation dtype, which quantisers are on, how scores are rounded.
#pragma once

#include <string>
#include <string_view>

#include "platform/arithmetic.h"

namespace deepinfer {

enum class ActivationDtype { kFloat32, kBFloat16 };

// Every switch of model-verified.md 3 and 4. The default is "official".
struct Numerics {
  ActivationDtype activation = ActivationDtype::kBFloat16;
  bool quantize_linear = true;       // QA on the input of every fp8 / fp4 projection
  bool quantize_window = true;       // QA on window rows
  bool quantize_compressed = true;   // QC on compressed rows
  bool quantize_index = true;        // QI on indexer queries and keys
  bool narrow_index = true;          // index scores rounded to bf16 at each step
  bool narrow_probabilities = true;  // attention probabilities rounded to bf16 before P.V
  Arithmetic arithmetic = Arithmetic::kCanonical;  // which implementation of the ops
  double fp8_max = 448;  // largest magnitude of the fp8 quantisers: 448, 240 or 224

  bool operator==(const Numerics&) const = default;

  static Numerics plain();     // fp32, no quantiser
  static Numerics quant();     // fp32, all quantisers
  static Numerics official();  // bf16, all quantisers, narrow scores and probabilities
};

// "plain", "quant" or "official". Throws ConfigError that names the nearest.
Numerics parse_numerics(std::string_view name);
// One line that names every switch.
std::string describe(const Numerics& numerics);

}  // namespace deepinfer
