#include "golden/golden_file.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "golden/golden_tensors.h"
#include "model/json_reader.h"
#include "platform/errors.h"
#include "platform/nearest_name.h"

namespace deepinfer {
namespace {

// Limits of a hostile file, far above any golden's size.
constexpr size_t kMaxJsonBytes = size_t{64} << 20;
constexpr size_t kMaxTokens = size_t{1} << 20;

[[noreturn]] void fail(std::string what, std::string where, std::string expected, std::string found,
                       std::string remedy = "take both golden files from the same run") {
  throw GoldenFileError({std::move(what), std::move(where), std::move(expected), std::move(found),
                         std::move(remedy)});
}

// Holds an object's keys against a list: each of `required` there, nothing but those and
// `optional`.
void require_keys(const JsonNode& node, const std::vector<std::string_view>& required,
                  const std::vector<std::string_view>& optional = {}) {
  node.expect_object();
  std::vector<std::string_view> known = required;
  known.insert(known.end(), optional.begin(), optional.end());
  node.expect_keys(known);
  for (const std::string_view key : required) node.at(key);
}

// Finite and not negative.
std::vector<double> read_magnitudes(const JsonNode& node) {
  std::vector<double> values;
  for (const JsonNode& element : node.elements(kMaxTokens)) {
    values.push_back(element.number());
    if (values.back() < 0) element.fail("negative value", "a magnitude");
  }
  return values;
}

Numerics read_numerics(const JsonNode& node) {
  require_keys(node, {"act", "wide", "quant_linear", "quant_window", "quant_comp", "quant_index",
                      "narrow_index", "narrow_probs"});
  Numerics numerics;
  const std::string& activation = node.at("act").string();
  if (activation != "f32" && activation != "bf16") {
    node.at("act").fail("unknown activation dtype", "f32 or bf16");
  }
  numerics.activation =
      activation == "f32" ? ActivationDtype::kFloat32 : ActivationDtype::kBFloat16;
  // The arithmetic of the program that made the golden. The bounds assume that its own round-off is
  // negligible, which fp32 sums would not be.
  if (node.at("wide").string() != "f64") node.at("wide").fail("unknown arithmetic", "f64");
  numerics.quantize_linear = node.at("quant_linear").boolean();
  numerics.quantize_window = node.at("quant_window").boolean();
  numerics.quantize_compressed = node.at("quant_comp").boolean();
  numerics.quantize_index = node.at("quant_index").boolean();
  numerics.narrow_index = node.at("narrow_index").boolean();
  numerics.narrow_probabilities = node.at("narrow_probs").boolean();
  numerics.fp8_max = kGoldenFp8Max;
  return numerics;
}

void require_length(const JsonNode& node, size_t found, size_t expected) {
  if (found == expected) return;
  fail("wrong number of entries", node.where(),
       std::to_string(expected) + ", one a generated token", std::to_string(found));
}

GoldenPrompt read_prompt(const JsonNode& node, const std::string& name, const ModelConfig& config) {
  require_keys(node, {"tokens", "generated", "top2_margin", "noise_floor"},
               {"drafts", "closest_selection"});
  GoldenPrompt prompt;
  prompt.name = name;
  const int64_t last_id = config.vocab_size - 1;
  prompt.tokens = node.at("tokens").integers(0, last_id, kMaxTokens);
  if (prompt.tokens.empty()) node.at("tokens").fail("empty prompt", "at least one token");
  prompt.generated = node.at("generated").integers(0, last_id, kMaxTokens);
  if (prompt.generated.size() < static_cast<size_t>(kCountedTokens)) {
    fail("too few generated tokens", node.at("generated").where(),
         "at least " + std::to_string(kCountedTokens), std::to_string(prompt.generated.size()));
  }
  prompt.top2_margin = read_magnitudes(node.at("top2_margin"));
  require_length(node.at("top2_margin"), prompt.top2_margin.size(), prompt.generated.size());
  const JsonNode noise = node.at("noise_floor");
  require_keys(noise, {"max_abs_logit_per_step", "argmax_changes_in_3_runs"});
  prompt.noise_floor = read_magnitudes(noise.at("max_abs_logit_per_step"));
  require_length(noise.at("max_abs_logit_per_step"), prompt.noise_floor.size(),
                 prompt.generated.size());
  prompt.argmax_changes = noise.at("argmax_changes_in_3_runs").integer(0);
  if (const auto closest = node.find("closest_selection")) {
    require_keys(*closest, {}, {"expert_margin", "index_margin", "candidate_margin"});
    for (const auto& member : closest->value().members) {
      prompt.closest_selection[member.key] = closest->at(member.key).number();
    }
  }
  return prompt;
}

GoldenFile read_json(const std::filesystem::path& path, const ModelConfig& config) {
  const JsonValue json = parse_json(read_text_file(path.string(), kMaxJsonBytes), path.string(),
                                    {.max_bytes = kMaxJsonBytes});
  const JsonNode root(json, path.string());
  require_keys(root, {"mode", "numerics", "prompts"});
  GoldenFile golden;
  golden.path = path;
  golden.mode = root.at("mode").string();
  golden.numerics = read_numerics(root.at("numerics"));
  const std::vector<std::string> modes = {"plain", "quant", "official"};
  if (std::find(modes.begin(), modes.end(), golden.mode) == modes.end()) {
    root.at("mode").fail("unknown mode", "plain, quant or official",
                         did_you_mean(golden.mode, modes));
  }
  if (!(parse_numerics(golden.mode) == golden.numerics)) {
    fail("mode and numerics contradict each other", root.at("numerics").where(),
         golden.mode + " means " + describe(parse_numerics(golden.mode)),
         describe(golden.numerics));
  }
  const JsonNode prompts = root.at("prompts");
  prompts.expect_object();
  for (const auto& member : prompts.value().members) {
    golden.prompts.push_back(read_prompt(prompts.at(member.key), member.key, config));
  }
  if (golden.prompts.empty()) prompts.fail("no prompt", "at least one");
  return golden;
}

// The logits must be those that chose `generated`: guards against a JSON and a tensor file of two
// runs.
void require_consistent_logits(const GoldenPrompt& prompt, const std::string& where) {
  const auto logits = prompt.logits.accessor<float, 2>();
  for (int64_t step = 0; step < logits.size(0); ++step) {
    int64_t best = 0;
    for (int64_t id = 1; id < logits.size(1); ++id) {
      if (logits[step][id] > logits[step][best]) best = id;
    }
    double second = -std::numeric_limits<double>::infinity();
    for (int64_t id = 0; id < logits.size(1); ++id) {
      if (id != best) second = std::max(second, double{logits[step][id]});
    }
    const auto place = where + ": " + prompt.name + ".logits row " + std::to_string(step);
    const double margin = double{logits[step][best]} - second;
    const double stated = prompt.top2_margin[static_cast<size_t>(step)];
    // The JSON rounds margins to 6 decimals: half a unit, 5e-7. Each logit was rounded to fp32:
    // half an ulp of the larger magnitude, for two logits an ulp.
    const float magnitude =
        std::max(std::abs(logits[step][best]), std::abs(static_cast<float>(second)));
    const double rounding =
        5.01e-7 + (std::nextafter(magnitude, std::numeric_limits<float>::max()) - magnitude);
    if (best != prompt.generated[static_cast<size_t>(step)] && margin > rounding) {
      fail("logits and generated tokens contradict each other", place,
           "largest at token " + std::to_string(prompt.generated[static_cast<size_t>(step)]),
           "largest at token " + std::to_string(best));
    }
    if (std::abs(margin - stated) > rounding) {
      std::ostringstream expected, found;
      expected << "margin " << stated;
      found << "margin " << margin;
      fail("logits and top2_margin contradict each other", place, expected.str(), found.str());
    }
  }
}

}  // namespace

const GoldenTensor* GoldenTrace::find(std::string_view name, int64_t layer) const {
  const auto found = tensors.find({layer, std::string(name)});
  return found == tensors.end() ? nullptr : &found->second;
}

GoldenFile GoldenFile::read(const std::filesystem::path& json_path, const ModelConfig& config,
                            const ModelPlan& plan) {
  GoldenFile golden;
  try {
    golden = read_json(json_path, config);
  } catch (const CheckpointError& error) {
    // The JSON reader's type: to the caller of this function it is the golden file that is wrong.
    throw GoldenFileError(error.parts());
  }
  std::filesystem::path tensor_path = json_path;
  tensor_path.replace_extension(".safetensors");
  internal::read_golden_tensors(tensor_path, config, plan, golden.prompts);
  for (const GoldenPrompt& prompt : golden.prompts) {
    require_consistent_logits(prompt, tensor_path.string());
  }
  return golden;
}

void require_same_numerics(const GoldenFile& golden, const Numerics& used) {
  // Neither fp8_max nor who computes is part of the mode.
  Numerics comparable = used;
  comparable.fp8_max = kGoldenFp8Max;
  comparable.arithmetic = golden.numerics.arithmetic;
  if (comparable == golden.numerics) return;
  throw ConfigError({"the golden file was made with other numerics", golden.path.string(),
                     describe(golden.numerics), describe(used),
                     "use numerics \"" + golden.mode + "\" with this file"});
}

}  // namespace deepinfer
