#include "tests/support/full_size.h"

#include <cerrno>
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/checkpoint_files.h"

namespace deepinfer::test {
namespace {

namespace fs = std::filesystem;

uint64_t item_bytes(const std::string& dtype) {
  return dtype == "F32" ? 4 : dtype == "BF16" ? 2 : 1;
}

class Release {
 public:
  std::vector<ReleasedTensor> build() {
    add("embed.weight", "BF16", {129280, 5120});
    add("head.weight", "BF16", {129280, 5120});
    add("norm.weight", "BF16", {5120});
    for (int layer = 0; layer < 40; ++layer) backbone(layer);
    for (int stage = 0; stage < 3; ++stage) block("mtp." + std::to_string(stage) + ".", 128);
    fp8("mtp.0.main_proj", 5120, 15360, 160, 480);
    add("mtp.0.main_norm.weight", "BF16", {5120});
    add("mtp.2.norm.weight", "BF16", {5120});
    add("mtp.2.markov_head.embed.weight", "BF16", {129280, 256});
    add("mtp.2.markov_head.head.weight", "BF16", {129280, 256});
    add("mtp.2.confidence_head.proj.weight", "BF16", {1, 5376});
    vision();
    return std::move(out_);
  }

 private:
  void add(const std::string& name, const std::string& dtype, std::vector<int64_t> shape) {
    uint64_t bytes = item_bytes(dtype);
    for (const int64_t size : shape) bytes *= static_cast<uint64_t>(size);
    out_.push_back({name, dtype, std::move(shape), bytes});
  }
  void fp8(const std::string& name, int64_t out, int64_t in, int64_t tiles_out, int64_t tiles_in) {
    add(name + ".weight", "F8_E4M3", {out, in});
    add(name + ".scale", "F8_E8M0", {tiles_out, tiles_in});
  }

  void block(const std::string& name, int64_t experts) {
    add(name + "attn_norm.weight", "BF16", {5120});
    add(name + "ffn_norm.weight", "BF16", {5120});
    fp8(name + "attn.wq_a", 1280, 5120, 40, 160);
    add(name + "attn.q_norm.weight", "BF16", {1280});
    fp8(name + "attn.wq_b", 32768, 1280, 1024, 40);
    fp8(name + "attn.wkv", 512, 5120, 16, 160);
    add(name + "attn.kv_norm.weight", "BF16", {512});
    fp8(name + "attn.wo_a", 8192, 4096, 256, 128);
    fp8(name + "attn.wo_b", 5120, 8192, 160, 256);
    add(name + "attn.attn_sink", "F32", {64});
    for (const std::string site : {"hc_attn_", "hc_ffn_"}) {
      add(name + site + "fn", "F32", {24, 20480});
      add(name + site + "base", "F32", {24});
      add(name + site + "scale", "F32", {3});
    }
    add(name + "ffn.gate.weight", "BF16", {experts, 5120});
    add(name + "ffn.gate.bias", "F32", {experts});
    add(name + "ffn.gate.bias_vl", "F32", {experts});
    for (int64_t expert = 0; expert < experts; ++expert) {
      const std::string prefix = name + "ffn.experts." + std::to_string(expert) + ".";
      for (const std::string w : {"w1", "w3"}) {
        add(prefix + w + ".weight", "I8", {2304, 2560});
        add(prefix + w + ".scale", "F8_E8M0", {2304, 160});
      }
      add(prefix + "w2.weight", "I8", {5120, 1152});
      add(prefix + "w2.scale", "F8_E8M0", {5120, 72});
    }
    fp8(name + "ffn.shared_experts.w1", 2304, 5120, 72, 160);
    fp8(name + "ffn.shared_experts.w3", 2304, 5120, 72, 160);
    fp8(name + "ffn.shared_experts.w2", 5120, 2304, 160, 72);
  }

  void backbone(int layer) {
    const std::string name = "layers." + std::to_string(layer) + ".";
    block(name, 384);
    const bool kv_source = layer == 2 || layer == 8 || layer == 14 || layer == 20;
    if (kv_source) {
      add(name + "attn.compressor.wkv.weight", "BF16", {512, 5120});
      add(name + "attn.compressor.norm.weight", "BF16", {512});
      if (layer != 20) add(name + "attn.compressor.wgate.weight", "BF16", {512, 5120});
      add(name + "attn.indexer.wk.weight", "BF16", {128, 512});
      add(name + "attn.indexer.k_norm.weight", "BF16", {128});
    }
    if (kv_source || layer == 24 || layer == 28 || layer == 32 || layer == 36) {
      fp8(name + "attn.indexer.wq_b", 4096, 1280, 128, 40);
      add(name + "attn.indexer.weights_proj.weight", "BF16", {32, 5120});
    }
    if (layer == 1 || layer == 14) {
      const int64_t rows = layer == 1 ? 384006168 : 384016682;
      add(name + "engram.embed.weight", "F8_E4M3", {rows, 256});
      add(name + "engram.embed.scale", "F8_E8M0", {rows, 8});
      fp8(name + "engram.wkv", 25600, 6144, 800, 192);
      add(name + "engram.q_weight", "BF16", {4, 5120});
      add(name + "engram.k_weight", "BF16", {4, 5120});
    }
  }

