// Decodes and encodes arrays of the narrow formats (CANONICAL.md C4): what platform/formats.h says,
// at vector speed.
#pragma once

#include <cstdint>
#include <span>

#include "platform/formats.h"
#include "sim/kernels/target.h"

namespace deepinfer {

// values[i] = the exact value of codes[i], one code a byte; any format but bf16 (asserted). For
// e2m1 the four upper bits must be 0. A NaN is 0x7FC00000, in bf16 0x7FC0. The spans have one
// length (asserted).
void decode_codes(NumericFormat format, std::span<const uint8_t> codes, std::span<float> values,
                  Target target = best_vector_target());
// The same in bf16, in which every code of these formats is exact.
void decode_codes(NumericFormat format, std::span<const uint8_t> codes, std::span<uint16_t> values,
                  Target target = best_vector_target());

// codes[i] = encode(format, values[i], overflow, limit) of platform/formats.h. Returns the index of
// the first value that has no code (a NaN in e2m1, or one too large there that must not saturate),
// or -1.
[[nodiscard]] int64_t encode_values(NumericFormat format, std::span<const float> values,
                                    Overflow overflow, double limit, std::span<uint8_t> codes,
                                    Target target = best_vector_target());

// e2m1 codes, two a byte: element 2i in the low nibble of byte i. packed has half as many bytes
// (asserted).
void pack_e2m1(std::span<const uint8_t> codes, std::span<uint8_t> packed);
void unpack_e2m1(std::span<const uint8_t> packed, std::span<uint8_t> codes);

// C1.4: nearest even; subnormals stay; a NaN becomes 0x7FC0 (C2.7).
void bf16_from_fp32(std::span<const float> values, std::span<uint16_t> narrow,
                    Target target = best_vector_target());
// Exact, NaN payloads included.
void fp32_from_bf16(std::span<const uint16_t> values, std::span<float> wide,
                    Target target = best_vector_target());

}  // namespace deepinfer
