// Names and presets of the numerics of a run.
#include "model/numerics.h"

#include <array>
#include <sstream>
#include <utility>

#include "platform/errors.h"
#include "platform/nearest_name.h"

namespace deepinfer {

Numerics Numerics::plain() {
  Numerics numerics;
  numerics.activation = ActivationDtype::kFloat32;
  numerics.quantize_linear = false;
  numerics.quantize_window = false;
  numerics.quantize_compressed = false;
  numerics.quantize_index = false;
  numerics.narrow_index = false;
  numerics.narrow_probabilities = false;
  return numerics;
}

Numerics Numerics::quant() {
  Numerics numerics;
  numerics.activation = ActivationDtype::kFloat32;
  numerics.narrow_index = false;
  numerics.narrow_probabilities = false;
  return numerics;
}

Numerics Numerics::official() { return {}; }

Numerics parse_numerics(std::string_view name) {
  if (name == "plain") return Numerics::plain();
  if (name == "quant") return Numerics::quant();
  if (name == "official") return Numerics::official();
  const std::array<std::string_view, 3> known = {"plain", "quant", "official"};
  throw ConfigError({.what = "unknown numerics '" + std::string(name) + "'",
                     .expected = "plain, quant or official",
                     .remedy = did_you_mean(name, known)});
}

std::string describe(const Numerics& numerics) {
  std::ostringstream text;
  text << "activations " << (numerics.activation == ActivationDtype::kBFloat16 ? "bf16" : "fp32");
  const std::array<std::pair<const char*, bool>, 4> quantisers = {{
      {"linear", numerics.quantize_linear},
      {"window", numerics.quantize_window},
      {"compressed", numerics.quantize_compressed},
      {"index", numerics.quantize_index},
  }};
  text << ", quantised:";
  bool any = false;
  for (const auto& [name, on] : quantisers) {
    if (!on) continue;
    text << ' ' << name;
    any = true;
  }
  if (!any) text << " nothing";
  if (any) text << " (fp8 max " << numerics.fp8_max << ")";
  text << ", index scores " << (numerics.narrow_index ? "bf16" : "fp32");
  text << ", probabilities " << (numerics.narrow_probabilities ? "bf16" : "fp32");
  text << ", " << arithmetic_name(numerics.arithmetic) << " arithmetic";
  return text.str();
}

}  // namespace deepinfer
