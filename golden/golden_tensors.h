// Reads the tensor half of a golden file into its prompts.
#pragma once

#include <filesystem>
#include <vector>

#include "golden/golden_file.h"

namespace deepinfer::internal {

// Fills logits and traces of `prompts` from a safetensors file. Every tensor must be one that the
// format knows (golden/data/README.md), with the dtype, shape and value range that the config calls
// for; draft tensors are recognised and skipped. Throws GoldenFileError.
void read_golden_tensors(const std::filesystem::path& path, const ModelConfig& config,
                         const ModelPlan& plan, std::vector<GoldenPrompt>& prompts);

}  // namespace deepinfer::internal
