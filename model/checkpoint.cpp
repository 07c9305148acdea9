#include "model/checkpoint.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "model/json_reader.h"
#include "platform/errors.h"
#include "platform/nearest_name.h"

namespace deepinfer {
namespace {

using Located = TensorStore::Located;
using Shape = std::vector<int64_t>;

bool ends_with(std::string_view text, std::string_view tail) {
  return text.size() >= tail.size() && text.substr(text.size() - tail.size()) == tail;
}
bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

std::string form_text(StoredType type, const Shape& shape) {
  return std::string(stored_type_name(type)) + " " + shape_text(shape);
}

std::string expected_text(const TensorSpec& spec) {
  std::string text;
  for (const StoredType type : spec.types) {
    if (!text.empty()) text += " or ";
    text += stored_type_name(type);
  }
  return text + " " + shape_text(spec.shape);
}

bool is_scale(TensorForm form) {
  return form == TensorForm::kFp8Scale || form == TensorForm::kFp4Scale ||
         form == TensorForm::kRowFp8Scale;
}

// "layers.3" of "layers.3.attn.wkv.weight": the part of the model that a tensor belongs to.
std::string_view block_of(std::string_view name) {
  const size_t first = name.find('.');
  if (first == std::string_view::npos) return name;
  const size_t second = name.find('.', first + 1);
  return name.substr(0, second);
}

// Tensors that DeepSeek-V4 has and V4.1 has not (model.md 2.4), by a part of their name.
bool belongs_to_v4(std::string_view name) {
  if (name.substr(0, 8) == "hc_head_" || contains(name, ".hc_head_")) return true;
  for (const char* tail : {".compressor.ape", ".tid2eid", ".enorm.weight", ".hnorm.weight",
                           ".e_proj.weight", ".e_proj.scale", ".h_proj.weight", ".h_proj.scale",
                           ".markov_w1.weight", ".markov_w2.weight"}) {
    if (ends_with(name, tail)) return true;
  }
  return contains(name, ".indexer.compressor.");
}

class Validator {
 public:
  Validator(const TensorStore& store, const ModelConfig& config, const ValidateOptions& options)
      : store_(store),
        options_(options),
        quantized_(config.quantization.has_value()),
        specs_(expected_tensors(config)) {
    result_.shards = store.shard_count();
    result_.payload_bytes = store.payload_bytes();
  }

  ValidateResult run() {
    for (const TensorSpec& spec : specs_) expected_.emplace(spec.name, &spec);
    const std::vector<std::string> names = store_.names();
    result_.tensors = static_cast<int64_t>(names.size());
    for (const TensorSpec& spec : specs_) {
      const Located found = store_.find(spec.name);
      if (!found) {
        missing_.push_back(&spec);
      } else if (auto finding = check_form(spec, found)) {
        report(std::move(*finding));
      } else {
        sound_.push_back({&spec, found});
      }
    }
    for (const TensorSpec* spec : missing_) report_missing(*spec);
    for (const std::string& name : names) {
      if (expected_.count(name) == 0) report_unexpected(name);
    }
    if (!options_.headers_only) check_values();
    return std::move(result_);
  }

 private:
  struct Item {
    const TensorSpec* spec;
    Located at;
  };

  bool full() const {
    return static_cast<int64_t>(result_.findings.size()) >= options_.max_findings;
  }
  void report(Finding finding) {
    ++result_.total_findings;
    if (!full()) result_.findings.push_back(std::move(finding));
  }
  std::string place(std::string_view name, const SafetensorsFile* file = nullptr) const {
    const std::string source =
        file != nullptr ? file->path().string() : store_.directory().string();
    return source + ", tensor " + quote_name(name);
  }

  // Type and shape. The special cases are ways in which checkpoints are really got wrong.
  std::optional<Finding> check_form(const TensorSpec& spec, const Located& found) const {
    const StoredType type = found.info->type;
    const Shape& shape = found.info->shape;
    const bool type_fits =
        std::find(spec.types.begin(), spec.types.end(), type) != spec.types.end();
    if (type_fits && shape == spec.shape) return std::nullopt;

    Finding finding = {.what = "",
                       .where = place(spec.name, found.file),
                       .expected = expected_text(spec),
                       .found = form_text(type, shape),
                       .remedy = ""};
    if (std::optional<Finding> known = known_mistake(spec, type, shape)) {
      finding.what = known->what;
      finding.remedy = known->remedy;
    } else if (type_fits) {
      finding.what = "tensor has the wrong shape";
      finding.remedy = "compare config.json with the checkpoint it came with";
    } else if (is_scale(spec.form)) {
      finding.what = "scale has the wrong dtype";
      finding.remedy = "scales are powers of two, one e8m0 byte each";
    } else {
      finding.what = "tensor has the wrong dtype";
      finding.remedy = "convert the checkpoint again";
    }
    return finding;
  }

