// Cases of the quantisers: exact, as reference and canonical kernels (C5) both are.
#include <cmath>
#include <limits>

#include "golden/conformance/case_values.h"
#include "golden/conformance/op_case.h"
#include "platform/ops.h"

namespace deepinfer::conformance {

namespace {

// Values that provoke a quantiser beside the usual ones.
enum class Blocks {
  kValues,  // by Values
  kTies,    // midpoints of neighbouring codes at the block's scale, and their fp32 neighbours
  kEdges,   // block maxima at the scale's own rounding boundaries, and their neighbours
};

struct Quantiser {
  const char* op;
  int64_t block;
  std::vector<double> fp8_max;  // empty: the op takes none
  std::vector<std::string> outputs;
  std::function<Tensors(const Tensor& x, double fp8_max)> run;
};

const std::vector<Quantiser>& quantisers() {
  static const std::vector<double> all_max = {448, 240, 224};
  static const std::vector<Quantiser> list = {
      {"quantize_aq32",
       32,
       all_max,
       {"codes", "scales"},
       [](const Tensor& x, double fp8_max) -> Tensors {
         const auto [codes, scales] = ops::quantize_aq32(x, fp8_max);
         return {codes, scales};
       }},
      {"fake_quantize_aq32",
       32,
       all_max,
       {"values"},
       [](const Tensor& x, double fp8_max) -> Tensors {
         return {ops::fake_quantize_aq32(x, fp8_max)};
       }},
      {"fake_quantize_fq4_32",
       32,
       {},
       {"values"},
       [](const Tensor& x, double) -> Tensors { return {ops::fake_quantize_fq4_32(x)}; }},
      {"fake_quantize_fq4_16",
       16,
       all_max,
       {"values"},
       [](const Tensor& x, double fp8_max) -> Tensors {
         return {ops::fake_quantize_fq4_16(x, fp8_max)};
       }},
  };
  return list;
}

float neighbour(float x, int64_t steps) {
  for (; steps > 0; --steps) x = std::nextafter(x, std::numeric_limits<float>::infinity());
  for (; steps < 0; ++steps) x = std::nextafter(x, 0.0f);
  return x;
}

// fp32 [rows, columns] of whole blocks.
Tensor provoking(RandomStream& random, int64_t rows, int64_t columns, int64_t block, Blocks blocks,
                 double largest) {
  Tensor x = at::empty({rows, columns}, at::kFloat);
  auto* data = x.data_ptr<float>();
  for (int64_t begin = 0; begin < x.numel(); begin += block) {
    const float scale = std::ldexp(1.0f, static_cast<int>(random.below(41)) - 20);
    for (int64_t i = 0; i < block; ++i) {
      // Both formats' midpoints are multiples of 2^-10 (e4m3's subnormal step is 2^-9) with few
      // bits.
      const float step = std::ldexp(1.0f, static_cast<int>(random.below(17)) - 10);
      float value = static_cast<float>(1 + random.below(31)) * step;
      if (blocks == Blocks::kEdges) value = random.uniform();
      value = neighbour(std::min(value, static_cast<float>(largest)), random.below(3) - 1);
      data[begin + i] = ((random.word() & 1) != 0 ? -1.0f : 1.0f) * value * scale;
    }
    // One element fixes the block's scale: the format's largest (ties), or a power of two or a
    // multiple of it where the scale's exponent steps.
    const float top = blocks == Blocks::kTies
                          ? static_cast<float>(largest)
                          : neighbour(std::ldexp(static_cast<float>(1 + random.below(16)), 3),
                                      random.below(5) - 2);
    data[begin + random.below(block)] = top * scale;
  }
  return x;
}

struct Rows {
  std::vector<int64_t> shape;  // the last in blocks
};

void add_quantiser(std::vector<OpCase>& cases, const Quantiser& quantiser) {
  const auto add = [&](at::ScalarType dtype, std::vector<int64_t> shape, Values values,
                       Blocks blocks, double fp8_max) {
    shape.back() *= quantiser.block;
    OpCase one;
    one.op = quantiser.op;
    one.outputs = quantiser.outputs;
    one.name =
        dtype_name(dtype) + " " + shape_text(shape) + " " +
        (blocks == Blocks::kTies    ? "ties"
         : blocks == Blocks::kEdges ? "edges"
                                    : std::string(values_name(values))) +
        (quantiser.fp8_max.empty() ? "" : " max " + std::to_string(static_cast<int>(fp8_max)));
    const int64_t block = quantiser.block;
    const double largest = block == 32 && !quantiser.fp8_max.empty() ? fp8_max : 6;
    one.inputs = [=](RandomStream& random) -> Tensors {
      if (blocks == Blocks::kValues) return {random_tensor(random, shape, dtype, values)};
      const int64_t columns = shape.back();
      int64_t rows = 1;
      for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
      return {provoking(random, rows, columns, block, blocks, largest).view(shape).to(dtype)};
    };
    one.run = [run = quantiser.run, fp8_max](const Tensors& in, bool) -> Tensors {
      return run(in[0], fp8_max);
    };
    cases.push_back(one);
  };
  std::vector<double> all_max = quantiser.fp8_max;
  if (all_max.empty()) all_max = {448};  // not looked at
  for (const double fp8_max : all_max) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      add(dtype, {3, 1}, Values::kOrdinary, Blocks::kValues, fp8_max);
      add(dtype, {2, 5, 3}, Values::kSpread, Blocks::kValues, fp8_max);
      add(dtype, {17, 7}, Values::kTiny, Blocks::kValues, fp8_max);
      add(dtype, {33, 4}, Values::kExtreme, Blocks::kValues, fp8_max);
      add(dtype, {5, 2}, Values::kZeros, Blocks::kValues, fp8_max);
      add(dtype, {64, 8}, Values::kOrdinary, Blocks::kTies, fp8_max);
      add(dtype, {64, 8}, Values::kOrdinary, Blocks::kEdges, fp8_max);
    }
  }
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{0, 2}, {3, 0}, {1}, {4, 0, 1}, {7, 16}}) {
    add(at::kFloat, shape, Values::kOrdinary, Blocks::kValues, all_max.front());
  }

  const auto add_throwing = [&](const std::string& name, const Tensor& x, const std::string& text,
                                bool by_reference) {
    OpCase one;
    one.op = quantiser.op;
    one.outputs = quantiser.outputs;
    one.name = name;
    one.inputs = [x](RandomStream&) -> Tensors { return {x}; };
    one.run = [run = quantiser.run](const Tensors& in, bool) -> Tensors { return run(in[0], 448); };
    one.throws = {{.text = text, .by_reference = by_reference}};
    cases.push_back(one);
  };
  Tensor x = at::ones({5, 64}, at::kFloat);
  // C5.4; platform/ops.h does not say it, and the reference does not look.
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    Tensor spoilt = x.clone();
    spoilt[3][40] = bad;
    add_throwing(std::isnan(bad) ? "NaN in row 3" : "infinity in row 3", spoilt,
                 "row 3 holds a NaN or an infinity", false);
    add_throwing(std::isnan(bad) ? "bf16 NaN in row 3" : "bf16 infinity in row 3",
                 spoilt.to(at::kBFloat16), "row 3 holds a NaN or an infinity", false);
  }
  add_throwing("half a block", at::ones({2, quantiser.block * 3 / 2}, at::kFloat),
               "the last axis must be a multiple of " + std::to_string(quantiser.block), true);
}

