#include "model/engram_meta.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "model/json_reader.h"
#include "platform/errors.h"

namespace deepinfer {
namespace {

uint64_t power_mod(uint64_t base, uint64_t exponent, uint64_t modulus) {
  uint64_t result = 1;
  for (base %= modulus; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result = result * base % modulus;
    base = base * base % modulus;
  }
  return result;
}

// Miller-Rabin with bases 2, 3, 5, 7: exact below 3,215,031,751 (Jaeschke 1993). Products stay
// below 2^64 because n is below 2^32.
bool is_prime(uint64_t n) {
  DEEPINFER_ASSERT(n < 3'215'031'751u, "n " << n);
  for (const uint64_t p : {2, 3, 5, 7}) {
    if (n % p == 0) return n == p;
  }
  if (n < 2) return false;
  uint64_t odd = n - 1;
  int twos = 0;
  for (; odd % 2 == 0; odd /= 2) ++twos;
  for (const uint64_t base : {2, 3, 5, 7}) {
    uint64_t x = power_mod(base, odd, n);
    if (x == 1 || x == n - 1) continue;
    bool composite = true;
    for (int i = 1; i < twos && composite; ++i) {
      x = x * x % n;
      composite = x != n - 1;
    }
    if (composite) return false;
  }
  return true;
}

std::string at(const std::string& name, size_t i) { return name + "[" + std::to_string(i) + "]"; }

// All integers below `node`, whatever the nesting: files write [slot][n-gram][head] or
// [slot][column].
void flatten(const JsonNode& node, size_t max_count, std::vector<int64_t>& out) {
  if (node.value().kind != JsonValue::Kind::kArray) {
    out.push_back(node.integer());
    return;
  }
  for (const JsonNode& element : node.elements(max_count)) flatten(element, max_count, out);
}

class MetaReader {
 public:
  MetaReader(const JsonNode& root, const ModelConfig& config) : root_(root), config_(config) {}

  EngramMeta read() {
    root_.expect_keys({"token_map", "compressed_vocab_size", "pad_token_id", "engram_layer_ids",
                       "multipliers", "primes", "offsets"});
    check_scalars();
    read_token_map();
    derive_layout();
    read_multipliers();
    check_derived("primes", &EngramLayerMeta::primes);
    check_derived("offsets", &EngramLayerMeta::offsets);
    return std::move(meta_);
  }

 private:
  void check_scalars() const {
    const JsonNode classes = root_.at("compressed_vocab_size");
    if (classes.integer() != config_.engram_compressed_vocab_size) {
      classes.fail("compressed_vocab_size differs from config.json",
                   std::to_string(config_.engram_compressed_vocab_size));
    }
    const JsonNode pad = root_.at("pad_token_id");
    if (pad.integer() != config_.engram_pad_token_id) {
      pad.fail("pad_token_id differs from config.json", std::to_string(config_.engram_pad_token_id),
               "the pad of the file is a raw token id");
    }
    const JsonNode layers = root_.at("engram_layer_ids");
    if (layers.integers(0, std::numeric_limits<int64_t>::max(), 4096) != config_.engram_layer_ids) {
      layers.fail("engram_layer_ids differ from config.json",
                  std::to_string(config_.engram_layer_ids.size()) + " layers, as in config.json");
    }
  }

  void read_token_map() {
    const JsonNode node = root_.at("token_map");
    const auto vocab = static_cast<size_t>(config_.vocab_size);
    const int64_t classes = config_.engram_compressed_vocab_size;
    meta_.token_map = node.integers(0, std::numeric_limits<int64_t>::max(), size_t{1} << 24);
    const auto& map = meta_.token_map;
    if (map.size() != vocab) {
      node.fail("token map has the wrong length", std::to_string(vocab) + ", one class a token id");
    }
    int64_t seen = 0;  // classes met so far: first appearances count up from 0
    std::vector<bool> first(vocab, false);
    for (size_t id = 0; id < vocab; ++id) {
      if (map[id] > seen) {
        throw CheckpointError(
            {.what = "token map is out of order",
             .where = root_.source() + ", " + at("token_map", id),
             .expected =
                 "at most " + std::to_string(seen) + ": classes are numbered by first appearance",
             .found = std::to_string(map[id]),
             .remedy = "make engram_meta.json from this checkpoint's tokenizer again"});
      }
      first[id] = map[id] == seen;
      if (first[id]) ++seen;
    }
    if (seen != classes) {
      throw CheckpointError(
          {.what = "token map has the wrong number of classes",
           .where = node.where(),
           .expected = std::to_string(classes),
           .found = std::to_string(seen),
           .remedy = "make engram_meta.json from this checkpoint's tokenizer again"});
    }
    // bos, eos and pad come first in the vocabulary and are no other token's spelling; so map[0] =
    // 0 and map[2] = 2 in the release (model.md 2.8).
    for (const int64_t id : {config_.bos_token_id, config_.eos_token_id, config_.pad_token_id,
                             config_.engram_pad_token_id}) {
      if (first[static_cast<size_t>(id)]) continue;
      throw CheckpointError(
          {.what = "token map merges a special token with an earlier token",
           .where = root_.source() + ", " + at("token_map", static_cast<size_t>(id)),
           .expected = "a class of its own",
           .found = std::to_string(map[static_cast<size_t>(id)]),
           .remedy = "make engram_meta.json from this checkpoint's tokenizer again"});
    }
    meta_.pad_compressed = map[static_cast<size_t>(config_.engram_pad_token_id)];
  }

  void derive_layout() {
    check_engram_rows(config_, root_.source());
    for (auto& primes : engram_primes(config_)) {
      EngramLayerMeta layer;
      for (const int64_t prime : primes) {
        layer.offsets.push_back(layer.rows);
        layer.rows += prime;
      }
      layer.primes = std::move(primes);
      meta_.layers.push_back(std::move(layer));
    }
  }

  // 2v + 1 with v below B = max(1, floor(floor((2^63 - 1) / V) / 2)), so that a class times a
  // multiplier never overflows (model-verified.md 10).
  void read_multipliers() {
    const JsonNode node = root_.at("multipliers");
    const auto sets = node.elements(4096);
    if (sets.size() != meta_.layers.size()) {
      node.fail("wrong number of multiplier sets",
                std::to_string(meta_.layers.size()) + ", one an Engram layer");
    }
    const int64_t classes = config_.engram_compressed_vocab_size;
    const int64_t bound = std::max<int64_t>(1, std::numeric_limits<int64_t>::max() / classes / 2);
    for (size_t slot = 0; slot < sets.size(); ++slot) {
      const auto values = sets[slot].elements(64);
      if (static_cast<int64_t>(values.size()) != config_.engram_max_ngram_size) {
        sets[slot].fail("wrong number of multipliers",
                        std::to_string(config_.engram_max_ngram_size) + ", one a look-back");
      }
      for (const JsonNode& value : values) {
        const int64_t multiplier = value.decimal();
        if (multiplier % 2 == 0) value.fail("a multiplier is even", "an odd number");
        if (multiplier < 1 || multiplier > 2 * (bound - 1) + 1) {
          value.fail("a multiplier is out of range", "1 to " + std::to_string(2 * (bound - 1) + 1));
        }
        meta_.layers[slot].multipliers.push_back(multiplier);
      }
    }
  }

  void check_derived(const char* key, std::vector<int64_t> EngramLayerMeta::*derived) const {
    const auto node = root_.find(key);
    if (!node) return;
    const auto slots = node->elements(4096);
    if (slots.size() != meta_.layers.size()) {
      node->fail(std::string(key) + " has the wrong number of layers",
                 std::to_string(meta_.layers.size()));
    }
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      std::vector<int64_t> values;
      flatten(slots[slot], 4096, values);
      const auto& expected = meta_.layers[slot].*derived;
      if (values.size() != expected.size()) {
        throw CheckpointError({.what = std::string(key) + " has the wrong number of columns",
                               .where = slots[slot].where(),
                               .expected = std::to_string(expected.size()),
                               .found = std::to_string(values.size()),
                               .remedy = ""});
      }
      const auto [found, wanted] = std::mismatch(values.begin(), values.end(), expected.begin());
      if (found == values.end()) continue;
      throw CheckpointError(
          {.what = std::string(key) + " differ from those that config.json gives",
           .where = slots[slot].where() + ", column " + std::to_string(found - values.begin()),
           .expected = std::to_string(*wanted),
           .found = std::to_string(*found),
           .remedy =
               "the prime walk starts at engram_vocab_size - 1 and never uses a prime twice"});
    }
  }

  const JsonNode& root_;
  const ModelConfig& config_;
  EngramMeta meta_;
};

}  // namespace

std::vector<std::vector<int64_t>> engram_primes(const ModelConfig& config) {
  std::vector<std::vector<int64_t>> out;
  // Every search takes the smallest unused primes from the same start, so the used ones are always
  // the first so many above it, and a restart passes exactly those: one cursor walks all searches.
  uint64_t cursor = static_cast<uint64_t>(std::max<int64_t>(config.engram_vocab_size - 1, 0));
  for (size_t slot = 0; slot < config.engram_layer_ids.size(); ++slot) {
    std::vector<int64_t>& primes = out.emplace_back();
    for (int64_t column = 0; column < config.engram_columns(); ++column) {
      do ++cursor;
      while (!is_prime(cursor));
      primes.push_back(static_cast<int64_t>(cursor));
    }
  }
  return out;
}

void check_engram_rows(const ModelConfig& config, const std::string& where) {
  const auto primes = engram_primes(config);
  for (size_t slot = 0; slot < primes.size(); ++slot) {
    const int64_t sum = std::accumulate(primes[slot].begin(), primes[slot].end(), int64_t{0});
    if (sum == config.engram_num_embeddings[slot]) continue;
    throw CheckpointError(
        {.what = "the primes of an Engram layer do not sum to the rows of its table",
         .where = where + ", layer " + std::to_string(config.engram_layer_ids[slot]),
         .expected = std::to_string(sum) + " rows (" + std::to_string(primes[slot].size()) +
                     " primes above engram_vocab_size)",
         .found = std::to_string(config.engram_num_embeddings[slot]) + " (engram_num_embeddings)",
         .remedy = "check engram_vocab_size, engram_n_heads and engram_max_ngram_size"});
  }
}

EngramMeta parse_engram_meta(std::string_view json_text, const ModelConfig& config,
                             const std::string& where) {
  // One value a token id and a little more.
  const JsonValue tree = parse_json(
      json_text, where,
      {.max_bytes = size_t{256} << 20, .max_values = size_t{20'000'000}, .max_depth = 6});
  const JsonNode root(tree, where);
  root.expect_object();
  return MetaReader(root, config).read();
}

EngramMeta load_engram_meta(const std::filesystem::path& directory, const ModelConfig& config) {
  const std::string path = (directory / "engram_meta.json").string();
  return parse_engram_meta(read_text_file(path, size_t{256} << 20), config, path);
}

}  // namespace deepinfer
