// Runs the coders of the narrow formats on a target.
#include "sim/kernels/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/kernels/codec.cpp"
#include <hwy/foreach_target.h>

#include "sim/kernels/codec-inl.h"

#if HWY_ONCE
#include <limits>

#include "platform/errors.h"
#include "sim/kernels/codec.h"
#include "sim/kernels/float_scope.h"

namespace deepinfer {
namespace {

const CodecKernels& codec_kernels(Target target) {
  DEEPINFER_SIM_SELECT_TARGET(target, kCodecKernels);
  return scalar_codec_kernels();
}

CodecFormat codec_format(NumericFormat format) {
  const FormatInfo& info = format_info(format);
  DEEPINFER_ASSERT(info.bits <= 8, info.name << " has no byte codes");
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  return {.mantissa_bits = info.mantissa_bits,
          .bias = info.bias,
          .value_bits = info.exponent_bits + info.mantissa_bits,
          .max_code = static_cast<int32_t>(
              encode(format, static_cast<float>(info.max_finite), Overflow::kSaturate)),
          .nan_code =
              info.has_nan ? static_cast<int32_t>(encode(format, kNan, Overflow::kSaturate)) : -1,
          .has_infinity = info.has_infinity};
}

template <typename A, typename B>
void check_lengths(const char* name, std::span<A> a, std::span<B> b) {
  DEEPINFER_ASSERT(a.size() == b.size(),
                   name << ": " << a.size() << " and " << b.size() << " elements");
}

}  // namespace

void decode_codes(NumericFormat format, std::span<const uint8_t> codes, std::span<float> values,
                  Target target) {
  check_lengths("decode_codes", codes, values);
  const CodecKernels& kernels = codec_kernels(target);
  const int64_t count = static_cast<int64_t>(codes.size());
  const FloatScope scope;
  if (format == NumericFormat::kE8M0)
    return kernels.decode_e8m0(codes.data(), count, values.data());
  kernels.decode_fp32(codec_format(format), codes.data(), count, values.data());
}

void decode_codes(NumericFormat format, std::span<const uint8_t> codes, std::span<uint16_t> values,
                  Target target) {
  check_lengths("decode_codes", codes, values);
  const CodecKernels& kernels = codec_kernels(target);
  const int64_t count = static_cast<int64_t>(codes.size());
  const FloatScope scope;
  if (format == NumericFormat::kE8M0) {
    return kernels.decode_e8m0_bf16(codes.data(), count, values.data());
  }
  const auto decode =
      format == NumericFormat::kE4M3FN ? kernels.decode_e4m3fn_bf16 : kernels.decode_bf16;
  decode(codec_format(format), codes.data(), count, values.data());
}

int64_t encode_values(NumericFormat format, std::span<const float> values, Overflow overflow,
                      double limit, std::span<uint8_t> codes, Target target) {
  check_lengths("encode_values", values, codes);
  const CodecKernels& kernels = codec_kernels(target);
  const int64_t count = static_cast<int64_t>(codes.size());
  const CodecFormat coder = codec_format(format);
  int32_t largest = coder.max_code;
  if (limit > 0) {
    overflow = Overflow::kSaturate;
    largest = static_cast<int32_t>(encode(format, static_cast<float>(limit), overflow, limit));
  }
  const int32_t overflow_code = overflow == Overflow::kSaturate ? largest
                                : coder.has_infinity            ? coder.max_code + 1
                                                                : coder.nan_code;
  const FloatScope scope;
  if (format == NumericFormat::kE8M0) {
    kernels.encode_e8m0(values.data(), count, largest, overflow_code, codes.data());
    return -1;
  }
  return kernels.encode(coder, values.data(), count, largest, overflow_code, codes.data());
}

void pack_e2m1(std::span<const uint8_t> codes, std::span<uint8_t> packed) {
  DEEPINFER_ASSERT(codes.size() == 2 * packed.size(),
                   codes.size() << " codes, " << packed.size() << " bytes");
  for (size_t i = 0; i < packed.size(); ++i) {
    packed[i] = static_cast<uint8_t>((codes[2 * i] & 15) | (codes[2 * i + 1] << 4));
  }
}

void unpack_e2m1(std::span<const uint8_t> packed, std::span<uint8_t> codes) {
  DEEPINFER_ASSERT(codes.size() == 2 * packed.size(),
                   codes.size() << " codes, " << packed.size() << " bytes");
  for (size_t i = 0; i < packed.size(); ++i) {
    codes[2 * i] = packed[i] & 15;
    codes[2 * i + 1] = packed[i] >> 4;
  }
}

void bf16_from_fp32(std::span<const float> values, std::span<uint16_t> narrow, Target target) {
  check_lengths("bf16_from_fp32", values, narrow);
  codec_kernels(target).to_bf16(values.data(), static_cast<int64_t>(values.size()), narrow.data());
}

void fp32_from_bf16(std::span<const uint16_t> values, std::span<float> wide, Target target) {
  check_lengths("fp32_from_bf16", values, wide);
  codec_kernels(target).to_fp32(values.data(), static_cast<int64_t>(values.size()), wide.data());
}

}  // namespace deepinfer
#endif  // HWY_ONCE
