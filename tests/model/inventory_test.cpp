// The tensors that a config calls for, against the released tables and the golden files.
#include <map>
#include <set>
#include <string>

#include <doctest/doctest.h>

#include "model/checkpoint.h"
#include "tests/support/checkpoint_files.h"
#include "tests/support/full_size.h"
#include "tests/support/messages.h"

namespace deepinfer::test {
namespace {

namespace fs = std::filesystem;
const fs::path kRoot = DEEPINFER_SIM_SOURCE_DIR;

uint64_t bytes_of(const TensorSpec& spec) {
  auto bytes = static_cast<uint64_t>(item_bytes(spec.types.front()));
  for (const int64_t size : spec.shape) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

struct Total {
  int64_t tensors = 0;
  uint64_t bytes = 0;
};
template <typename Filter>
Total total_of(const std::vector<TensorSpec>& specs, Filter filter) {
  Total total;
  for (const TensorSpec& spec : specs) {
    if (!filter(spec.name)) continue;
    ++total.tensors;
    total.bytes += bytes_of(spec);
  }
  return total;
}

}  // namespace

TEST_CASE("the released inventory has the published counts") {
  const auto specs =
      expected_tensors(load_model_config(kRoot / "configs/models/deepseek-v4.1-flash"));
  const Total all = total_of(specs, [](const std::string&) { return true; });
  CHECK(all.tensors == 96085);
  CHECK(all.bytes == 510286023000);
  const Total draft = total_of(specs, [](const std::string& n) { return begins_with(n, "mtp."); });
  CHECK(draft.tensors == 2401);
  CHECK(draft.bytes == 7932874632);
  const Total vision = total_of(specs, [](const std::string& n) {
    return begins_with(n, "vision.") || begins_with(n, "aligner.") || begins_with(n, "image_");
  });
  CHECK(vision.tensors == 266);
  const Total tables =
      total_of(specs, [](const std::string& n) { return contains(n, ".engram.embed."); });
  CHECK(tables.tensors == 4);
  CHECK(tables.bytes == 202758032400);
}

TEST_CASE("every released tensor has the name, shape and dtype of the published tables") {
  const auto specs =
      expected_tensors(load_model_config(kRoot / "configs/models/deepseek-v4.1-flash"));
  std::map<std::string, const TensorSpec*> by_name;
  for (const TensorSpec& spec : specs) by_name[spec.name] = &spec;
  CHECK(by_name.size() == specs.size());  // no name twice
  const auto released = released_tensors();
  CHECK(released.size() == specs.size());
  for (const ReleasedTensor& tensor : released) {
    CAPTURE(tensor.name);
    const auto at = by_name.find(tensor.name);
    REQUIRE(at != by_name.end());
    REQUIRE(at->second->shape == tensor.shape);
    REQUIRE(stored_type_name(at->second->types.front()) == tensor.dtype);
  }
}

TEST_CASE("the golden checkpoints hold exactly the expected tensors") {
  for (const char* name : {"tiny", "tiny-fp8", "steady", "wide"}) {
    CAPTURE(name);
    const fs::path folder = kRoot / "golden/data" / name;
    const auto specs = expected_tensors(load_model_config(folder));
    const TensorStore store(folder);
    CHECK(specs.size() == store.names().size());
    for (const TensorSpec& spec : specs) {
      CAPTURE(spec.name);
      const auto found = store.find(spec.name);
      REQUIRE(found);
      REQUIRE(found.info->shape == spec.shape);
      REQUIRE(found.info->type == spec.types.front());
    }
  }
}

TEST_CASE("without quantisation only the Engram tables have scales") {
  const auto specs = expected_tensors(load_model_config(kRoot / "golden/data/tiny"));
  int64_t tables = 0;
  for (const TensorSpec& spec : specs) {
    const bool table = contains(spec.name, ".engram.embed.");
    tables += table;
    CHECK((spec.form == TensorForm::kPlain) == !table);
  }
  CHECK(tables == 4);
}

TEST_CASE("experts are fp4 or fp8 as expert_dtype says") {
  ModelConfig config = load_model_config(kRoot / "golden/data/tiny-fp8");
  const auto find = [&config](const std::string& name) {
    for (TensorSpec& spec : expected_tensors(config)) {
      if (spec.name == name) return spec;
    }
    return TensorSpec{};
  };
  const std::string expert = "layers.0.ffn.experts.0.w1.";
  CHECK(find(expert + "weight").form == TensorForm::kFp4Weight);
  CHECK(find(expert + "weight").shape == std::vector<int64_t>{64, 64});
  CHECK(find(expert + "scale").shape == std::vector<int64_t>{64, 4});
  config.quantization->fp4_experts = false;
  CHECK(find(expert + "weight").form == TensorForm::kFp8Weight);
  CHECK(find(expert + "weight").shape == std::vector<int64_t>{64, 128});
  CHECK(find(expert + "scale").shape == std::vector<int64_t>{2, 4});
}

TEST_CASE("a tile that is not full still has a scale") {
  ModelConfig config = load_model_config(kRoot / "golden/data/tiny-fp8");
  config.head_dim = 80;  // wkv has 80 outputs: two tiles of 32 and a half one
  for (const TensorSpec& spec : expected_tensors(config)) {
    if (spec.name == "layers.0.attn.wkv.scale") CHECK(spec.shape == std::vector<int64_t>{3, 4});
  }
}

TEST_CASE("types that readers also meet are accepted") {
  EditedCheckpoint checkpoint("tiny-fp8");
  // e8m0 scales typed U8, Engram weights in F32, hyper-connection matrices in BF16.
  for (RawTensor& tensor : checkpoint.tensors) {
    if (tensor.dtype == "F8_E8M0") tensor.dtype = "U8";
    if (contains(tensor.name, "engram.q_weight")) {
      tensor.dtype = "F32";
      tensor.bytes.append(tensor.bytes.size(), '\0');
    }
    if (contains(tensor.name, "hc_attn_fn")) {
      tensor.dtype = "BF16";
      tensor.bytes.assign(tensor.bytes.size() / 2, '\0');
    }
  }
  const TempFolder folder;
  checkpoint.write(folder.path());
  const ModelConfig config = load_model_config(folder.path());
  const ValidateResult result = validate_checkpoint(TensorStore(folder.path()), config, {});
  for (const Finding& finding : result.findings) MESSAGE(finding.what << " " << finding.where);
  CHECK(result.total_findings == 0);
}

}  // namespace deepinfer::test
