// The Engram hash's constants: token map, multipliers, and the prime walk that lays out the tables.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace deepinfer {

// Primes of every Engram layer and column: [slot][ngram-2][head] flattened to [slot][column]
// (model-verified.md 10: one walk, never reusing a prime, restarting at engram_vocab_size - 1 for
// each layer and n-gram size).
std::vector<std::vector<int64_t>> engram_primes(const ModelConfig& config);

// Throws CheckpointError where an entry of engram_num_embeddings is not the sum of its layer's
// primes.
void check_engram_rows(const ModelConfig& config, const std::string& where);

// Hash constants of one Engram layer.
struct EngramLayerMeta {
  std::vector<int64_t> multipliers;  // [engram_max_ngram_size], odd
  std::vector<int64_t> primes;       // [columns]
  std::vector<int64_t> offsets;      // [columns], running sum of primes
  int64_t rows = 0;                  // sum of primes = engram_num_embeddings[slot]
};

struct EngramMeta {
  std::vector<int64_t> token_map;       // [vocab_size] raw id -> compressed id
  int64_t pad_compressed = 0;           // token_map[engram_pad_token_id]
  std::vector<EngramLayerMeta> layers;  // [engram slot]
};

// Parses and validates engram_meta.json text against the config (model.md 2.8 rule 6): map length,
// first-occurrence order, class count, pad id, multipliers (odd, in range, one set a layer), primes
// and offsets where the file has them equal to the derived ones, table rows equal to the sum of
// primes. Throws CheckpointError.
EngramMeta parse_engram_meta(std::string_view json_text, const ModelConfig& config,
                             const std::string& where);

// Reads `directory/engram_meta.json`. Throws CheckpointError.
EngramMeta load_engram_meta(const std::filesystem::path& directory, const ModelConfig& config);

}  // namespace deepinfer
