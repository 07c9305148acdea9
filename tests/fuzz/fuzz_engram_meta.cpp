// Any bytes as engram_meta.json of a small model: either a CheckpointError, or constants that hash
// safely.
#include <cstdlib>
#include <limits>
#include <string_view>

#include "model/engram_meta.h"
#include "platform/errors.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

// Eight token ids in five classes, one Engram layer, two columns: small enough to be guessed.
deepinfer::ModelConfig small_config() {
  deepinfer::ModelConfig config;
  config.vocab_size = 8;
  config.num_hidden_layers = 2;
  config.engram_layer_ids = {1};
  config.engram_max_ngram_size = 2;
  config.engram_n_heads = 2;
  config.engram_vocab_size = 4;
  config.engram_pad_token_id = 2;
  config.engram_compressed_vocab_size = 5;
  config.engram_num_embeddings = {5 + 7};
  return config;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const deepinfer::ModelConfig config = small_config();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const deepinfer::EngramMeta meta = deepinfer::parse_engram_meta(text, config, "FILE");
    if (meta.token_map.size() != 8 || meta.layers.size() != 1) std::abort();
    for (const int64_t id : meta.token_map) {
      if (id < 0 || id >= config.engram_compressed_vocab_size) std::abort();
      for (const int64_t multiplier : meta.layers[0].multipliers) {
        int64_t product = 0;
        if (__builtin_mul_overflow(id, multiplier, &product) || product < 0) std::abort();
      }
    }
  } catch (const deepinfer::CheckpointError&) {
  }
  return 0;
}