  // What and remedy of a known mistake; its other parts are not used.
  std::optional<Finding> known_mistake(const TensorSpec& spec, StoredType type,
                                       const Shape& shape) const {
    const auto mistake = [](std::string what, std::string remedy) {
      return std::optional<Finding>(Finding{.what = std::move(what),
                                            .where = "",
                                            .expected = "",
                                            .found = "",
                                            .remedy = std::move(remedy)});
    };
    const Shape& want = spec.shape;
    const bool matrix = want.size() == 2 && shape.size() == 2;
    if (matrix && spec.form == TensorForm::kFp4Weight && type == StoredType::kF8E4M3 &&
        shape[0] == want[0] && shape[1] == 2 * want[1]) {
      return mistake("routed expert is stored in fp8: the FP8 rule was used on an FP4 tensor",
                     "\"experts.\" also matches \"shared_experts.\": only the latter is fp8");
    }
    if (matrix && spec.form == TensorForm::kFp4Scale && shape[0] == ceil_div(want[0], 32) &&
        shape[1] == want[1] && shape[0] != want[0]) {
      return mistake(
          "scale of a routed expert is cut in 32x32 tiles: the FP8 rule on an FP4 tensor",
          "fp4 has one scale a row and 32 input channels");
    }
    if (matrix && spec.form == TensorForm::kFp8Weight && type == StoredType::kI8 &&
        shape[0] == want[0] && 2 * shape[1] == want[1]) {
      return mistake("projection is stored in fp4: the FP4 rule was used on an FP8 tensor",
                     "only routed experts are fp4");
    }
    if (spec.form == TensorForm::kFp8Scale && matrix) {
      if (const TensorSpec* weight = weight_of(spec)) {
        const int64_t out = weight->shape[0], in = weight->shape[1];
        if (shape == Shape{out, ceil_div(in, 32)} && shape != want) {
          return mistake("scale has one entry a row: the FP4 rule on an FP8 tensor",
                         "fp8 has one scale for every tile of 32x32");
        }
        if (shape == Shape{ceil_div(out, 128), ceil_div(in, 128)} && shape != want) {
          return mistake("scale is cut in 128x128 tiles, as in DeepSeek-V4",
                         "V4.1 has tiles of 32x32: take a V4.1 checkpoint");
        }
      }
      if (shape == Shape{want[1], want[0]} && shape != want) {
        return mistake("scale is transposed", "scale [r, c] belongs to tile row r, tile column c");
      }
    }
    const bool plain_float =
        type == StoredType::kBF16 || type == StoredType::kF16 || type == StoredType::kF32;
    if (spec.form == TensorForm::kFp8Weight && plain_float && shape == want) {
      return mistake("projection is stored unquantised, but config.json has a quantization_config",
                     "remove quantization_config and every scale, or take the fp8 checkpoint");
    }
    if (spec.form == TensorForm::kPlain && !quantized_ &&
        (type == StoredType::kF8E4M3 || type == StoredType::kI8)) {
      return mistake("projection is quantised, but config.json has no quantization_config",
                     "take the config.json that came with the checkpoint");
    }
    if (spec.form == TensorForm::kPlain && spec.types.front() == StoredType::kF32 && plain_float &&
        shape == want) {
      return mistake("fp32 tensor was cast down",
                     "sinks, router biases and hyper-connection terms must stay F32");
    }
    return std::nullopt;
  }

  const TensorSpec* weight_of(const TensorSpec& scale) const {
    const std::string_view name = scale.name;
    const std::string_view tail = ".scale";
    if (!ends_with(name, tail)) return nullptr;
    const auto at =
        expected_.find(std::string(name.substr(0, name.size() - tail.size())) + ".weight");
    return at == expected_.end() ? nullptr : at->second;
  }

  void report_missing(const TensorSpec& spec) {
    Finding finding = {.what = "tensor is missing",
                       .where = place(spec.name),
                       .expected = expected_text(spec),
                       .found = "no tensor of that name",
                       .remedy = "finish the download, or convert the checkpoint again"};
    if (is_scale(spec.form)) {
      const TensorSpec* weight = weight_of(spec);
      if (weight != nullptr && store_.find(weight->name)) {
        finding.what = "weight has no scale";
        finding.found = "only " + quote_name(weight->name);
        finding.remedy = "the weight cannot be read without it";
      }
    }
    for (const auto& [own, other] :
         {std::pair{".gate.bias", ".gate.bias_vl"}, std::pair{".gate.bias_vl", ".gate.bias"}}) {
      if (!ends_with(spec.name, own)) continue;
      const std::string stem = spec.name.substr(0, spec.name.size() - std::strlen(own));
      if (!store_.find(stem + other)) continue;
      finding.what = std::string("router has ") + (other + 6) + " but no " + (own + 6) +
                     ": one was mistaken for the other";
      finding.found = "only " + quote_name(stem + other);
      finding.remedy =
          "gate.bias steers text tokens, gate.bias_vl image tokens: match the whole suffix";
    }
    report(std::move(finding));
  }

