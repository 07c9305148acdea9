// The number formats against the golden units: scalar rounding and block quantisers, bit for bit.
#include <bit>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "model/safetensors.h"
#include "platform/formats.h"

namespace deepinfer {
namespace {

const SafetensorsFile& units() {
  static const SafetensorsFile file(std::filesystem::path(DEEPINFER_SIM_SOURCE_DIR) /
                                    "golden/data/units/units.safetensors");
  return file;
}

std::vector<float> read(const std::string& name, size_t expected_size) {
  const TensorInfo* info = units().find(name);
  REQUIRE_MESSAGE(info != nullptr, name);
  REQUIRE(info->type == StoredType::kF32);
  REQUIRE(info->bytes() == expected_size * sizeof(float));
  std::vector<float> values(expected_size);
  std::memcpy(values.data(), units().view(*info).data(), info->bytes());
  return values;
}

void check_bits(const std::vector<float>& found, const std::vector<float>& golden) {
  REQUIRE(found.size() == golden.size());
  for (size_t i = 0; i < golden.size(); ++i) {
    if (std::bit_cast<uint32_t>(found[i]) != std::bit_cast<uint32_t>(golden[i])) {
      FAIL_CHECK("element " << i << ": " << found[i] << ", golden " << golden[i]);
    }
  }
}

void check_scalar(const std::string& name, size_t size,
                  const std::function<float(float)>& function) {
  CAPTURE(name);
  std::vector<float> values = read(name + ".in", size);
  for (float& value : values) value = function(value);
  check_bits(values, read(name + ".out", size));
}

std::function<float(float)> through(NumericFormat format, Overflow overflow) {
  return [=](float x) { return decode(format, encode(format, x, overflow)); };
}

TEST_CASE("scalar rounding is bit-equal to the golden units") {
  check_scalar("e4m3", 1122, through(NumericFormat::kE4M3FN, Overflow::kSaturate));
  check_scalar("e2m1", 440, through(NumericFormat::kE2M1, Overflow::kSaturate));
  check_scalar("bf16", 4000, through(NumericFormat::kBF16, Overflow::kInfinity));
  check_scalar("pow2_at_least", 140, power_of_two_at_least);
}

TEST_CASE("block quantisers are bit-equal to the golden units") {
  constexpr size_t kSize = 40 * 64;
  const std::vector<float> in = read("block.in", kSize);
  std::vector<uint8_t> codes(kSize);
  std::vector<uint8_t> scales(kSize / kScaleBlock);
  std::vector<uint8_t> scales16(kSize / kFp4ScaleBlock16);
  std::vector<float> out(kSize);

  quantize_aq32(in, 448, codes, scales);
  dequantize_aq32(codes, scales, out);
  check_bits(out, read("block.fp8_32", kSize));

  quantize_fq4_32(in, codes, scales);
  dequantize_fq4_32(codes, scales, out);
  check_bits(out, read("block.fp4_32_ue8m0", kSize));

  quantize_fq4_16(in, 448, codes, scales16);
  dequantize_fq4_16(codes, scales16, out);
  check_bits(out, read("block.fp4_16_e4m3", kSize));
}

}  // namespace
}  // namespace deepinfer
