// Any bytes as config.json: either a CheckpointError, or a config whose plan and inventory can be
// made.
#include <cstdlib>
#include <string_view>

#include "model/checkpoint.h"
#include "model/config.h"
#include "model/engram_meta.h"
#include "model/layer_plan.h"
#include "platform/errors.h"
#include "tests/fuzz/fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const deepinfer::ModelConfig config = deepinfer::parse_model_config(text, "FILE");
    // An accepted config breaks no rule later on.
    const deepinfer::ModelPlan plan = deepinfer::make_model_plan(config);
    if (static_cast<int64_t>(plan.layers.size()) != config.num_hidden_layers) std::abort();
    const int64_t experts = config.num_hidden_layers * config.n_routed_experts +
                            config.num_nextn_predict_layers * config.dspark_n_routed_experts;
    constexpr int64_t kQuickly = 2000;  // larger inventories are right as well, only slow to fuzz
    if (experts > kQuickly) return 0;
    uint64_t total = 0;
    for (const deepinfer::TensorSpec& spec : deepinfer::expected_tensors(config)) {
      auto bytes = static_cast<uint64_t>(deepinfer::item_bytes(spec.types.front()));
      for (const int64_t extent : spec.shape) {
        if (extent <= 0) std::abort();
        if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes)) std::abort();
      }
      if (__builtin_add_overflow(total, bytes, &total)) std::abort();
    }
    if (total >> 63 != 0) std::abort();
  } catch (const deepinfer::CheckpointError&) {
  }
  return 0;
}
