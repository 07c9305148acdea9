#include "sim/kernels/bench/codec_bench.h"

#include <cstring>
#include <memory>

#include "platform/errors.h"
#include "sim/kernels/codec.h"

namespace deepinfer {
namespace {

// Of a call: 128 Ki codes and at most 512 KiB of results, which a second-level cache holds.
constexpr int64_t kValues = 1 << 17;

// Numbers of both signs over a few binades.
std::vector<float> numbers() {
  std::vector<float> values(kValues);
  uint32_t state = 12345;
  for (float& value : values) {
    // Numerical Recipes' generator: no statistics are asked of it
    state = state * 1664525 + 1013904223;
    value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-30f;
  }
  return values;
}

// Codes of all values of a format, in turns, without NaN.
std::vector<uint8_t> codes_of(const FormatInfo& info) {
  std::vector<uint8_t> finite;
  for (uint32_t code = 0; code < 1u << info.bits; ++code) {
    const float value = decode(info.format, code);
    if (value == value) finite.push_back(static_cast<uint8_t>(code));
  }
  std::vector<uint8_t> codes(kValues);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = finite[i % finite.size()];
  return codes;
}

// Memory that is written: by the kernel, and by the copy.
struct Buffers {
  explicit Buffers(size_t bytes) : copied(bytes, 1), copy(bytes) {}
  std::vector<char> copied, copy;
};

// `kernel(target)` writes kValues results of `bytes_each`.
BenchPair with_copy(int64_t bytes_each, std::function<void(Target)> kernel) {
  const auto buffers = std::make_shared<Buffers>(static_cast<size_t>(bytes_each * kValues));
  return {std::move(kernel), [buffers](Target) {
            std::memcpy(buffers->copy.data(), buffers->copied.data(), buffers->copy.size());
            // The compiler may not drop the copy.
            asm volatile("" : : "r"(buffers->copy.data()) : "memory");
          }};
}

KernelBenchCase codec_case(const std::string& kernel, const std::string& what) {
  KernelBenchCase bench;
  bench.kernel = kernel;
  bench.header = "sim/kernels/codec.h";
  bench.shape = std::to_string(kValues) + " values, " + what;
  bench.peer = "memcpy of the bytes written";
  bench.work = 1e-9 * static_cast<double>(kValues);
  bench.unit = "Gvalue/s";
  return bench;
}

template <class Value>
KernelBenchCase decoder(const FormatInfo& info, const std::string& to) {
  KernelBenchCase bench = codec_case("decode_codes", std::string(info.name) + " to " + to);
  bench.prepare = [&info] {
    const auto codes = std::make_shared<std::vector<uint8_t>>(codes_of(info));
    const auto values = std::make_shared<std::vector<Value>>(kValues);
    return with_copy(sizeof(Value), [&info, codes, values](Target target) {
      decode_codes(info.format, *codes, std::span<Value>(*values), target);
    });
  };
  return bench;
}

KernelBenchCase encoder(const FormatInfo& info) {
  KernelBenchCase bench = codec_case("encode_values", "fp32 to " + std::string(info.name));
  bench.prepare = [&info] {
    const auto values = std::make_shared<std::vector<float>>(numbers());
    const auto codes = std::make_shared<std::vector<uint8_t>>(kValues);
    return with_copy(1, [&info, values, codes](Target target) {
      const int64_t bad =
          encode_values(info.format, *values, Overflow::kSaturate, 0, *codes, target);
      DEEPINFER_ASSERT(bad == -1, "value " << bad);
    });
  };
  return bench;
}

}  // namespace

std::vector<KernelBenchCase> codec_bench_cases() {
  std::vector<KernelBenchCase> cases;
  for (const FormatInfo& info : all_formats()) {
    if (info.format == NumericFormat::kBF16) continue;
    cases.push_back(decoder<uint16_t>(info, "bf16"));
    cases.push_back(decoder<float>(info, "fp32"));
  }
  for (const FormatInfo& info : all_formats()) {
    if (info.format != NumericFormat::kBF16) cases.push_back(encoder(info));
  }
  KernelBenchCase narrow = codec_case("bf16_from_fp32", "fp32 to bf16");
  narrow.prepare = [] {
    const auto wide = std::make_shared<std::vector<float>>(numbers());
    const auto rounded = std::make_shared<std::vector<uint16_t>>(kValues);
    return with_copy(2,
                     [wide, rounded](Target target) { bf16_from_fp32(*wide, *rounded, target); });
  };
  cases.push_back(narrow);
  KernelBenchCase widen = codec_case("fp32_from_bf16", "bf16 to fp32");
  widen.prepare = [] {
    const auto rounded = std::make_shared<std::vector<uint16_t>>(kValues);
    bf16_from_fp32(numbers(), *rounded);
    const auto wide = std::make_shared<std::vector<float>>(kValues);
    return with_copy(4,
                     [rounded, wide](Target target) { fp32_from_bf16(*rounded, *wide, target); });
  };
  cases.push_back(widen);
  return cases;
}

}  // namespace deepinfer
