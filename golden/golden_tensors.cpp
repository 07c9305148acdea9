#include "golden/golden_tensors.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <sstream>

#include "model/safetensors.h"
#include "platform/errors.h"
#include "platform/nearest_name.h"

namespace deepinfer::internal {
namespace {

constexpr std::string_view kRemedy = "take the golden files from where they were made again";

[[noreturn]] void fail(std::string what, std::string where, std::string expected, std::string found,
                       std::string remedy = std::string(kRemedy)) {
  throw GoldenFileError({std::move(what), std::move(where), std::move(expected), std::move(found),
                         std::move(remedy)});
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::ostringstream text;
  text << '[';
  for (size_t i = 0; i < shape.size(); ++i) text << (i ? ", " : "") << shape[i];
  text << ']';
  return text.str();
}

// How a traced value is laid out and what it may hold.
struct ValueFormat {
  bool is_integer = false;
  bool may_be_cut = false;         // long prompts keep only the last rows
  std::vector<int64_t> row_shape;  // shape without the leading rows
  int64_t least = 0;               // of integers
  int64_t most = 0;
};

const std::vector<std::string>& layer_value_names() {
  static const std::vector<std::string> names = {
      "post_engram", "post_attn", "post_moe",       "attn_pre",    "ffn_pre",
      "topk",        "experts",   "expert_weights", "engram_rows", "engram_gate"};
  return names;
}

// The format of `name` in `layer`; empty where that layer does not produce it.
std::optional<ValueFormat> value_format(const std::string& name, int64_t layer,
                                        const ModelConfig& config, const ModelPlan& plan) {
  const std::vector<int64_t> stream_shape = {config.hc_mult, config.hidden_size};
  if (layer == kFinalLayer) return ValueFormat{false, true, {config.hidden_size}};
  const LayerPlan& layer_plan = plan.layers[static_cast<size_t>(layer)];
  const bool has_engram = layer_plan.engram_slot >= 0;
  if (name == "post_attn" || name == "post_moe") return ValueFormat{false, true, stream_shape};
  if (name == "attn_pre" || name == "ffn_pre") return ValueFormat{false, true, {config.hc_mult}};
  if (name == "experts") {
    return ValueFormat{true, false, {config.num_experts_per_tok}, 0, config.n_routed_experts - 1};
  }
  if (name == "expert_weights") return ValueFormat{false, true, {config.num_experts_per_tok}};
  if (name == "topk" && layer_plan.owns_index) {
    // -1 pads; the last entry closes with the newest of at most max_position_embeddings tokens.
    return ValueFormat{true, false, {config.index_topk}, -1, config.max_position_embeddings - 1};
  }
  if (name == "post_engram" && has_engram) return ValueFormat{false, true, stream_shape};
  if (name == "engram_gate" && has_engram) return ValueFormat{false, true, {config.hc_mult}};
  if (name == "engram_rows" && has_engram) {
    const auto slot = static_cast<size_t>(layer_plan.engram_slot);
    return ValueFormat{
        true, false, {config.engram_columns()}, 0, config.engram_num_embeddings[slot] - 1};
  }
  return std::nullopt;
}

// Copies: the payload need not be aligned, and golden files are small.
at::Tensor read_values(const SafetensorsFile& file, const TensorInfo& info, bool is_integer,
                       const std::string& where) {
  const StoredType expected = is_integer ? StoredType::kI32 : StoredType::kF32;
  if (info.type != expected) {
    fail("wrong dtype", where, std::string(stored_type_name(expected)),
         std::string(stored_type_name(info.type)));
  }
  at::Tensor values = at::empty(info.shape, is_integer ? at::kInt : at::kFloat);
  const auto bytes = file.view(info);
  DEEPINFER_ASSERT(bytes.size() == values.nbytes(), bytes.size() << ", " << values.nbytes());
  std::memcpy(values.data_ptr(), bytes.data(), bytes.size());
  if (!is_integer) {
    const float* data = values.data_ptr<float>();
    for (int64_t i = 0; i < values.numel(); ++i) {
      if (!std::isfinite(data[i])) {
        fail("value that is not finite", where, "finite numbers",
             std::to_string(data[i]) + " at element " + std::to_string(i));
      }
    }
    return values;
  }
  return values.to(at::kLong);
}

class TensorReader {
 public:
  TensorReader(const std::filesystem::path& path, const ModelConfig& config, const ModelPlan& plan,
               std::vector<GoldenPrompt>& prompts)
      : path_(path), config_(config), plan_(plan), prompts_(prompts), file_(open(path)) {}

