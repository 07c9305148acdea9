// A checkpoint folder held against the config: which tensors must exist, in which form, with which
// values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/safetensors.h"

namespace deepinfer {

// How the bytes of a tensor are to be read (model.md 2.2).
enum class TensorForm {
  kPlain,        // BF16 or F32 values
  kFp8Weight,    // e4m3 codes [out, in], scaled by 32x32 tiles
  kFp8Scale,     // e8m0 codes [ceil(out/32), ceil(in/32)]
  kFp4Weight,    // two e2m1 codes a byte [out, in/2], low nibble = even input channel
  kFp4Scale,     // e8m0 codes [out, in/32]
  kRowFp8Table,  // Engram table: e4m3 codes [rows, columns], scaled by row and 32 columns
  kRowFp8Scale,  // e8m0 codes [rows, columns/32]
};

// One tensor that the config calls for.
struct TensorSpec {
  std::string name;
  TensorForm form = TensorForm::kPlain;
  std::vector<StoredType> types;  // accepted; the first is the released one
  std::vector<int64_t> shape;
};

// Every tensor of the checkpoint, backbone, draft stages and vision tower, in release order
// (model.md 2.3-2.6). For DeepSeek-V4.1-Flash: 96,085 tensors, 510,286,023,000 payload bytes.
std::vector<TensorSpec> expected_tensors(const ModelConfig& config);

struct Finding {
  std::string what;
  std::string where;
  std::string expected;
  std::string found;
  std::string remedy;
};

struct ValidateOptions {
  bool headers_only = false;  // skip the checks that read payload (NaN scales, fp8 NaN codes)
  int64_t max_findings = 50;  // further ones are counted, not stored
};

struct ValidateResult {
  std::vector<Finding> findings;
  int64_t total_findings = 0;
  int64_t tensors = 0;
  uint64_t payload_bytes = 0;
  int64_t shards = 0;
};

// Holds `store` against `config` (model.md 2.8): presence, no strangers, types, shapes,
// weight/scale pairs, values. Never reads past a tensor's end; never throws for what it finds.
ValidateResult validate_checkpoint(const TensorStore& store, const ModelConfig& config,
                                   const ValidateOptions& options);

// Opens `directory`, validates it completely (values included) and returns the store. Throws
// CheckpointError with the first finding and the number of others.
std::shared_ptr<const TensorStore> open_checkpoint(const std::filesystem::path& directory,
                                                   const ModelConfig& config);

}  // namespace deepinfer