void add_dequantize(std::vector<OpCase>& cases) {
  const auto add = [&](const std::vector<int64_t>& shape, Values values) {
    OpCase one;
    one.op = "dequantize_aq32";
    one.outputs = {"values"};
    std::vector<int64_t> code_shape = shape;
    code_shape.back() *= 32;
    one.name = "codes " + shape_text(code_shape) + " " + std::string(values_name(values));
    one.inputs = [=](RandomStream& random) -> Tensors {
      return {random_e4m3(random, code_shape, values == Values::kSpecial),
              random_scales(random, shape, values)};
    };
    one.run = [](const Tensors& in, bool) -> Tensors {
      return {ops::dequantize_aq32(in[0], in[1])};
    };
    cases.push_back(one);
  };
  for (const Values values :
       {Values::kOrdinary, Values::kTiny, Values::kExtreme, Values::kSpecial}) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{0, 3}, {1, 1}, {5, 3}, {2, 3, 2}, {33, 8}, {3}}) {
      add(shape, values);
    }
  }
  OpCase every;
  every.op = "dequantize_aq32";
  every.outputs = {"values"};
  every.name = "every code with every scale";
  every.inputs = [](RandomStream&) -> Tensors {
    return {at::arange(256, at::kLong).to(at::kByte).expand({256, 256}).contiguous(),
            at::arange(256, at::kLong).to(at::kByte).unsqueeze(1).expand({256, 8}).contiguous()};
  };
  every.run = [](const Tensors& in, bool) -> Tensors {
    return {ops::dequantize_aq32(in[0], in[1])};
  };
  cases.push_back(every);
  OpCase wrong = every;
  wrong.name = "one scale too few";
  wrong.inputs = [](RandomStream& random) -> Tensors {
    return {random_e4m3(random, {2, 64}), random_scales(random, {2, 1}, Values::kOrdinary)};
  };
  wrong.throws = {{.text = "scales [..., K/32] must be uint8"}};
  cases.push_back(wrong);
}

}  // namespace

namespace internal {
void add_quantize_cases(std::vector<OpCase>& cases) {
  add_quantiser(cases, quantisers()[0]);
  add_dequantize(cases);
  for (size_t i = 1; i < quantisers().size(); ++i) add_quantiser(cases, quantisers()[i]);
}
}  // namespace internal

}  // namespace deepinfer::conformance