  void read() {
    for (const TensorInfo& info : file_.tensors()) read_tensor(info);
    for (GoldenPrompt& prompt : prompts_) {
      if (!prompt.logits.defined()) {
        fail("missing tensor", path_.string(), prompt.name + ".logits", "none");
      }
      finish_trace(prompt.prefill, prompt.name + ".prefill");
      finish_trace(prompt.decode0, prompt.name + ".decode0");
      if (prompt.prefill.empty() != prompt.decode0.empty()) {
        fail("half a trace", path_.string(), "both prefill and decode0 of prompt " + prompt.name,
             prompt.prefill.empty() ? "decode0 only" : "prefill only");
      }
    }
  }

 private:
  // A golden file that is not a safetensors file is a golden error to the caller, not a
  // checkpoint's.
  static SafetensorsFile open(const std::filesystem::path& path) try {
    return SafetensorsFile(path);
  } catch (const CheckpointError& error) {
    ErrorParts parts = error.parts();
    parts.what = "the golden tensors cannot be read: " + parts.what;
    parts.remedy = kRemedy;
    throw GoldenFileError(std::move(parts));
  }

  std::string place(const TensorInfo& info) const { return path_.string() + ": " + info.name; }

  [[noreturn]] void fail_unknown(const TensorInfo& info, const std::string& expected,
                                 const std::string& remedy = std::string(kRemedy)) const {
    fail("unknown tensor", path_.string(), expected, info.name, remedy);
  }

  void read_tensor(const TensorInfo& info) {
    // The longest prompt name that fits, so that names may contain dots.
    GoldenPrompt* prompt = nullptr;
    for (GoldenPrompt& candidate : prompts_) {
      if (info.name.starts_with(candidate.name + '.') &&
          (prompt == nullptr || candidate.name.size() > prompt->name.size())) {
        prompt = &candidate;
      }
    }
    if (prompt == nullptr) fail_unknown(info, "PROMPT.NAME with a prompt of the JSON file");
    const std::string rest = info.name.substr(prompt->name.size() + 1);
    if (rest == "logits") {
      const auto steps = static_cast<int64_t>(prompt->generated.size());
      require_shape(info, {steps, config_.vocab_size});
      prompt->logits = read_values(file_, info, false, place(info));
      return;
    }
    if (rest.starts_with("draft0.") || rest.starts_with("draft1.")) return;
    const auto prompt_rows = static_cast<int64_t>(prompt->tokens.size());
    if (rest.starts_with("prefill.")) {
      read_traced(info, rest.substr(8), prompt_rows, prompt->prefill);
    } else if (rest.starts_with("decode0.")) {
      read_traced(info, rest.substr(8), 1, prompt->decode0);
    } else {
      fail_unknown(info, "logits, prefill.…, decode0.…, draft0.… or draft1.… of a prompt");
    }
  }

