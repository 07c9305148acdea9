// The single pieces that golden/data/units holds, as the checks of ops and the fault matrix use
// them.
#pragma once

#include <string>
#include <vector>

#include <ATen/ATen.h>

namespace deepinfer::tests {

// A tensor of golden/data/units/units.safetensors.
at::Tensor unit_tensor(const std::string& name);

// Runs every golden unit through the op surface. Returns one sentence for each unit that differs.
std::vector<std::string> failed_units();

// What no golden file covers, from the definitions: ties, empty rows, image tokens, published
// bytes.
std::vector<std::string> failed_definitions();

}  // namespace deepinfer::tests
