// A fast hash of memory, to compare results without keeping them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace deepinfer {

// 64-bit hash of `bytes` bytes, continuing from `seed`: equal on every little-endian host, not
// cryptographic. Eight lanes of eight bytes hide the latency of the multiplications; both halves of
// a product are kept, so that a difference in a word's top bits (a sign) reaches all others.
inline uint64_t hash_bytes(const void* data, size_t bytes, uint64_t seed = 0) {
  constexpr size_t kLanes = 8, kBlock = kLanes * sizeof(uint64_t);
  // Odd constants with evenly spread bits: 2^64 divided by the golden ratio, and by sqrt(2).
  constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15, kSpread = 0xb504f333f9de6485;
  const auto mix = [](uint64_t hash, uint64_t word) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(hash ^ word) * kMultiplier;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  };
  std::array<uint64_t, kLanes> lanes;
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = seed + kSpread * (i + 1);
  const char* from = static_cast<const char*>(data);
  std::array<uint64_t, kLanes> block;
  size_t left = bytes;
  for (; left >= kBlock; left -= kBlock, from += kBlock) {
    std::memcpy(block.data(), from, kBlock);
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = mix(lanes[i], block[i]);
  }
  if (left > 0) {
    block = {};
    std::memcpy(block.data(), from, left);
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = mix(lanes[i], block[i]);
  }
  uint64_t hash = mix(seed + kSpread, bytes);  // so that trailing zeros count
  for (const uint64_t lane : lanes) hash = mix(hash, lane);
  return mix(hash, kSpread);
}

}  // namespace deepinfer
