// Reads golden files: prompts, greedy tokens, logits and per-layer traces of a model that is not
// ours.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "model/config.h"
#include "model/layer_plan.h"
#include "model/numerics.h"

namespace deepinfer {

// "9/9" means the first nine of `generated` (golden/data/README.md).
inline constexpr int64_t kCountedTokens = 9;
// fp8_max of the quantisers that made the goldens: the OCP e4m3 range.
inline constexpr double kGoldenFp8Max = 448;
// Layer number under which the head's input is kept.
inline constexpr int64_t kFinalLayer = -1;

// One recorded tensor of a traced forward.
struct GoldenTensor {
  at::Tensor values;  // fp32 or int64, [rows, ...]
  int64_t first_row =
      0;  // row of the forward that values[0] is: long prompts keep the last rows of streams
};

// What one forward (the prompt, or the first decode step) recorded, layer by layer.
struct GoldenTrace {
  int64_t rows = 0;                                                 // tokens of the forward
  std::map<std::pair<int64_t, std::string>, GoldenTensor> tensors;  // (layer, name)
  // Every layer's output streams and collapse weights are there for every row, so that each layer
  // can be run on the golden output of the layer before it.
  bool feeds_layers = false;

  // Null if absent.
  const GoldenTensor* find(std::string_view name, int64_t layer) const;
  bool empty() const { return tensors.empty(); }
};

struct GoldenPrompt {
  std::string name;
  std::vector<int64_t> tokens;      // the prompt, raw ids
  std::vector<int64_t> generated;   // greedy tokens, at least kCountedTokens
  std::vector<double> top2_margin;  // [generated] gap between the two largest logits
  std::vector<double>
      noise_floor;             // [generated] logit change that an embedding jitter of 3e-7 causes
  int64_t argmax_changes = 0;  // of those jittered runs
  std::map<std::string, double>
      closest_selection;  // smallest gap at any selection boundary; may be empty
  at::Tensor logits;      // [generated, vocab_size] fp32; row k produced generated[k]
  GoldenTrace prefill;    // empty where nothing was recorded
  GoldenTrace decode0;
};

// golden-MODE.json and golden-MODE.safetensors beside it, held against the model's config. Drafts
// in the files are recognised and left alone.
struct GoldenFile {
  std::filesystem::path path;         // of the JSON file
  std::string mode;                   // "plain", "quant" or "official"
  Numerics numerics;                  // as the file states them, fp8_max = kGoldenFp8Max
  std::vector<GoldenPrompt> prompts;  // in file order

  // Throws GoldenFileError: unreadable, truncated or malformed file; unknown, missing or duplicate
  // key or tensor; wrong type, shape or range; values that contradict each other.
  static GoldenFile read(const std::filesystem::path& json_path, const ModelConfig& config,
                         const ModelPlan& plan);
};

// Throws ConfigError if `golden` was made with other numerics than `used` (fp8_max apart, which
// golden files do not vary: compare it with kGoldenFp8Max).
void require_same_numerics(const GoldenFile& golden, const Numerics& used);

}  // namespace deepinfer