  void vision() {
    add("vision.patch_embed.proj.weight", "BF16", {1024, 588});
    add("vision.patch_embed.proj.bias", "BF16", {1024});
    for (int i = 0; i < 32; ++i) {
      const std::string name = "vision.blocks." + std::to_string(i) + ".";
      add(name + "norm1.weight", "BF16", {1024});
      add(name + "norm2.weight", "BF16", {1024});
      add(name + "attn.wqkv.weight", "BF16", {3072, 1024});
      add(name + "attn.wqkv.bias", "BF16", {3072});
      add(name + "attn.wo.weight", "BF16", {1024, 1024});
      add(name + "attn.wo.bias", "BF16", {1024});
      add(name + "mlp.w1.weight", "BF16", {5632, 1024});
      add(name + "mlp.w2.weight", "BF16", {1024, 2816});
    }
    add("vision.norm.weight", "BF16", {1024});
    add("aligner.w1.weight", "BF16", {5120, 9216});
    add("aligner.w1.bias", "BF16", {5120});
    add("aligner.w2.weight", "BF16", {5120, 5120});
    add("aligner.w2.bias", "BF16", {5120});
    for (const char* name : {"image_start", "image_end", "image_newline"})
      add(name, "BF16", {5120});
  }

  std::vector<ReleasedTensor> out_;
};

// Header on disk, payload as one hole.
void write_shard(const fs::path& path, const std::vector<const ReleasedTensor*>& tensors,
                 const std::vector<std::string>& names) {
  std::string header = "{\"__metadata__\":{\"format\":\"pt\"}";
  uint64_t offset = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const ReleasedTensor& tensor = *tensors[i];
    const nlohmann::ordered_json entry = {{"dtype", tensor.dtype},
                                          {"shape", tensor.shape},
                                          {"data_offsets", {offset, offset + tensor.bytes}}};
    header += ",\"" + names[i] + "\":" + entry.dump();
    offset += tensor.bytes;
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  write_file(path, raw_safetensors(header, ""));
  const uint64_t bytes = 8 + header.size() + offset;
  const auto old = std::signal(SIGXFSZ, SIG_IGN);  // past ulimit -f: an error, not the end
  const int result = ::truncate(path.c_str(), static_cast<off_t>(bytes));
  const int reason = errno;
  std::signal(SIGXFSZ, old);
  if (result != 0) {
    throw NoSparseFiles{"a file of " + std::to_string(bytes) + " bytes: " + std::strerror(reason)};
  }
  struct stat info = {};
  constexpr uint64_t kBlockBytes = 512;  // unit of st_blocks (POSIX)
  if (::stat(path.c_str(), &info) == 0 &&
      static_cast<uint64_t>(info.st_blocks) * kBlockBytes > bytes / 2 + (1 << 22)) {
    throw NoSparseFiles{"holes take space here"};
  }
}

}  // namespace

std::vector<ReleasedTensor> released_tensors() { return Release().build(); }

void write_full_size(const fs::path& folder, const fs::path& config,
                     const std::function<std::string(const std::string&)>& rename) {
  const std::vector<ReleasedTensor> tensors = released_tensors();
  const auto is_table = [](const ReleasedTensor& tensor) {
    return tensor.name.find(".engram.embed.") != std::string::npos;
  };
  constexpr int kTableShards = 2;
  constexpr int kOtherShards = kReleasedShards - kTableShards;
  uint64_t total = 0, others = 0;
  for (const ReleasedTensor& tensor : tensors) {
    total += tensor.bytes;
    if (!is_table(tensor)) others += tensor.bytes;
  }

  std::vector<std::vector<const ReleasedTensor*>> shards(kReleasedShards);
  uint64_t placed = 0;
  int table_shard = kOtherShards;
  for (const ReleasedTensor& tensor : tensors) {
    if (is_table(tensor)) {
      shards[static_cast<size_t>(table_shard)].push_back(&tensor);
      if (shards[static_cast<size_t>(table_shard)].size() == 2) ++table_shard;  // codes, scales
      continue;
    }
    const uint64_t shard = placed / (others / kOtherShards + 1);
    shards[shard].push_back(&tensor);
    placed += tensor.bytes;
  }

  std::string index =
      "{\n  \"metadata\": {\"total_size\": " + std::to_string(total) + "},\n  \"weight_map\": {";
  for (int shard = 0; shard < kReleasedShards; ++shard) {
    const auto& members = shards[static_cast<size_t>(shard)];
    const std::string file = shard_name(shard + 1, kReleasedShards);
    std::vector<std::string> names;
    for (const ReleasedTensor* tensor : members) {
      names.push_back(rename ? rename(tensor->name) : tensor->name);
      index +=
          (index.back() == '{' ? "\n    \"" : ",\n    \"") + names.back() + "\": \"" + file + "\"";
    }
    write_shard(folder / file, members, names);
  }
  write_file(folder / "model.safetensors.index.json", index + "\n  }\n}\n");
  fs::copy_file(config, folder / "config.json", fs::copy_options::overwrite_existing);
}

}  // namespace deepinfer::test
