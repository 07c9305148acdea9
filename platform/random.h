// Random numbers that are a pure function of (seed, purpose, case): one line repeats a case.
#pragma once

#include <cstdint>
#include <string_view>

#include <Random123/philox.h>

namespace deepinfer {

// FNV-1a, 64 bits (Fowler, Noll, Vo): offset basis 0xCBF29CE484222325, prime 0x100000001B3.
// `hash` continues an earlier one.
constexpr uint64_t fnv1a64(std::string_view bytes, uint64_t hash = 0xCBF29CE484222325) {
  for (const char byte : bytes) {
    hash ^= static_cast<uint8_t>(byte);
    hash *= 0x100000001B3;
  }
  return hash;
}

// Words of Philox4x32-10 (Salmon et al., SC11, by Random123). Key: the seed, low half first.
// Counter: block number, case number, then FNV-1a of the purpose, low half first. Streams of
// different purposes or cases therefore share no block, and none depends on what was drawn before
// it. Thread rule: one stream, one thread.
class RandomStream {
 public:
  RandomStream(uint64_t seed, std::string_view purpose, uint32_t case_number)
      : RandomStream(seed, fnv1a64(purpose), case_number) {}
  RandomStream(uint64_t seed, uint64_t purpose_hash, uint32_t case_number)
      : key_{{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}},
        counter_{{0, case_number, static_cast<uint32_t>(purpose_hash),
                  static_cast<uint32_t>(purpose_hash >> 32)}} {}

  uint32_t word() {
    if (used_ == 4) {
      block_ = r123::Philox4x32()(counter_, key_);
      ++counter_[0];  // 2^34 words before it comes round
      used_ = 0;
    }
    return block_[used_++];
  }
  // In 0 .. count - 1, for 0 < count <= 2^32; every value but for a bias below count / 2^32.
  int64_t below(int64_t count) {
    return static_cast<int64_t>((static_cast<uint64_t>(word()) * static_cast<uint64_t>(count)) >>
                                32);
  }
  // Uniform in (-1, 1), never 0: 24 bits.
  float uniform() { return (static_cast<float>(word() >> 8) + 0.5f) * 0x1p-23f - 1.0f; }
  // True once in `count` draws.
  bool one_in(int64_t count) { return below(count) == 0; }

 private:
  r123::Philox4x32::key_type key_;
  r123::Philox4x32::ctr_type counter_;
  r123::Philox4x32::ctr_type block_ = {};
  size_t used_ = 4;
};

}  // namespace deepinfer
