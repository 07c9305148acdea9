#include "tests/support/hostile_checkpoints.h"

#include <utility>

#include "tests/support/checkpoint_files.h"

namespace deepinfer::test {
namespace {

namespace fs = std::filesystem;

std::string payload_of(const EditedCheckpoint& checkpoint) {
  std::string payload;
  for (const RawTensor& tensor : checkpoint.tensors) payload += tensor.bytes;
  return payload;
}

Lie variant(Lie lie) {
  lie.variant = true;
  return lie;
}

// A Lie told by editing a copy of golden/data/tiny-fp8.
Lie edit(std::string name, std::function<void(EditedCheckpoint&)> change, std::string what,
         std::string names) {
  return {std::move(name),
          [change = std::move(change)](const fs::path& folder) {
            EditedCheckpoint checkpoint("tiny-fp8");
            change(checkpoint);
            checkpoint.write(folder);
          },
          std::move(what), std::move(names)};
}

// A Lie told in config.json by replacing text.
Lie config(std::string name, std::string from, std::string to, std::string what,
           std::string names) {
  return edit(
      std::move(name),
      [from = std::move(from), to = std::move(to)](EditedCheckpoint& checkpoint) {
        EditedCheckpoint::replace(checkpoint.config, from, to);
      },
      std::move(what), std::move(names));
}

// A Lie told by rewriting the bytes of model.safetensors.
Lie bytes(std::string name, std::function<std::string(const EditedCheckpoint&)> rewrite,
          std::string what, std::string names) {
  return {std::move(name),
          [rewrite = std::move(rewrite)](const fs::path& folder) {
            EditedCheckpoint checkpoint("tiny-fp8");
            checkpoint.write(folder);
            write_file(folder / "model.safetensors", rewrite(checkpoint));
          },
          std::move(what), std::move(names)};
}

// A Lie told by editing the header's text.
Lie header(std::string name, std::string from, std::string to, std::string what,
           std::string names) {
  return bytes(
      std::move(name),
      [from = std::move(from), to = std::move(to)](const EditedCheckpoint& checkpoint) {
        std::string text = header_of(checkpoint.tensors);
        EditedCheckpoint::replace(text, from, to);
        return raw_safetensors(text, payload_of(checkpoint));
      },
      std::move(what), std::move(names));
}

// The tensor with its dtype, shape and as many bytes as they take.
void reshape(RawTensor& tensor, std::string dtype, std::vector<int64_t> shape,
             size_t item_bytes = 1) {
  size_t count = item_bytes;
  for (const int64_t size : shape) count *= static_cast<size_t>(size);
  tensor.dtype = std::move(dtype);
  tensor.shape = std::move(shape);
  tensor.bytes.assign(count, '\x38');  // e4m3 1.0; finite in every format used here
}

std::vector<Lie> file_lies() {
  return {
      bytes(
          "truncated file",
          [](const EditedCheckpoint& c) {
            std::string file = safetensors_of(c.tensors);
            file.resize(file.size() - 1000);
            return file;
          },
          "file is truncated", "model.safetensors"),
      bytes(
          "file of a few bytes",
          [](const EditedCheckpoint&) { return std::string("\x02\0\0\0", 4); },
          "file is too short to be safetensors", "4 bytes"),
      bytes(
          "header longer than the file",
          [](const EditedCheckpoint& c) {
            return raw_safetensors(uint64_t{1} << 62, header_of(c.tensors), payload_of(c));
          },
          "header is longer than the file", "4611686018427387904"),
      bytes(
          "header not JSON",
          [](const EditedCheckpoint& c) {
            return raw_safetensors("{\"embed.weight\": dtype=BF16}", payload_of(c));
          },
          "not valid JSON", "header"),
      bytes(
          "header another format",
          [](const EditedCheckpoint& c) {
            return raw_safetensors("PK\x03\x04 zip", payload_of(c));
          },
          "header is not JSON", "PK\\x03\\x04"),
      bytes(
          "NUL padding",
          [](const EditedCheckpoint& c) {
            return raw_safetensors(header_of(c.tensors) + std::string(8, '\0'), payload_of(c));
          },
          "header is padded with NUL bytes", "spaces"),
      bytes(
          "NUL inside the header",
          [](const EditedCheckpoint& c) {
            std::string text = header_of(c.tensors);
            text[1] = '\0';
            return raw_safetensors(text, payload_of(c));
          },
          "NUL byte in JSON text", "byte 1"),
      bytes(
          "duplicate keys",
          [](const EditedCheckpoint& c) {
            const RawTensor& first = c.tensors.front();
            const std::string again =
                "\"" + first.name + "\":{\"dtype\":\"BF16\",\"shape\":[0],\"data_offsets\":[0,0]}";
            return raw_safetensors(header_of(c.tensors, again), payload_of(c));
          },
          "duplicate key \"embed.weight\"", "header"),
      header("overlapping offsets", "\"data_offsets\":[131072,131328]",
             "\"data_offsets\":[131070,131326]", "tensors overlap", "norm.weight"),
      header("gap between tensors", "\"data_offsets\":[131072,131328]",
             "\"data_offsets\":[131074,131330]", "bytes between tensors belong to none",
             "norm.weight"),
      bytes(
          "bytes after the last tensor",
          [](const EditedCheckpoint& c) { return safetensors_of(c.tensors) + "tail"; },
          "bytes after the last tensor belong to none", "model.safetensors"),
      bytes(
          "offsets past the end",
          [](const EditedCheckpoint& c) {
            std::string text = header_of(c.tensors);
            const uint64_t size = payload_of(c).size();
            const uint64_t begin = size - c.tensors.back().bytes.size();
            EditedCheckpoint::replace(
                text, "[" + std::to_string(begin) + "," + std::to_string(size) + "]",
                "[" + std::to_string(begin + (uint64_t{1} << 40)) + "," +
                    std::to_string(size + (uint64_t{1} << 40)) + "]");
            return raw_safetensors(text, payload_of(c));
          },
          "data_offsets lie past the end of the file", "mtp.1.confidence_head.proj.weight"),
      header("end before begin", "\"data_offsets\":[131072,131328]",
             "\"data_offsets\":[131328,131072]", "tensor ends before it begins", "norm.weight"),
      header("size not matching dtype and shape",
             "\"norm.weight\":{\"dtype\":\"BF16\",\"shape\":[128]",
             "\"norm.weight\":{\"dtype\":\"BF16\",\"shape\":[127]",
             "tensor size does not match its dtype and shape", "254 bytes for BF16 [127]"),
      header("shape product overflowing 64 bits",
             "\"norm.weight\":{\"dtype\":\"BF16\",\"shape\":[128]",
             "\"norm.weight\":{\"dtype\":\"BF16\",\"shape\":[4294967296,4294967296,128]",
             "shape product overflows 64 bits", "[4294967296, 4294967296, 128]"),
      header("unknown dtype", "\"norm.weight\":{\"dtype\":\"BF16\"",
             "\"norm.weight\":{\"dtype\":\"BF61\"", "unknown dtype", "nearest: BF16"),
      header("negative size", "\"norm.weight\":{\"dtype\":\"BF16\",\"shape\":[128]",
             "\"norm.weight\":{\"dtype\":\"BF16\",\"shape\":[-128]", "value out of range",
             "tensor \"norm.weight\".shape[0]"),
  };
}

std::vector<Lie> tensor_lies() {
  const std::string expert = "layers.3.ffn.experts.5.w2";
  const std::string dense = "layers.2.attn.wq_b";
  return {
      edit(
          "missing scale", [dense](auto& c) { c.remove(dense + ".scale"); }, "weight has no scale",
          dense + ".scale"),
      edit(
          "scale of the wrong dtype",
          [dense](auto& c) {
            reshape(c.tensor(dense + ".scale"), "F32", {8, 2}, 4);
          },
          "scale has the wrong dtype", "F32 [8, 2]"),
      edit(
          "NaN scale", [dense](auto& c) { c.tensor(dense + ".scale").bytes[5] = '\xff'; },
          "scale holds NaN (e8m0 code 255)", "1 of 16, first at [2, 1]"),
      variant(edit(
          "NaN scale of an fp4 expert",
          [expert](auto& c) { c.tensor(expert + ".scale").bytes[3] = '\xff'; },
          "scale holds NaN (e8m0 code 255)", "first at [1, 1]")),
      variant(edit(
          "NaN scale of an Engram table",
          [](auto& c) { c.tensor("layers.1.engram.embed.scale").bytes.back() = '\xff'; },
          "scale holds NaN (e8m0 code 255)", "first at [1361, 0]")),
      edit(
          "fp8 NaN bytes",
          [dense](auto& c) {
            c.tensor(dense + ".weight").bytes[64] = '\x7f';
            c.tensor(dense + ".weight").bytes[700] = '\xff';
          },
          "fp8 weight holds NaN (e4m3 code 0x7F or 0xFF)", "2 of 16384, first at [1, 0]"),
      variant(edit(
          "fp8 NaN byte in an Engram table",
          [](auto& c) { c.tensor("layers.4.engram.embed.weight").bytes[33] = '\xff'; },
          "fp8 weight holds NaN (e4m3 code 0x7F or 0xFF)", "first at [1, 1]")),
      edit(
          "infinite norm weight",
          [](auto& c) { c.tensor("norm.weight").bytes.replace(4, 2, "\x80\x7f"); },
          "tensor holds a value that is not finite", "first at [2]"),
      edit(
          "FP8 rule on an FP4 tensor",
          [expert](auto& c) {
            reshape(c.tensor(expert + ".weight"), "F8_E4M3", {128, 64});
          },
          "routed expert is stored in fp8", "F8_E4M3 [128, 64]"),
      edit(
          "FP8 tiles on an FP4 tensor",
          [expert](auto& c) {
            reshape(c.tensor(expert + ".scale"), "F8_E8M0", {4, 2});
          },
          "scale of a routed expert is cut in 32x32 tiles", expert + ".scale"),
      edit(
          "FP4 rule on an FP8 tensor",
          [](auto& c) {
            reshape(c.tensor("layers.3.ffn.shared_experts.w2.weight"), "I8", {128, 32});
          },
          "projection is stored in fp4", "layers.3.ffn.shared_experts.w2.weight"),
      edit(
          "FP4 rows on an FP8 tensor",
          [dense](auto& c) {
            reshape(c.tensor(dense + ".scale"), "F8_E8M0", {256, 2});
          },
          "scale has one entry a row", dense + ".scale"),
      edit(
          "tiles of 128x128",
          [dense](auto& c) {
            reshape(c.tensor(dense + ".scale"), "F8_E8M0", {2, 1});
          },
          "scale is cut in 128x128 tiles, as in DeepSeek-V4", dense + ".scale"),
      edit(
          "scale transposed",
          [dense](auto& c) {
            reshape(c.tensor(dense + ".scale"), "F8_E8M0", {2, 8});
          },
          "scale is transposed", "F8_E8M0 [2, 8]"),
      edit(
          "gate.bias taken for gate.bias_vl",
          [](auto& c) { c.remove("layers.5.ffn.gate.bias_vl"); }, "router has bias but no bias_vl",
          "layers.5.ffn.gate.bias_vl"),
      edit(
          "gate.bias_vl taken for gate.bias", [](auto& c) { c.remove("mtp.1.ffn.gate.bias"); },
          "router has bias_vl but no bias:", "mtp.1.ffn.gate.bias"),
      edit(
          "router bias renamed by a substring rule",
          [](auto& c) {
            c.add({"layers.5.ffn.gate.e_score_correction_bias_vl",
                   "F32",
                   {16},
                   std::string(64, '\0')});
          },
          "router bias has an unknown name", "e_score_correction_bias_vl"),
      edit(
          "sink cast down",
          [](auto& c) { reshape(c.tensor("layers.0.attn.attn_sink"), "BF16", {4}, 2); },
          "fp32 tensor was cast down", "BF16 [4]"),
      edit(
          "projection not quantised",
          [dense](auto& c) {
            reshape(c.tensor(dense + ".weight"), "BF16", {256, 64}, 2);
          },
          "projection is stored unquantised", "BF16 [256, 64]"),
      edit(
          "wrong shape", [](auto& c) { reshape(c.tensor("norm.weight"), "BF16", {64}, 2); },
          "tensor has the wrong shape", "BF16 [64]"),
      edit(
          "wrong dtype", [](auto& c) { reshape(c.tensor("norm.weight"), "F16", {128}, 2); },
          "tensor has the wrong dtype", "F16 [128]"),
      edit(
          "missing tensor", [](auto& c) { c.remove("layers.6.attn.q_norm.weight"); },
          "tensor is missing", "layers.6.attn.q_norm.weight"),
      edit(
          "unexpected tensor",
          [](auto& c) {
            c.add({"layers.6.attn.q_morn.weight", "BF16", {1}, "\x01\x02"});
          },
          "unexpected tensor", "nearest expected name: \"layers.6.attn.q_norm.weight\""),
      edit(
          "tensor of DeepSeek-V4",
          [](auto& c) {
            c.add({"layers.2.attn.compressor.ape", "F32", {1}, std::string(4, '\0')});
          },
          "tensor belongs to DeepSeek-V4", "layers.2.attn.compressor.ape"),
      edit(
          "prefixed tensor",
          [](auto& c) {
            c.add({"model.norm.weight", "BF16", {1}, "\x01\x02"});
          },
          "tensor name begins with \"model.\"", "model.norm.weight"),
      edit(
          "inverse scale",
          [dense](auto& c) {
            c.add({dense + ".weight_scale_inv", "F32", {1}, std::string(4, '\0')});
          },
          "tensor name ends in \"weight_scale_inv\"", dense + ".weight_scale_inv"),
  };
}

std::vector<Lie> index_lies() {
  const auto sharded = [](std::string name, std::function<void(const fs::path&)> change,
                          std::string what, std::string names) {
    return Lie{std::move(name),
               [change = std::move(change)](const fs::path& folder) {
                 EditedCheckpoint("tiny-fp8").write_sharded(folder, 3);
                 change(folder);
               },
               std::move(what), std::move(names)};
  };
  const auto edit_index = [](const fs::path& folder, const std::string& from,
                             const std::string& to) {
    const fs::path path = folder / "model.safetensors.index.json";
    std::string text = read_file(path);
    EditedCheckpoint::replace(text, from, to);
    write_file(path, text);
  };
  const std::string entry = "\"norm.weight\": \"model-00001-of-00003.safetensors\"";
  return {
      sharded(
          "index naming a missing shard",
          [](const fs::path& folder) { fs::remove(folder / shard_name(2, 3)); },
          "index names a missing shard", "model-00002-of-00003.safetensors"),
      sharded(
          "tensor in the wrong shard",
          [=](const fs::path& folder) {
            edit_index(folder, entry, "\"norm.weight\": \"model-00002-of-00003.safetensors\"");
          },
          "tensor is in another shard than the index says", "norm.weight"),
      sharded(
          "tensor only in the index",
          [=](const fs::path& folder) {
            edit_index(folder, entry,
                       entry + ", \"ghost.weight\": \"model-00001-of-00003.safetensors\"");
          },
          "tensor of the index is in no shard", "ghost.weight"),
      sharded(
          "tensor only in a shard",
          [=](const fs::path& folder) { edit_index(folder, entry + ",", ""); },
          "tensor of a shard is not in the index", "norm.weight"),
      sharded(
          "tensor in two shards",
          [](const fs::path& folder) {
            auto tensors = tensors_of(folder / shard_name(2, 3));
            tensors.push_back(tensors_of(folder / shard_name(1, 3)).front());
            write_file(folder / shard_name(2, 3), safetensors_of(tensors));
          },
          "tensor is in two shards", "embed.weight"),
      sharded(
          "shard outside the folder",
          [=](const fs::path& folder) {
            edit_index(folder, entry, "\"norm.weight\": \"../model-00001-of-00003.safetensors\"");
          },
          "index names a shard outside the folder", "../model-00001"),
      sharded(
          "total_size wrong",
          [=](const fs::path& folder) {
            edit_index(folder, "\"total_size\": 4", "\"total_size\": 5");
          },
          "total_size of the index is not the size of all tensors", "total_size"),
      sharded(
          "single file beside the shards",
          [](const fs::path& folder) {
            fs::copy_file(folder / shard_name(1, 3), folder / "model.safetensors");
          },
          "folder holds two checkpoints", "both"),
  };
}

std::vector<Lie> config_lies() {
  return {
      // Layer 3 reads the compressed KV of layer 2.
      config("layer whose KV source has another ratio", "0,\n   2,\n   2,\n   2,",
             "0,\n   2,\n   1,\n   2,", "a layer and its KV source have different compress ratios",
             "layer 3"),
      edit(
          "engram primes not summing to the table",
          [](EditedCheckpoint& c) {
            EditedCheckpoint::replace(c.config, "1362", "1360");
            reshape(c.tensor("layers.1.engram.embed.weight"), "F8_E4M3", {1360, 32});
            reshape(c.tensor("layers.1.engram.embed.scale"), "F8_E8M0", {1360, 1});
          },
          "the primes of an Engram layer do not sum to the rows of its table", "1362 rows"),
      edit(
          "token map out of order",
          [](EditedCheckpoint& c) {
            EditedCheckpoint::replace(c.meta, "[0, 1, 2, 3,", "[0, 1, 2, 4,");
          },
          "token map is out of order", "token_map[3]"),
      config("V4 config", "\"model_type\": \"deepseek_v41\"", "\"model_type\": \"deepseek_v4\"",
             "this is DeepSeek-V4, not DeepSeek-V4.1", "model_type"),
      config("V4 architecture", "DeepseekV41ForCausalLM", "DeepseekV4ForCausalLM",
             "the architecture is that of DeepSeek-V4", "architectures[0]"),
      config("unknown text_config key", "\"sliding_window\"",
             "\"sliding_windows\": 8, \"sliding_window\"", "unknown key \"sliding_windows\"",
             "nearest: sliding_window"),
      config("duplicate config key", "\"sliding_window\"",
             "\"sliding_window\": 8, \"sliding_window\"", "duplicate key \"sliding_window\"",
             "config.json"),
      config("V4 scale tiles", "\"weight_block_size\": [\n   32,\n   32",
             "\"weight_block_size\": [\n   128,\n   128", "unsupported scale tile", "[128, 128]"),
      edit(
          "even multiplier",
          [](EditedCheckpoint& c) {
            EditedCheckpoint::replace(c.meta, "\"25312092204715445\"", "\"25312092204715446\"");
          },
          "a multiplier is even", "multipliers[0][0]"),
      {"no engram_meta.json",
       [](const fs::path& folder) {
         EditedCheckpoint("tiny-fp8").write(folder);
         fs::remove(folder / "engram_meta.json");
       },
       "cannot open file", "engram_meta.json"},
  };
}

}  // namespace

const std::vector<Lie>& hostile_checkpoints() {
  static const std::vector<Lie> lies = [] {
    std::vector<Lie> all;
    for (auto list : {file_lies(), tensor_lies(), index_lies(), config_lies()}) {
      all.insert(all.end(), list.begin(), list.end());
    }
    return all;
  }();
  return lies;
}

}  // namespace deepinfer::test