  // `name` is "layers.L.NAME" or "final.hidden".
  void read_traced(const TensorInfo& info, const std::string& name, int64_t rows,
                   GoldenTrace& trace) {
    int64_t layer = kFinalLayer;
    std::string value = "hidden";
    if (name != "final.hidden") {
      const char* const end = name.data() + name.size();
      constexpr std::string_view kPrefix = "layers.";
      if (!name.starts_with(kPrefix)) fail_unknown(info, "layers.L.NAME or final.hidden");
      const auto [rest, error] = std::from_chars(name.data() + kPrefix.size(), end, layer);
      if (error != std::errc() || rest == end || *rest != '.') {
        fail_unknown(info, "layers.L.NAME with a layer number");
      }
      if (layer < 0 || layer >= config_.num_hidden_layers) {
        fail_unknown(info, "a layer from 0 to " + std::to_string(config_.num_hidden_layers - 1));
      }
      value = std::string(rest + 1, end);
      const auto& known = layer_value_names();
      if (std::find(known.begin(), known.end(), value) == known.end()) {
        fail_unknown(info, "a value that golden files name", did_you_mean(value, known));
      }
    }
    const auto format = value_format(value, layer, config_, plan_);
    if (!format) {
      fail_unknown(info, "no " + value + ": by the config layer " + std::to_string(layer) +
                             " does not compute it");
    }
    std::vector<int64_t> shape = {rows};
    shape.insert(shape.end(), format->row_shape.begin(), format->row_shape.end());
    const bool cut = format->may_be_cut && info.shape.size() == shape.size() &&
                     info.shape[0] >= 1 && info.shape[0] < rows;
    if (cut) shape[0] = info.shape[0];
    require_shape(info, shape);
    GoldenTensor tensor;
    tensor.values = read_values(file_, info, format->is_integer, place(info));
    tensor.first_row = rows - shape[0];
    if (format->is_integer) require_range(info, tensor.values, *format);
    trace.rows = rows;
    trace.tensors[{layer, value}] = std::move(tensor);
  }

  void require_shape(const TensorInfo& info, const std::vector<int64_t>& expected) const {
    if (info.shape != expected) {
      fail("wrong shape", place(info), shape_text(expected), shape_text(info.shape));
    }
  }

  void require_range(const TensorInfo& info, const at::Tensor& values,
                     const ValueFormat& format) const {
    const int64_t* data = values.data_ptr<int64_t>();
    for (int64_t i = 0; i < values.numel(); ++i) {
      if (data[i] < format.least || data[i] > format.most) {
        fail("value out of range", place(info),
             std::to_string(format.least) + " to " + std::to_string(format.most),
             std::to_string(data[i]) + " at element " + std::to_string(i));
      }
    }
  }

  // A trace has every value of its form: the full one, or the one of long prompts (streams and
  // selections only). Anything between is a file with holes.
  void finish_trace(GoldenTrace& trace, const std::string& name) const {
    if (trace.empty()) return;
    const bool full = std::any_of(trace.tensors.begin(), trace.tensors.end(), [](const auto& item) {
      return item.first.second == "ffn_pre" || item.first.second == "attn_pre" ||
             item.first.second == "expert_weights" || item.first.second == "engram_gate";
    });
    trace.feeds_layers = full;
    for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
      for (const std::string& value : layer_value_names()) {
        const bool in_long_form = value != "ffn_pre" && value != "attn_pre" &&
                                  value != "expert_weights" && value != "engram_gate";
        if (!full && !in_long_form) continue;
        if (!value_format(value, layer, config_, plan_)) continue;
        const GoldenTensor* tensor = trace.find(value, layer);
        if (tensor == nullptr) {
          fail("missing tensor", path_.string(),
               name + ".layers." + std::to_string(layer) + '.' + value, "none");
        }
        if (tensor->first_row > 0) trace.feeds_layers = false;
      }
    }
    if (trace.find("hidden", kFinalLayer) == nullptr) {
      fail("missing tensor", path_.string(), name + ".final.hidden", "none");
    }
  }

  const std::filesystem::path& path_;
  const ModelConfig& config_;
  const ModelPlan& plan_;
  std::vector<GoldenPrompt>& prompts_;
  SafetensorsFile file_;
};

}  // namespace

void read_golden_tensors(const std::filesystem::path& path, const ModelConfig& config,
                         const ModelPlan& plan, std::vector<GoldenPrompt>& prompts) {
  TensorReader(path, config, plan, prompts).read();
}

}  // namespace deepinfer::internal
