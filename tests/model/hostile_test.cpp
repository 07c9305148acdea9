// Every lie that a checkpoint can tell gets its own message, and nothing is read past its end.
#include <map>
#include <string>

#include <doctest/doctest.h>

#include "model/checkpoint.h"
#include "model/engram_meta.h"
#include "tests/support/checkpoint_files.h"
#include "tests/support/hostile_checkpoints.h"
#include "tests/support/messages.h"

namespace deepinfer::test {
namespace {

namespace fs = std::filesystem;

// What a loader does, in its order.
void load(const fs::path& folder) {
  const ModelConfig config = load_model_config(folder);
  open_checkpoint(folder, config);
  load_engram_meta(folder, config);
}

}  // namespace

TEST_CASE("the copies are sound before they lie") {
  for (const char* name : {"tiny", "tiny-fp8", "wide"}) {
    CAPTURE(name);
    const TempFolder single, sharded;
    EditedCheckpoint(name).write(single.path());
    EditedCheckpoint(name).write_sharded(sharded.path(), 3);
    CHECK(checkpoint_error([&] { load(single.path()); }).what == "");
    CHECK(checkpoint_error([&] { load(sharded.path()); }).what == "");
  }
}

TEST_CASE("each lie has its own message") {
  std::map<std::string, std::string> seen;  // message -> lie
  std::string previous;
  for (const Lie& lie : hostile_checkpoints()) {
    CAPTURE(lie.name);
    const TempFolder folder;
    lie.write(folder.path());
    ErrorParts parts;
    std::string message;
    ExitCode code = ExitCode::kMatch;
    try {
      load(folder.path());
    } catch (const CheckpointError& error) {
      parts = error.parts();
      message = error.what();
      code = error.exit_code();
    }
    CAPTURE(message);
    CHECK(code == ExitCode::kBadInput);
    CHECK(begins_with(parts.what, lie.what));
    CHECK(contains(message, lie.names));
    CHECK(contains(parts.where, folder.path().string()));
    CHECK_FALSE(parts.expected.empty());
    CHECK_FALSE(parts.found.empty());
    if (lie.variant) {
      CHECK(parts.what == previous);
    } else {
      const auto place = seen.emplace(parts.what, lie.name);
      CHECK_MESSAGE(place.second, "same message as " << place.first->second);
    }
    previous = parts.what;
  }
  MESSAGE(hostile_checkpoints().size() << " lies, " << seen.size() << " distinct messages");
}

TEST_CASE("all findings are counted, as many as wanted are kept") {
  EditedCheckpoint checkpoint("tiny-fp8");
  for (int layer = 0; layer < 8; ++layer) {
    checkpoint.tensor("layers." + std::to_string(layer) + ".attn.wkv.scale").bytes[0] = '\xff';
    checkpoint.remove("layers." + std::to_string(layer) + ".attn.q_norm.weight");
  }
  const TempFolder folder;
  checkpoint.write(folder.path());
  const ModelConfig config = load_model_config(folder.path());
  const TensorStore store(folder.path());
  const ValidateResult all = validate_checkpoint(store, config, {});
  CHECK(all.total_findings == 16);
  CHECK(all.findings.size() == 16);
  CHECK(all.tensors == 1156);
  CHECK(all.shards == 1);
  CHECK(all.payload_bytes == store.payload_bytes());
  const ValidateResult some =
      validate_checkpoint(store, config, {.headers_only = false, .max_findings = 3});
  CHECK(some.total_findings == 16);
  CHECK(some.findings.size() == 3);
  // Headers alone cannot show NaN, and nothing is mapped to look at them.
  const ValidateResult headers = validate_checkpoint(store, config, {.headers_only = true});
  CHECK(headers.total_findings == 8);
  CHECK_FALSE(store.find("embed.weight").file->mapped());
  const ErrorParts parts = checkpoint_error([&] { open_checkpoint(folder.path(), config); });
  CHECK(contains(parts.remedy, "15 other findings"));
}

TEST_CASE("a large payload is scanned by several threads with the same result") {
  // 80 MB of embedding, with NaN in the first and the last value and one in the middle.
  EditedCheckpoint checkpoint("tiny");
  EditedCheckpoint::replace(checkpoint.config, "\"vocab_size\": 512", "\"vocab_size\": 327680");
  const TempFolder folder;
  RawTensor& embed = checkpoint.tensor("embed.weight");
  embed.shape[0] = 327680;
  embed.bytes.assign(size_t{327680} * 128 * 2, '\0');
  for (const size_t at : {size_t{0}, embed.bytes.size() / 2, embed.bytes.size() - 2}) {
    embed.bytes.replace(at, 2, "\xc0\x7f");
  }
  for (const char* name :
       {"head.weight", "mtp.1.markov_head.embed.weight", "mtp.1.markov_head.head.weight"}) {
    RawTensor& tensor = checkpoint.tensor(name);
    tensor.shape[0] = 327680;
    tensor.bytes.assign(static_cast<size_t>(327680 * tensor.shape[1] * 2), '\0');
  }
  checkpoint.write(folder.path());
  const ModelConfig config = load_model_config(folder.path());
  const ValidateResult result = validate_checkpoint(TensorStore(folder.path()), config, {});
  REQUIRE(result.total_findings == 1);
  CHECK(result.findings[0].found == "3 of 41943040, first at [0, 0]");
}

TEST_CASE("a file cut short during the scan is a finding") {
  const TempFolder folder;
  EditedCheckpoint("tiny-fp8").write(folder.path());
  const ModelConfig config = load_model_config(folder.path());
  const TensorStore store(folder.path());
  fs::resize_file(folder / "model.safetensors", fs::file_size(folder / "model.safetensors") - 400);
  const ValidateResult result = validate_checkpoint(store, config, {});
  REQUIRE(result.total_findings > 0);
  CHECK(result.findings[0].what == "file changed its size while in use");
}

}  // namespace deepinfer::test
