#include "golden/conformance/case_values.h"

#include <bit>
#include <limits>
#include <sstream>

#include "platform/errors.h"

namespace deepinfer::conformance {

using at::Tensor;

namespace {

int64_t count_of(at::IntArrayRef shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

// Random sign and mantissa with a biased exponent of 0 .. 254.
float with_exponent(RandomStream& random, int64_t biased) {
  const uint32_t bits = random.word();
  return std::bit_cast<float>((bits & 0x807FFFFF) | static_cast<uint32_t>(biased) << 23);
}

float draw(RandomStream& random, Values values) {
  const float sign = (random.word() & 1) != 0 ? -1.0f : 1.0f;
  switch (values) {
    case Values::kOrdinary:
      return random.uniform();
    case Values::kSpread:
      return with_exponent(random, 127 - 10 + random.below(21));
    case Values::kTiny:
      switch (random.below(4)) {
        case 0:
          return with_exponent(random, 0);
        case 1:
          return with_exponent(random, random.below(4));
        default:
          return with_exponent(random, 127 - 63 - 2 + random.below(4));
      }
    case Values::kExtreme:
      switch (random.below(8)) {
        case 0:
          return sign * std::numeric_limits<float>::max();
        case 1:
          return sign * 0.0f;
        default:
          return with_exponent(random, random.below(255));
      }
    case Values::kZeros:
      return random.one_in(8) ? random.uniform() : sign * 0.0f;
    case Values::kIntegers:
      return sign * static_cast<float>(random.below(4));
    case Values::kSpecial:
      if (!random.one_in(24)) return random.uniform();
      return random.one_in(3) ? std::numeric_limits<float>::quiet_NaN()
                              : sign * std::numeric_limits<float>::infinity();
  }
  DEEPINFER_ASSERT(false, "values " << static_cast<int>(values));
}

}  // namespace

std::string_view values_name(Values values) {
  switch (values) {
    case Values::kOrdinary:
      return "ordinary";
    case Values::kSpread:
      return "spread";
    case Values::kTiny:
      return "tiny";
    case Values::kExtreme:
      return "extreme";
    case Values::kZeros:
      return "zeros";
    case Values::kIntegers:
      return "integers";
    case Values::kSpecial:
      return "special";
  }
  DEEPINFER_ASSERT(false, "values " << static_cast<int>(values));
}

Tensor random_tensor(RandomStream& random, at::IntArrayRef shape, at::ScalarType dtype,
                     Values values) {
  const int64_t count = count_of(shape);
  if (dtype == at::kFloat) {
    Tensor made = at::empty(shape, at::kFloat);
    auto* data = made.data_ptr<float>();
    for (int64_t i = 0; i < count; ++i) data[i] = draw(random, values);
    return made;
  }
  DEEPINFER_ASSERT(dtype == at::kBFloat16, "dtype " << dtype);
  Tensor made = at::empty(shape, at::kBFloat16);
  auto* data = static_cast<uint16_t*>(made.data_ptr());
  for (int64_t i = 0; i < count; ++i) {
    data[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(draw(random, values)) >> 16);
  }
  return made;
}

Tensor random_integers(RandomStream& random, at::IntArrayRef shape, int64_t bound,
                       at::ScalarType dtype) {
  Tensor made = at::empty(shape, at::kLong);
  auto* data = made.data_ptr<int64_t>();
  for (int64_t i = 0; i < made.numel(); ++i) data[i] = random.below(bound);
  return made.to(dtype);
}

Tensor random_e4m3(RandomStream& random, at::IntArrayRef shape, bool special) {
  Tensor made = at::empty(shape, at::kByte);
  auto* data = made.data_ptr<uint8_t>();
  for (int64_t i = 0; i < made.numel(); ++i) {
    data[i] = static_cast<uint8_t>(random.word());
    // Codes 0x7F and 0xFF are NaN.
    if ((data[i] & 0x7F) == 0x7F && !(special && random.one_in(4))) data[i] ^= 0x18;
  }
  return made;
}

Tensor random_scales(RandomStream& random, at::IntArrayRef shape, Values values) {
  Tensor made = at::empty(shape, at::kByte);
  auto* data = made.data_ptr<uint8_t>();
  for (int64_t i = 0; i < made.numel(); ++i) {
    int64_t code = 127 - 8 + random.below(17);
    if (values == Values::kTiny)
      code = random.below(4) == 0 ? random.below(8) : 60 + random.below(8);
    if (values == Values::kExtreme) code = random.below(255);
    if (values == Values::kSpecial && random.one_in(8)) code = 255;
    data[i] = static_cast<uint8_t>(code);
  }
  return made;
}

std::string dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "fp32";
    case at::kBFloat16:
      return "bf16";
    case at::kDouble:
      return "fp64";
    case at::kByte:
      return "uint8";
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    case at::kBool:
      return "bool";
    default:
      return at::toString(dtype);
  }
}

std::string shape_text(at::IntArrayRef shape) {
  std::ostringstream text;
  text << shape;
  return text.str();
}

Tensor long_tensor(const std::vector<int64_t>& values) {
  Tensor made = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), made.data_ptr<int64_t>());
  return made;
}

Tensor int_tensor(const std::vector<int64_t>& values, at::IntArrayRef shape) {
  return long_tensor(values).to(at::kInt).view(shape);
}

Tensor float_tensor(const std::vector<float>& values, at::IntArrayRef shape) {
  Tensor made = at::empty({static_cast<int64_t>(values.size())}, at::kFloat);
  std::copy(values.begin(), values.end(), made.data_ptr<float>());
  return made.view(shape);
}

Tensor strided_copy(const Tensor& x) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.push_back(2);
  Tensor storage = at::zeros(shape, x.options());
  storage.select(-1, 0).copy_(x);
  return storage.select(-1, 0);
}

}  // namespace deepinfer::conformance
