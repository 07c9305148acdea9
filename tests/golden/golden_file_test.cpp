// Golden files: the shipped ones read whole, and every way in which one can lie is its own message.
#include "golden/golden_file.h"

#include <cstring>
#include <functional>

#include <doctest/doctest.h>

#include "platform/errors.h"
#include "tests/support/checkpoint_files.h"
#include "tests/support/messages.h"

namespace deepinfer {
namespace {

using test::contains;

const std::string kData = DEEPINFER_SIM_SOURCE_DIR "/golden/data/";

GoldenFile read_golden(const std::string& folder, const std::string& name) {
  const ModelConfig config = load_model_config(kData + folder);
  return GoldenFile::read(kData + folder + "/" + name, config, make_model_plan(config));
}

// An edited copy of tiny's golden-plain pair.
class EditedGolden {
 public:
  EditedGolden()
      : json(test::read_file(kData + "tiny/golden-plain.json")),
        tensors(test::tensors_of(kData + "tiny/golden-plain.safetensors")) {}

  std::string json;
  std::vector<test::RawTensor> tensors;

  test::RawTensor& tensor(const std::string& name) {
    for (auto& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    FAIL("no tensor " << name);
    return tensors.front();
  }
  void remove(const std::string& name) {
    const size_t before = tensors.size();
    std::erase_if(tensors, [&](const auto& tensor) { return tensor.name == name; });
    REQUIRE(tensors.size() + 1 == before);
  }
  void replace(const std::string& from, const std::string& to) {
    test::EditedCheckpoint::replace(json, from, to);
  }

  // The parts of the GoldenFileError that reading it throws; empty if it reads.
  ErrorParts error() const { return error_with(test::safetensors_of(tensors)); }
  ErrorParts error_with(const std::string& file) const {
    const test::TempFolder folder;
    test::write_file(folder / "golden-plain.json", json);
    test::write_file(folder / "golden-plain.safetensors", file);
    const ModelConfig config = load_model_config(kData + "tiny");
    try {
      GoldenFile::read(folder / "golden-plain.json", config, make_model_plan(config));
    } catch (const GoldenFileError& error) {
      CHECK(error.exit_code() == ExitCode::kBadInput);
      return error.parts();
    }
    return {};
  }
};

float& float_at(test::RawTensor& tensor, size_t element) {
  REQUIRE(tensor.bytes.size() >= 4 * (element + 1));
  return *reinterpret_cast<float*>(tensor.bytes.data() + 4 * element);
}

TEST_CASE("every shipped golden reads") {
  const std::vector<std::pair<std::string, std::string>> files = {
      {"tiny", "plain"},        {"tiny", "long-plain"},     {"tiny-fp8", "plain"},
      {"tiny-fp8", "quant"},    {"tiny-fp8", "long-plain"}, {"tiny-fp8", "long-quant"},
      {"tiny-fp8", "official"}, {"steady", "plain"},        {"steady", "quant"},
      {"steady", "official"},   {"wide", "plain"},          {"wide", "quant"},
      {"wide", "official"},
  };
  for (const auto& [folder, name] : files) {
    CAPTURE(folder);
    CAPTURE(name);
    const GoldenFile golden = read_golden(folder, "golden-" + name + ".json");
    const std::string mode = name.substr(name.rfind('-') + 1);
    CHECK(golden.mode == mode);
    CHECK(golden.numerics == parse_numerics(mode));
    CHECK(golden.prompts.size() == (name.starts_with("long")     ? 1
                                    : folder.starts_with("tiny") ? 4
                                                                 : 5));
    for (const GoldenPrompt& prompt : golden.prompts) {
      CHECK(prompt.generated.size() >= 9);
      CHECK(prompt.logits.size(0) == static_cast<int64_t>(prompt.generated.size()));
    }
  }
}

TEST_CASE("what a prompt holds") {
  const GoldenFile golden = read_golden("tiny", "golden-plain.json");
  REQUIRE(golden.prompts.size() == 4);
  CHECK(golden.prompts[0].name == "p24");  // file order
  CHECK(golden.prompts[0].tokens.size() == 24);
  CHECK(golden.prompts[0].prefill.empty());
  const GoldenPrompt& traced = golden.prompts[3];
  CHECK(traced.name == "p41");
  CHECK(traced.prefill.rows == 41);
  CHECK(traced.prefill.feeds_layers);
  CHECK(traced.decode0.rows == 1);
  CHECK(traced.decode0.feeds_layers);
  REQUIRE(traced.prefill.find("topk", 2) != nullptr);
  CHECK((traced.prefill.find("topk", 2)->values.sizes() == at::IntArrayRef({41, 16})));
  CHECK((traced.prefill.find("topk", 2)->values.scalar_type() == at::kLong));
  CHECK(traced.prefill.find("topk", 3) == nullptr);
  CHECK(traced.prefill.find("hidden", kFinalLayer) != nullptr);
  CHECK(traced.closest_selection.at("expert_margin") == doctest::Approx(0.000478516));
}

TEST_CASE("long prompts keep the last rows of streams and whole selections") {
  const GoldenFile golden = read_golden("tiny", "golden-long-plain.json");
  const GoldenTrace& trace = golden.prompts[0].prefill;
  CHECK_FALSE(trace.feeds_layers);
  CHECK(trace.rows == 320);
  CHECK(trace.find("post_moe", 0)->first_row == 316);
  CHECK(trace.find("post_moe", 0)->values.size(0) == 4);
  CHECK(trace.find("experts", 0)->first_row == 0);
  CHECK(trace.find("experts", 0)->values.size(0) == 320);
}

TEST_CASE("an unedited copy reads") { CHECK(EditedGolden().error().what.empty()); }

TEST_CASE("missing files") {
  const ModelConfig config = load_model_config(kData + "tiny");
  const ModelPlan plan = make_model_plan(config);
  CHECK_THROWS_AS(GoldenFile::read(kData + "tiny/golden-none.json", config, plan), GoldenFileError);
  CHECK_THROWS_AS(GoldenFile::read(kData + "tiny", config, plan), GoldenFileError);
  const test::TempFolder folder;
  test::write_file(folder / "golden-plain.json", EditedGolden().json);
  CHECK_THROWS_AS(GoldenFile::read(folder / "golden-plain.json", config, plan), GoldenFileError);
}

TEST_CASE("the JSON half: each lie has its message") {
  struct Lie {
    const char* name;
    std::function<void(EditedGolden&)> tell;
    const char* what;      // starts the message
    const char* anywhere;  // found in one of its parts
  };
  const Lie lies[] = {
      {"not JSON", [](auto& g) { g.json = "{\"mode\": "; }, "", "golden-plain.json"},
      {"a list", [](auto& g) { g.json = "[1]"; }, "", ""},
      {"unknown key", [](auto& g) { g.replace("\"mode\"", "\"mod\""); }, "", "mode"},
      {"duplicate key", [](auto& g) { g.replace("{", "{\"mode\": \"plain\","); }, "", "mode"},
      {"unknown mode", [](auto& g) { g.replace("\"plain\"", "\"plan\""); }, "unknown mode",
       "plain"},
      {"mode of other numerics", [](auto& g) { g.replace("\"plain\"", "\"quant\""); },
       "mode and numerics contradict each other", "quant"},
      {"unknown activation", [](auto& g) { g.replace("\"f32\"", "\"f16\""); },
       "unknown activation dtype", "f16"},
      {"unknown arithmetic", [](auto& g) { g.replace("\"f64\"", "\"f32\""); }, "unknown arithmetic",
       "f64"},
      {"switch not boolean", [](auto& g) { g.replace("false", "0"); }, "", "quant_linear"},
      {"missing generated", [](auto& g) { g.replace("\"generated\"", "\"generatedd\""); }, "",
       "generated"},
      {"eight tokens",
       [](auto& g) {
         const size_t at = g.json.find("\"generated\"");
         const size_t open = g.json.find('[', at), close = g.json.find(']', at);
         g.json.replace(open, close - open + 1, "[1, 2, 3, 4, 5, 6, 7, 8]");
       },
       "too few generated tokens", "at least 9"},
      {"too few margins",
       [](auto& g) {
         const size_t at = g.json.find("\"top2_margin\"");
         const size_t open = g.json.find('[', at), close = g.json.find(']', at);
         g.json.replace(open, close - open + 1, "[0.5, 0.5]");
       },
       "wrong number of entries", "top2_margin"},
      {"negative margin",
       [](auto& g) {
         const size_t open = g.json.find('[', g.json.find("\"top2_margin\""));
         g.json.insert(g.json.find_first_of("0123456789", open), "-");
       },
       "negative value", "top2_margin"},
      {"token past the vocabulary",
       [](auto& g) {
         const size_t open = g.json.find('[', g.json.find("\"tokens\""));
         g.json.insert(open + 1, "512, ");
       },
       "", "512"},
      {"no prompts",
       [](auto& g) {
         const size_t open = g.json.find('{', g.json.find("\"prompts\""));
         g.json = g.json.substr(0, open) + "{}}";
       },
       "no prompt", "prompts"},
  };
  for (const Lie& lie : lies) {
    CAPTURE(lie.name);
    EditedGolden golden;
    lie.tell(golden);
    const ErrorParts parts = golden.error();
    CHECK_FALSE(parts.what.empty());
    CHECK(test::begins_with(parts.what, lie.what));
    CHECK(contains(format_error(parts), lie.anywhere));
    CHECK(contains(format_error(parts), "golden-plain.json"));
  }
}

TEST_CASE("the tensor half: each lie has its message") {
  struct Lie {
    const char* name;
    std::function<void(EditedGolden&)> tell;
    const char* what;
    const char* anywhere;
  };
  const Lie lies[] = {
      {"no logits", [](auto& g) { g.remove("p7.logits"); }, "missing tensor", "p7.logits"},
      {"a hole in a trace", [](auto& g) { g.remove("p41.prefill.layers.3.post_attn"); },
       "missing tensor", "p41.prefill.layers.3.post_attn"},
      {"no coefficients in one layer", [](auto& g) { g.remove("p41.decode0.layers.5.ffn_pre"); },
       "missing tensor", "p41.decode0.layers.5.ffn_pre"},
      {"no hidden state", [](auto& g) { g.remove("p41.decode0.final.hidden"); }, "missing tensor",
       "p41.decode0.final.hidden"},
      {"half a trace",
       [](auto& g) {
         std::erase_if(g.tensors,
                       [](const auto& tensor) { return tensor.name.starts_with("p41.decode0."); });
       },
       "half a trace", "prefill only"},
      {"rows lost",
       [](auto& g) {
         auto& tensor = g.tensor("p41.prefill.layers.0.experts");
         tensor.shape[0] = 40;
         tensor.bytes.resize(tensor.bytes.size() - 12);
       },
       "wrong shape", "[41, 3]"},
      {"dimensions swapped",
       [](auto& g) {
         g.tensor("p24.logits").shape = {512, 12};
       },
       "wrong shape", "[12, 512]"},
      {"integers as floats",
       [](auto& g) { g.tensor("p41.prefill.layers.0.experts").dtype = "F32"; }, "wrong dtype",
       "I32"},
      {"floats as integers", [](auto& g) { g.tensor("p24.logits").dtype = "I32"; }, "wrong dtype",
       "F32"},
      {"expert past the last",
       [](auto& g) { g.tensor("p41.prefill.layers.0.experts").bytes[0] = 16; },
       "value out of range", "16 at element 0"},
      {"top-k below the padding",
       [](auto& g) {
         const int32_t lie = -2;
         std::memcpy(g.tensor("p41.decode0.layers.2.topk").bytes.data(), &lie, 4);
       },
       "value out of range", "-2"},
      {"NaN", [](auto& g) { float_at(g.tensor("p41.prefill.layers.2.post_moe"), 7) = NAN; },
       "value that is not finite", "element 7"},
      {"unknown value", [](auto& g) { g.tensor("p41.prefill.layers.0.post_moe").name += "e"; },
       "unknown tensor", "did you mean post_moe?"},
      {"unknown prompt", [](auto& g) { g.tensor("p7.logits").name = "p8.logits"; },
       "unknown tensor", "p8.logits"},
      {"unknown part", [](auto& g) { g.tensor("p7.logits").name = "p7.logit"; }, "unknown tensor",
       "p7.logit"},
      {"layer past the last",
       [](auto& g) {
         g.tensor("p41.prefill.layers.7.post_moe").name = "p41.prefill.layers.8.post_moe";
       },
       "unknown tensor", "0 to 7"},
      {"layer without a number",
       [](auto& g) {
         g.tensor("p41.prefill.layers.7.post_moe").name = "p41.prefill.layers.x.post_moe";
       },
       "unknown tensor", "layer number"},
      {"top-k of a layer without an indexer",
       [](auto& g) { g.tensor("p41.prefill.layers.2.topk").name = "p41.prefill.layers.3.topk"; },
       "unknown tensor", "layer 3 does not compute it"},
      {"logits of another token", [](auto& g) { float_at(g.tensor("p24.logits"), 5) = 100; },
       "logits and generated tokens contradict each other", "token 5"},
      {"margins of another run",
       [](auto& g) {
         const size_t open = g.json.find('[', g.json.find("\"top2_margin\""));
         g.json.insert(g.json.find_first_of("0123456789", open), "1");
       },
       "logits and top2_margin contradict each other", "row 0"},
  };
  for (const Lie& lie : lies) {
    CAPTURE(lie.name);
    EditedGolden golden;
    lie.tell(golden);
    const ErrorParts parts = golden.error();
    CHECK(parts.what == lie.what);
    CHECK(contains(format_error(parts), lie.anywhere));
  }
}

TEST_CASE("a truncated tensor file") {
  const EditedGolden golden;
  const std::string whole = test::safetensors_of(golden.tensors);
  for (const size_t bytes : {size_t{0}, size_t{7}, size_t{8}, size_t{100}, whole.size() - 1}) {
    CAPTURE(bytes);
    const ErrorParts parts = golden.error_with(whole.substr(0, bytes));
    CHECK(test::begins_with(parts.what, "the golden tensors cannot be read"));
    CHECK(contains(parts.where, "golden-plain.safetensors"));
  }
}

TEST_CASE("a golden is only good for the numerics that made it") {
  const GoldenFile golden = read_golden("steady", "golden-quant.json");
  CHECK_NOTHROW(require_same_numerics(golden, Numerics::quant()));
  CHECK_THROWS_AS(require_same_numerics(golden, Numerics::plain()), ConfigError);
  CHECK_THROWS_AS(require_same_numerics(golden, Numerics::official()), ConfigError);
  Numerics other_max = Numerics::quant();
  other_max.fp8_max = 240;
  CHECK_NOTHROW(require_same_numerics(golden, other_max));
}

}  // namespace
}  // namespace deepinfer