  void report_unexpected(const std::string& name) {
    Finding finding = {
        .what = "unexpected tensor",
        .where = place(name, store_.find(name).file),
        .expected = "only tensors that config.json calls for",
        .found = form_text(store_.find(name).info->type, store_.find(name).info->shape),
        .remedy = ""};
    if (belongs_to_v4(name)) {
      finding.what = "tensor belongs to DeepSeek-V4";
      finding.remedy = "V4.1 has no such tensor: take a V4.1 checkpoint";
    } else if (name.substr(0, 6) == "model.") {
      finding.what = "tensor name begins with \"model.\"";
      finding.remedy = "released names have no prefix: undo the conversion";
    } else if (ends_with(name, ".weight_scale_inv")) {
      finding.what = "tensor name ends in \"weight_scale_inv\"";
      finding.remedy = "V4.1's scales are called \".scale\" and are not inverted";
    } else if (contains(name, ".gate.") && contains(name, "bias")) {
      finding.what = "router bias has an unknown name";
      finding.remedy = "released names are gate.bias and gate.bias_vl";
    } else if (!full()) {  // the search costs something: not for findings that are only counted
      finding.remedy = "nearest expected name: " + nearest_expected(name);
    }
    report(std::move(finding));
  }

  // A misspelt name most likely stands for one that is missing; then for one of the same layer.
  std::string nearest_expected(std::string_view name) const {
    constexpr size_t kMaxCandidates = 4096;
    const std::string_view block = block_of(name);
    std::vector<std::string_view> candidates;
    for (const TensorSpec* spec : missing_) {
      if (candidates.size() < kMaxCandidates && block_of(spec->name) == block) {
        candidates.push_back(spec->name);
      }
    }
    for (const TensorSpec* spec : missing_) {
      if (candidates.size() < kMaxCandidates / 4) candidates.push_back(spec->name);
    }
    if (candidates.empty()) {
      for (const TensorSpec& spec : specs_) {
        if (block_of(spec.name) == block) candidates.push_back(spec.name);
      }
    }
    if (candidates.empty()) {  // outside every known block: the names of the top level
      for (const TensorSpec& spec : specs_) {
        if (block_of(spec.name) == spec.name || block_of(spec.name) == "layers.0") {
          candidates.push_back(spec.name);
        }
      }
    }
    return quote_name(nearest_name(name.substr(0, 256), candidates));
  }

  // ---- values

  // How many elements are bad, and the first.
  struct Scan {
    uint64_t bad = 0;
    uint64_t first = 0;
  };

  // Adds the elements of `data` for which `is_bad` holds; `base` is the index of the first.
  template <typename T, typename IsBad>
  static void scan_elements(std::span<const std::byte> data, uint64_t base, IsBad is_bad,
                            Scan& scan) {
    const size_t count = data.size() / sizeof(T);
    const auto load = [&data](size_t i) {
      T value;
      std::memcpy(&value, data.data() + i * sizeof(T), sizeof(T));
      return value;
    };
    // First count, without a branch, so that the loop vectorises; look for the place only if
    // needed.
    uint64_t bad = 0;
    for (size_t start = 0; start < count; start += 255) {
      const size_t end = std::min(count, start + 255);  // a byte-wide sum cannot overflow
      uint8_t sum = 0;
      for (size_t i = start; i < end; ++i) sum += static_cast<uint8_t>(is_bad(load(i)));
      bad += sum;
    }
    if (bad == 0) return;
    if (scan.bad == 0) {
      size_t i = 0;
      while (!is_bad(load(i))) ++i;
      scan.first = base + i;
    }
    scan.bad += bad;
  }

  static void scan_chunk(const TensorSpec& spec, StoredType type, std::span<const std::byte> data,
                         uint64_t base, Scan& scan) {
    if (is_scale(spec.form)) {  // e8m0: 255 is NaN
      scan_elements<uint8_t>(
          data, base, [](uint8_t code) { return code == 0xff; }, scan);
    } else if (type == StoredType::kF8E4M3) {  // e4m3fn: 0x7f and 0xff are NaN
      scan_elements<uint8_t>(
          data, base, [](uint8_t code) { return (code & 0x7f) == 0x7f; }, scan);
    } else if (type == StoredType::kBF16) {  // exponent of all ones: infinity or NaN
      scan_elements<uint16_t>(
          data, base, [](uint16_t bits) { return (bits & 0x7f80) == 0x7f80; }, scan);
    } else if (type == StoredType::kF32) {
      scan_elements<uint32_t>(
          data, base, [](uint32_t bits) { return (bits & 0x7f800000) == 0x7f800000; }, scan);
    }  // fp4: every nibble is a number
  }

