// Rotary frequencies of the two kinds of layer: plain, and YaRN for layers with a compress ratio.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

#include "model/config.h"

namespace deepinfer {

struct RopeFrequencies {
  at::Tensor values;  // fp32 [rope dimension / 2]
  // How YaRN treated them: unchanged, blended, divided by the factor. Plain RoPE keeps all.
  int64_t kept = 0;
  int64_t blended = 0;
  int64_t scaled = 0;
};

// 1 / theta^(2k/dimension), each step rounded to fp32 (model-verified.md 7).
RopeFrequencies plain_frequencies(double theta, int64_t dimension);

// The same, blended with 1/factor of itself along the YaRN ramp.
RopeFrequencies yarn_frequencies(double theta, int64_t dimension, const RopeScaling& scaling);

}  // namespace deepinfer
