#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "platform/fault.h"

namespace deepinfer {

RopeFrequencies plain_frequencies(double theta, int64_t dimension) {
  RopeFrequencies frequencies;
  frequencies.values = at::empty({dimension / 2}, at::kFloat);
  frequencies.kept = dimension / 2;
  float* values = frequencies.values.data_ptr<float>();
  for (int64_t k = 0; k < dimension / 2; ++k) {
    const float exponent = static_cast<float>(2 * k) / static_cast<float>(dimension);
    // pow in fp64, rounded: the correctly rounded fp32 power that the official code's table has.
    const float power = static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
    values[k] = 1.0f / power;
  }
  return frequencies;
}

RopeFrequencies yarn_frequencies(double theta, int64_t dimension, const RopeScaling& scaling) {
  RopeFrequencies frequencies = plain_frequencies(theta, dimension);
  frequencies.kept = 0;
  // Frequency index that turns `rotations` times within the original context.
  const auto corrected = [&](double rotations) {
    const double context = static_cast<double>(scaling.original_max_position_embeddings);
    return static_cast<double>(dimension) * std::log(context / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  const double low = std::max(std::floor(corrected(scaling.beta_fast)), 0.0);
  const double high =
      std::min(std::ceil(corrected(scaling.beta_slow)), static_cast<double>(dimension - 1));
  const float width = static_cast<float>(std::max(high - low, 1e-3));
  const float factor = static_cast<float>(scaling.factor);
  float* values = frequencies.values.data_ptr<float>();
  for (int64_t k = 0; k < dimension / 2; ++k) {
    float ramp = std::clamp((static_cast<float>(k) - static_cast<float>(low)) / width, 0.0f, 1.0f);
    if (fault("yarn_ramp_reversed")) ramp = 1.0f - ramp;
    frequencies.kept += ramp == 0;
    frequencies.scaled += ramp == 1;
    frequencies.blended += ramp > 0 && ramp < 1;
    // Two roundings before the sum; the build forbids contraction to fma.
    values[k] = values[k] / factor * ramp + values[k] * (1.0f - ramp);
  }
  return frequencies;
}

}  // namespace deepinfer
