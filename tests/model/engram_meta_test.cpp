// The Engram hash's constants: the released prime walk, the golden files, and every rule of
// model.md 2.8.6.
#include "model/engram_meta.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "model/json_reader.h"
#include "tests/support/checkpoint_files.h"
#include "tests/support/messages.h"

namespace deepinfer::test {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;
const fs::path kRoot = DEEPINFER_SIM_SOURCE_DIR;

ModelConfig tiny() { return load_model_config(kRoot / "golden/data/tiny"); }
json tiny_meta() { return json::parse(read_file(kRoot / "golden/data/tiny/engram_meta.json")); }

// Primality by trial division, as slow and plain as it gets.
bool is_prime_plainly(int64_t n) {
  if (n < 2) return false;
  for (int64_t d = 2; d * d <= n; ++d) {
    if (n % d == 0) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("the released walk gives the published primes and sums") {
  const ModelConfig config = load_model_config(kRoot / "configs/models/deepseek-v4.1-flash");
  const json units = json::parse(read_file(kRoot / "golden/data/units/units.json"))["engram_real"];
  const auto primes = engram_primes(config);
  REQUIRE(primes.size() == 2);
  for (size_t slot = 0; slot < 2; ++slot) {
    std::vector<int64_t> golden;
    for (const auto& order : units["primes"][slot]) {
      for (const auto& prime : order) golden.push_back(prime.get<int64_t>());
    }
    CHECK(primes[slot] == golden);
    CHECK(std::accumulate(primes[slot].begin(), primes[slot].end(), int64_t{0}) ==
          units["engram_num_embeddings"][slot].get<int64_t>());
  }
  CHECK(primes[0].front() == 16000057);  // model.md 3.6
  CHECK(primes[1].back() == 16000889);
}

TEST_CASE("one cursor walks as the definition does") {
  // The definition: for each layer and n-gram size restart at engram_vocab_size - 1 and take the
  // next unused primes.
  ModelConfig config = tiny();
  for (const int64_t start :
       {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{200}, int64_t{65521}, int64_t{1} << 31}) {
    CAPTURE(start);
    config.engram_vocab_size = start;
    std::vector<int64_t> used;
    std::vector<std::vector<int64_t>> expected;
    for (size_t slot = 0; slot < config.engram_layer_ids.size(); ++slot) {
      expected.emplace_back();
      for (int64_t order = 2; order <= config.engram_max_ngram_size; ++order) {
        int64_t at = start - 1;
        for (int64_t head = 0; head < config.engram_n_heads; ++head) {
          do ++at;
          while (!is_prime_plainly(at) || std::find(used.begin(), used.end(), at) != used.end());
          used.push_back(at);
          expected.back().push_back(at);
        }
      }
    }
    CHECK(engram_primes(config) == expected);
  }
}

TEST_CASE("every number below 20000 is classed right") {
  // Squares, Carmichael numbers and strong pseudoprimes to single bases are among them.
  ModelConfig config = tiny();
  config.engram_layer_ids.assign(1, 1);
  config.engram_max_ngram_size = 2;
  config.engram_n_heads = 2262;  // primes below 20000
  config.engram_vocab_size = 1;
  const auto primes = engram_primes(config);
  size_t next = 0;
  for (int64_t n = 0; n < 20000; ++n) {
    if (!is_prime_plainly(n)) continue;
    REQUIRE(next < primes[0].size());
    REQUIRE(primes[0][next++] == n);
  }
  CHECK(next == primes[0].size());
}

TEST_CASE("the golden files are read") {
  for (const char* name : {"tiny", "tiny-fp8", "steady", "wide"}) {
    CAPTURE(name);
    const fs::path folder = kRoot / "golden/data" / name;
    const ModelConfig config = load_model_config(folder);
    const EngramMeta meta = load_engram_meta(folder, config);
    const json file = json::parse(read_file(folder / "engram_meta.json"));
    CHECK(meta.token_map == file["token_map"].get<std::vector<int64_t>>());
    CHECK(meta.pad_compressed == meta.token_map[2]);
    REQUIRE(meta.layers.size() == 2);
    for (size_t slot = 0; slot < 2; ++slot) {
      const EngramLayerMeta& layer = meta.layers[slot];
      CHECK(layer.offsets == file["offsets"][slot].get<std::vector<int64_t>>());
      CHECK(layer.rows == config.engram_num_embeddings[slot]);
      CHECK(layer.multipliers.size() == 4);
      for (size_t i = 0; i < 4; ++i) {
        CHECK(std::to_string(layer.multipliers[i]) ==
              file["multipliers"][slot][i].get<std::string>());
      }
    }
  }
}

TEST_CASE("primes and offsets may be left out") {
  json meta = tiny_meta();
  const EngramMeta full = parse_engram_meta(meta.dump(), tiny(), "FILE");
  meta.erase("primes");
  meta.erase("offsets");
  const EngramMeta derived = parse_engram_meta(meta.dump(), tiny(), "FILE");
  for (size_t slot = 0; slot < 2; ++slot) {
    CHECK(derived.layers[slot].primes == full.layers[slot].primes);
    CHECK(derived.layers[slot].offsets == full.layers[slot].offsets);
  }
}

TEST_CASE("the released multipliers are in range") {
  ModelConfig config = load_model_config(kRoot / "configs/models/deepseek-v4.1-flash");
  json map = json::array();
  for (int64_t id = 0; id < config.vocab_size; ++id) {
    map.push_back(std::min<int64_t>(id, config.engram_compressed_vocab_size - 1));
  }
  const json meta = {{"token_map", map},
                     {"compressed_vocab_size", 99092},
                     {"pad_token_id", 2},
                     {"engram_layer_ids", {1, 14}},
                     {"multipliers",
                      {{"76632096046245", "4839876093313", "35959672319349", "73987337458391"},
                       {"67716810739261", "51510806800915", "30921347202721", "82619226485591"}}}};
  const EngramMeta read = parse_engram_meta(meta.dump(), config, "FILE");
  CHECK(read.pad_compressed == 2);
  CHECK(read.layers[1].multipliers[3] == 82619226485591);
  // The largest product of a class and a multiplier fits int64.
  json largest = meta;
  largest["multipliers"][0][0] = std::to_string(2 * (int64_t{46539438283891} - 1) + 1);
  CHECK_NOTHROW(parse_engram_meta(largest.dump(), config, "FILE"));
  largest["multipliers"][0][0] = std::to_string(2 * int64_t{46539438283891} + 1);
  CHECK(checkpoint_error([&] { parse_engram_meta(largest.dump(), config, "FILE"); }).what ==
        "a multiplier is out of range");
}

TEST_CASE("every rule has its own message") {
  struct Breach {
    std::string what;
    std::function<void(json&)> change;
  };
  const std::vector<Breach> breaches = {
      {"key \"token_map\" is missing", [](json& m) { m.erase("token_map"); }},
      {"unknown key \"token_maps\"", [](json& m) { m["token_maps"] = 1; }},
      {"compressed_vocab_size differs from config.json",
       [](json& m) { m["compressed_vocab_size"] = 299; }},
      {"pad_token_id differs from config.json", [](json& m) { m["pad_token_id"] = 3; }},
      {"engram_layer_ids differ from config.json",
       [](json& m) {
         m["engram_layer_ids"] = {1, 5};
       }},
      {"token map has the wrong length", [](json& m) { m["token_map"].erase(511); }},
      {"token map is out of order", [](json& m) { m["token_map"][3] = 4; }},
      {"value out of range", [](json& m) { m["token_map"][3] = -1; }},
      {"token map has the wrong number of classes",
       [](json& m) {
         for (auto& id : m["token_map"]) id = std::min<int64_t>(id.get<int64_t>(), 200);
       }},
      {"token map merges a special token with an earlier token",
       [](json& m) {
         for (auto& id : m["token_map"]) id = std::max<int64_t>(0, id.get<int64_t>() - 1);
         m["token_map"][511] = 299;
       }},
      {"wrong number of multiplier sets", [](json& m) { m["multipliers"].erase(1); }},
      {"wrong number of multipliers", [](json& m) { m["multipliers"][1].erase(3); }},
      {"a multiplier is even", [](json& m) { m["multipliers"][1][0] = "12"; }},
      {"a multiplier is out of range", [](json& m) { m["multipliers"][1][0] = "-3"; }},
      {"not a decimal integer", [](json& m) { m["multipliers"][1][0] = "0x11"; }},
      {"wrong JSON type", [](json& m) { m["multipliers"][1][0] = 1.5; }},
      {"primes differ from those that config.json gives",
       [](json& m) { m["primes"][1][2][1] = 277; }},
      {"offsets differ from those that config.json gives",
       [](json& m) { m["offsets"][0][1] = 212; }},
      {"primes has the wrong number of columns", [](json& m) { m["primes"][0][2].erase(1); }},
      {"offsets has the wrong number of layers", [](json& m) { m["offsets"].erase(0); }},
  };
  for (size_t i = 0; i < breaches.size(); ++i) {
    const Breach& breach = breaches[i];
    CAPTURE(breach.what);
    json meta = tiny_meta();
    breach.change(meta);
    const ErrorParts parts =
        checkpoint_error([&] { parse_engram_meta(meta.dump(), tiny(), "FILE"); });
    CHECK(parts.what == breach.what);
    CHECK(begins_with(parts.where, "FILE"));
    for (size_t j = 0; j < i; ++j) CHECK(breaches[j].what != breach.what);
  }
}

TEST_CASE("the first token out of order is named") {
  json meta = tiny_meta();
  meta["token_map"][3] = 4;  // 3 classes so far: 0, 1, 2
  const ErrorParts parts =
      checkpoint_error([&] { parse_engram_meta(meta.dump(), tiny(), "FILE"); });
  CHECK(parts.where == "FILE, token_map[3]");
  CHECK(parts.found == "4");
}

TEST_CASE("a table of another size than the sum of its primes is refused") {
  ModelConfig config = tiny();
  config.engram_num_embeddings[1] += 1;
  CHECK(checkpoint_error([&] { parse_engram_meta(tiny_meta().dump(), config, "FILE"); }).what ==
        "the primes of an Engram layer do not sum to the rows of its table");
}

}  // namespace deepinfer::test