  static std::string position_text(uint64_t index, const Shape& shape) {
    Shape position(shape.size(), 0);
    for (size_t axis = shape.size(); axis-- > 0;) {
      const auto size = static_cast<uint64_t>(shape[axis]);
      position[axis] = static_cast<int64_t>(index % size);
      index /= size;
    }
    return shape_text(position);
  }

  std::optional<Finding> check_item(const Item& item, std::vector<std::byte>& buffer) const {
    const TensorSpec& spec = *item.spec;
    const TensorInfo& info = *item.at.info;
    if (spec.form == TensorForm::kFp4Weight) return std::nullopt;
    Finding finding = {.what = "",
                       .where = place(spec.name, item.at.file),
                       .expected = "",
                       .found = "",
                       .remedy = "copy or download the file again"};
    Scan scan;
    try {
      for (uint64_t offset = 0; offset < info.bytes(); offset += buffer.size()) {
        const auto size =
            static_cast<size_t>(std::min<uint64_t>(buffer.size(), info.bytes() - offset));
        const std::span<std::byte> chunk(buffer.data(), size);
        item.at.file->read(info, offset, chunk);
        scan_chunk(spec, info.type, chunk, offset / static_cast<uint64_t>(item_bytes(info.type)),
                   scan);
      }
    } catch (const CheckpointError& error) {
      finding = {.what = error.parts().what,
                 .where = finding.where,
                 .expected = error.parts().expected,
                 .found = error.parts().found,
                 .remedy = error.parts().remedy};
      return finding;
    }
    if (scan.bad == 0) return std::nullopt;
    if (is_scale(spec.form)) {
      finding.what = "scale holds NaN (e8m0 code 255)";
      finding.expected = "codes 0 to 254";
    } else if (info.type == StoredType::kF8E4M3) {
      finding.what = "fp8 weight holds NaN (e4m3 code 0x7F or 0xFF)";
      finding.expected = "finite codes only";
    } else {
      finding.what = "tensor holds a value that is not finite";
      finding.expected = "finite values only";
    }
    finding.found = std::to_string(scan.bad) + " of " +
                    std::to_string(info.bytes() / static_cast<uint64_t>(item_bytes(info.type))) +
                    ", first at " + position_text(scan.first, info.shape);
    return finding;
  }

  // Reads every tensor once, on as many threads as the machine has.
  void check_values() {
    constexpr size_t kChunkBytes = size_t{1} << 20;
    constexpr uint64_t kWorthThreads = uint64_t{64} << 20;
    std::vector<std::optional<Finding>> found(sound_.size());
    std::atomic<size_t> next = 0;
    const auto work = [&] {
      std::vector<std::byte> buffer(kChunkBytes);
      for (size_t i = next++; i < sound_.size(); i = next++)
        found[i] = check_item(sound_[i], buffer);
    };
    const size_t threads = result_.payload_bytes < kWorthThreads
                               ? 1
                               : std::clamp<size_t>(std::thread::hardware_concurrency(), 1, 16);
    {
      std::vector<std::jthread> others;
      for (size_t i = 1; i < threads; ++i) others.emplace_back(work);
      work();
    }
    for (auto& finding : found) {
      if (finding) report(std::move(*finding));
    }
  }

  const TensorStore& store_;
  const ValidateOptions& options_;
  const bool quantized_;
  const std::vector<TensorSpec> specs_;
  std::unordered_map<std::string, const TensorSpec*> expected_;
  std::vector<const TensorSpec*> missing_;
  std::vector<Item> sound_;  // present, in the right form
  ValidateResult result_;
};

}  // namespace

ValidateResult validate_checkpoint(const TensorStore& store, const ModelConfig& config,
                                   const ValidateOptions& options) {
  return Validator(store, config, options).run();
}

std::shared_ptr<const TensorStore> open_checkpoint(const std::filesystem::path& directory,
                                                   const ModelConfig& config) {
  auto store = std::make_shared<const TensorStore>(directory);
  const ValidateResult result =
      validate_checkpoint(*store, config, {.headers_only = false, .max_findings = 1});
  if (result.total_findings == 0) return store;
  const Finding& first = result.findings.front();
  const int64_t others = result.total_findings - 1;
  std::string remedy = first.remedy;
  if (others > 0) {
    if (!remedy.empty()) remedy += "; ";
    remedy += std::to_string(others) + (others == 1 ? " other finding" : " other findings") +
              ": run deepinfer-sim lint on the folder";
  }
  throw CheckpointError({.what = first.what,
                         .where = first.where,
                         .expected = first.expected,
                         .found = first.found,
                         .remedy = std::move(remedy)});
}

}  // namespace deepinfer
