// Cases of the GEMMs: linear, fp8_linear, fp4_linear, grouped_linear, head_group_linear.
//
// Bound of all: dot_bound() of the activations and the dequantised weight. A dequantised weight is
// code value * scale, exact in fp32 and bf16 (C2.4) but for what lies below 2^-126, which the bound
// counts as flushed, and what overflows, which is an infinity in both.
#include "golden/conformance/bounds.h"
#include "golden/conformance/case_values.h"
#include "golden/conformance/op_case.h"
#include "platform/formats.h"
#include "platform/ops.h"

namespace deepinfer::conformance {

namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};
constexpr Values kAllValues[] = {Values::kOrdinary, Values::kSpread, Values::kTiny,
                                 Values::kExtreme,  Values::kZeros,  Values::kSpecial};

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Shape {
  int64_t t, n, k;
};
// Empty, single, odd, around the blocks of 16 and 32 and the tiles of 16 rows, long.
constexpr Shape kShapes[] = {{0, 5, 32},   {1, 1, 1},    {1, 3, 0},     {2, 0, 7},     {3, 5, 31},
                             {1, 17, 33},  {5, 16, 64},  {16, 32, 96},  {17, 33, 100}, {2, 48, 257},
                             {7, 64, 512}, {33, 31, 40}, {1, 129, 1024}};

at::ScalarType result_type(at::ScalarType out, bool wide) { return wide ? at::kDouble : out; }

std::string product_name(at::ScalarType x, std::string_view weight, at::ScalarType out,
                         const std::string& shapes, Values values) {
  return dtype_name(x) + " x " + std::string(weight) + " -> " + dtype_name(out) + " " + shapes +
         " " + std::string(values_name(values));
}

OpCase product_case(const char* op) {
  OpCase one;
  one.op = op;
  one.outputs = {"y"};
  one.canonical_nan = true;
  return one;
}

// The values of a weight by the op itself: the reference's identity product. rows [K, K] of an
// identity would cost K^2; formats' own decoder gives the same table.
Tensor decode_table(NumericFormat format, int64_t count) {
  std::vector<float> values;
  for (int64_t code = 0; code < count; ++code) {
    values.push_back(decode(format, static_cast<uint32_t>(code)));
  }
  return float_tensor(values, {count});
}
Tensor decoded(NumericFormat format, int64_t count, const Tensor& codes) {
  return decode_table(format, count)
      .index_select(0, codes.reshape({-1}).to(at::kInt))
      .view(codes.sizes());
}

// [N, K] fp32, overflow included.
Tensor fp8_weight(const Tensor& codes, const Tensor& scales) {
  const Tensor by_element = decoded(NumericFormat::kE8M0, 256, scales)
                                .repeat_interleave(kScaleBlock, 0)
                                .slice(0, 0, codes.size(0))
                                .repeat_interleave(kScaleBlock, 1)
                                .slice(1, 0, codes.size(1));
  return decoded(NumericFormat::kE4M3FN, 256, codes) * by_element;
}

Tensor fp4_weight(const Tensor& codes, const Tensor& scales) {
  const Tensor pairs = at::stack({codes.bitwise_and(0x0F), codes.bitwise_right_shift(4)}, -1);
  const Tensor values =
      decoded(NumericFormat::kE2M1, 16, pairs).view({codes.size(0), codes.size(1) * 2});
  const Tensor by_element = decoded(NumericFormat::kE8M0, 256, scales)
                                .repeat_interleave(kScaleBlock, 1)
                                .slice(1, 0, values.size(1));
  return values * by_element;
}

void add_linear(std::vector<OpCase>& cases) {
  const auto add = [&](at::ScalarType x_type, at::ScalarType w_type, at::ScalarType out, Shape s,
                       Values values, bool strided) {
    OpCase one = product_case("linear");
    one.name = product_name(x_type, dtype_name(w_type), out,
                            shape_text({s.t, s.k}) + " x " + shape_text({s.n, s.k}), values) +
               (strided ? " strided" : "");
    one.inputs = [=](RandomStream& random) -> Tensors {
      const Tensor x = random_tensor(random, {s.t, s.k}, x_type, values);
      // An infinity times a number that may be flushed is not defined: specials in x only.
      const Tensor w = random_tensor(random, {s.n, s.k}, w_type,
                                     values == Values::kSpecial ? Values::kOrdinary : values);
      return {strided ? strided_copy(x) : x, strided ? strided_copy(w) : w};
    };
    one.run = [=](const Tensors& in, bool wide) -> Tensors {
      return {ops::linear(in[0], in[1], result_type(out, wide))};
    };
    one.errors = [](const Tensors& in, const Tensors&, SumOrder order) -> Tensors {
      return {dot_bound(in[0], in[1], order).error};
    };
    cases.push_back(one);
  };
  size_t turn = 0;
  for (const at::ScalarType x_type : kTypes) {
    for (const at::ScalarType w_type : kTypes) {
      for (const at::ScalarType out : kTypes) {
        for (const Values values : kAllValues) {
          // Each combination of types and values sees two shapes, all shapes come round.
          for (int64_t i = 0; i < 2; ++i) {
            add(x_type, w_type, out, kShapes[turn % std::size(kShapes)], values, turn % 7 == 6);
            ++turn;
          }
        }
      }
    }
  }
  for (const Shape& shape : kShapes) {
    add(at::kBFloat16, at::kBFloat16, at::kBFloat16, shape, Values::kOrdinary, false);
    add(at::kFloat, at::kFloat, at::kFloat, shape, Values::kSpread, false);
  }

  OpCase wrong = product_case("linear");
  wrong.name = "K differs";
  wrong.inputs = [](RandomStream& random) -> Tensors {
    return {random_tensor(random, {2, 33}, at::kFloat), random_tensor(random, {3, 32}, at::kFloat)};
  };
  wrong.run = [](const Tensors& in, bool) -> Tensors {
    return {ops::linear(in[0], in[1], at::kFloat)};
  };
  wrong.throws = {{.text = "weight must be [N, 33]"}};
  cases.push_back(wrong);
}

void add_fp8_linear(std::vector<OpCase>& cases) {
  const auto add = [&](at::ScalarType x_type, at::ScalarType out, Shape s, Values values) {
    OpCase one = product_case("fp8_linear");
    one.name = product_name(x_type, "e4m3fn", out,
                            shape_text({s.t, s.k}) + " x " + shape_text({s.n, s.k}), values);
    one.inputs = [=](RandomStream& random) -> Tensors {
      const bool special = values == Values::kSpecial;
      return {random_tensor(random, {s.t, s.k}, x_type, special ? Values::kOrdinary : values),
              random_e4m3(random, {s.n, s.k}, special),
              random_scales(random, {ceil_div(s.n, 32), ceil_div(s.k, 32)}, values)};
    };
    one.run = [=](const Tensors& in, bool wide) -> Tensors {
      return {ops::fp8_linear(in[0], in[1], in[2], result_type(out, wide))};
    };
    one.errors = [](const Tensors& in, const Tensors&, SumOrder order) -> Tensors {
      return {dot_bound(in[0], fp8_weight(in[1], in[2]), order).error};
    };
    cases.push_back(one);
  };
  size_t turn = 0;
  for (const at::ScalarType x_type : kTypes) {
    for (const at::ScalarType out : kTypes) {
      for (const Values values : kAllValues) {
        for (int64_t i = 0; i < 3; ++i)
          add(x_type, out, kShapes[turn++ % std::size(kShapes)], values);
      }
    }
  }
  OpCase wrong = product_case("fp8_linear");
  wrong.name = "one scale column too few";
  wrong.inputs = [](RandomStream& random) -> Tensors {
    return {random_tensor(random, {2, 33}, at::kFloat), random_e4m3(random, {3, 33}),
            random_scales(random, {1, 1}, Values::kOrdinary)};
  };
  wrong.run = [](const Tensors& in, bool) -> Tensors {
    return {ops::fp8_linear(in[0], in[1], in[2], at::kFloat)};
  };
  wrong.throws = {{.text = "scales must be uint8 [1, 2]"}};
  cases.push_back(wrong);
}

void add_fp4_linear(std::vector<OpCase>& cases) {
  const auto add = [&](at::ScalarType x_type, at::ScalarType out, Shape s, Values values) {
    s.k += s.k % 2;  // two codes a byte
    OpCase one = product_case("fp4_linear");
    one.name = product_name(x_type, "e2m1", out,
                            shape_text({s.t, s.k}) + " x " + shape_text({s.n, s.k}), values);
    one.inputs = [=](RandomStream& random) -> Tensors {
      return {random_tensor(random, {s.t, s.k}, x_type,
                            values == Values::kSpecial ? Values::kOrdinary : values),
              random_integers(random, {s.n, s.k / 2}, 256, at::kByte),
              random_scales(random, {s.n, ceil_div(s.k, 32)}, values)};
    };
    one.run = [=](const Tensors& in, bool wide) -> Tensors {
      return {ops::fp4_linear(in[0], in[1], in[2], result_type(out, wide))};
    };
    one.errors = [](const Tensors& in, const Tensors&, SumOrder order) -> Tensors {
      return {dot_bound(in[0], fp4_weight(in[1], in[2]), order).error};
    };
    cases.push_back(one);
  };
  size_t turn = 5;
  for (const at::ScalarType x_type : kTypes) {
    for (const at::ScalarType out : kTypes) {
      for (const Values values : kAllValues) {
        for (int64_t i = 0; i < 3; ++i)
          add(x_type, out, kShapes[turn++ % std::size(kShapes)], values);
      }
    }
  }
  OpCase wrong = product_case("fp4_linear");
  wrong.name = "one row of scales too many";
  wrong.inputs = [](RandomStream& random) -> Tensors {
    return {random_tensor(random, {2, 32}, at::kFloat),
            random_integers(random, {3, 16}, 256, at::kByte),
            random_scales(random, {4, 1}, Values::kOrdinary)};
  };
  wrong.run = [](const Tensors& in, bool) -> Tensors {
    return {ops::fp4_linear(in[0], in[1], in[2], at::kFloat)};
  };
  wrong.throws = {{.text = "scales must be uint8 [3, 1]"}};
  cases.push_back(wrong);
}

enum class Weights { kPlain, kFp8, kFp4 };

// inputs: x, offsets, then for each expert its weight, then for each its scales.
void add_grouped_linear(std::vector<OpCase>& cases) {
  const auto add = [&](at::ScalarType x_type, Weights form, at::ScalarType out,
                       const std::vector<int64_t>& offsets, int64_t n, int64_t k, Values values) {
    const auto groups = static_cast<int64_t>(offsets.size()) - 1;
    OpCase one = product_case("grouped_linear");
    const char* form_name = form == Weights::kPlain ? "bf16"
                            : form == Weights::kFp8 ? "e4m3fn"
                                                    : "e2m1";
    one.name = product_name(x_type, form_name, out,
                            shape_text({offsets.back(), k}) + " x " + std::to_string(groups) +
                                " x " + shape_text({n, k}) + " rows at " + shape_text(offsets),
                            values);
    one.host_inputs = {1};
    one.inputs = [=](RandomStream& random) -> Tensors {
      Tensors in = {random_tensor(random, {offsets.back(), k}, x_type, values),
                    long_tensor(offsets)};
      for (int64_t i = 0; i < groups; ++i) {
        in.push_back(form == Weights::kPlain ? random_tensor(random, {n, k}, at::kBFloat16, values)
                     : form == Weights::kFp8 ? random_e4m3(random, {n, k})
                                             : random_integers(random, {n, k / 2}, 256, at::kByte));
      }
      for (int64_t i = 0; i < groups && form != Weights::kPlain; ++i) {
        in.push_back(random_scales(
            random, {form == Weights::kFp8 ? ceil_div(n, 32) : n, ceil_div(k, 32)}, values));
      }
      return in;
    };
    const auto weights_of = [groups](const Tensors& in) {
      return Tensors(in.begin() + 2, in.begin() + 2 + groups);
    };
    const auto scales_of = [groups](const Tensors& in) {
      return Tensors(in.begin() + 2 + groups, in.end());
    };
    one.run = [=](const Tensors& in, bool wide) -> Tensors {
      return {
          ops::grouped_linear(in[0], in[1], weights_of(in), scales_of(in), result_type(out, wide))};
    };
    one.errors = [=](const Tensors& in, const Tensors& truth, SumOrder order) -> Tensors {
      Tensors errors = {at::zeros({0, truth[0].size(1)}, at::kDouble)};
      const Tensors weights = weights_of(in), scales = scales_of(in);
      for (size_t i = 0; i + 1 < offsets.size(); ++i) {
        const Tensor weight = form == Weights::kPlain ? weights[i]
                              : form == Weights::kFp8 ? fp8_weight(weights[i], scales[i])
                                                      : fp4_weight(weights[i], scales[i]);
        errors.push_back(
            dot_bound(in[0].slice(0, offsets[i], offsets[i + 1]), weight, order).error);
      }
      return {at::cat(errors, 0)};
    };
    cases.push_back(one);
  };
  const std::vector<std::vector<int64_t>> layouts = {
      {0, 3, 3, 4, 9}, {0, 0, 0}, {0, 17}, {0, 1, 2, 3, 4, 5, 6, 7, 8}, {0, 0, 33, 33, 40}};
  constexpr int64_t kWidths[][2] = {{5, 32}, {33, 64}, {64, 96}, {17, 160}};
  size_t turn = 0;
  for (const at::ScalarType x_type : kTypes) {
    for (const Weights form : {Weights::kPlain, Weights::kFp8, Weights::kFp4}) {
      for (const at::ScalarType out : kTypes) {
        for (const Values values :
             {Values::kOrdinary, Values::kSpread, Values::kTiny, Values::kExtreme}) {
          const int64_t* width = kWidths[turn % std::size(kWidths)];
          add(x_type, form, out, layouts[turn % layouts.size()], width[0], width[1], values);
          ++turn;
        }
      }
    }
  }
  OpCase wrong = product_case("grouped_linear");
  wrong.name = "offsets end before the last row";
  wrong.host_inputs = {1};
  wrong.inputs = [](RandomStream& random) -> Tensors {
    return {random_tensor(random, {4, 32}, at::kFloat), long_tensor({0, 1, 3}),
            random_tensor(random, {5, 32}, at::kFloat), random_tensor(random, {5, 32}, at::kFloat)};
  };
  wrong.run = [](const Tensors& in, bool) -> Tensors {
    return {ops::grouped_linear(in[0], in[1], Tensors{in[2], in[3]}, Tensors{}, at::kFloat)};
  };
  wrong.throws = {{.text = "offsets must ascend from 0 to 4"}};
  cases.push_back(wrong);
}

void add_head_group_linear(std::vector<OpCase>& cases) {
  const auto add = [&](at::ScalarType x_type, bool scaled, at::ScalarType out, int64_t t,
                       int64_t groups, int64_t n, int64_t k, Values values) {
    OpCase one = product_case("head_group_linear");
    one.name =
        product_name(x_type, scaled ? "e4m3fn" : "bf16", out,
                     shape_text({t, groups, k}) + " x " + shape_text({groups * n, k}), values);
    one.inputs = [=](RandomStream& random) -> Tensors {
      Tensors in = {random_tensor(random, {t, groups, k}, x_type, values)};
      if (scaled) {
        in.push_back(random_e4m3(random, {groups * n, k}));
        in.push_back(random_scales(random, {groups * n / 32, ceil_div(k, 32)}, values));
      } else {
        in.push_back(random_tensor(random, {groups * n, k}, at::kBFloat16, values));
        in.emplace_back();
      }
      return in;
    };
    one.run = [=](const Tensors& in, bool wide) -> Tensors {
      const ops::OptionalTensor scales =
          in[2].defined() ? ops::OptionalTensor(in[2]) : c10::nullopt;
      return {ops::head_group_linear(in[0], in[1], scales, result_type(out, wide))};
    };
    one.errors = [=](const Tensors& in, const Tensors&, SumOrder order) -> Tensors {
      const Tensor weight = (scaled ? fp8_weight(in[1], in[2]) : in[1]).view({groups, n, k});
      // [G, T, K] x [G, N, K]
      return {dot_bound(in[0].transpose(0, 1), weight, order).error.transpose(0, 1).contiguous()};
    };
    cases.push_back(one);
  };
  size_t turn = 0;
  for (const at::ScalarType x_type : kTypes) {
    for (const bool scaled : {false, true}) {
      for (const at::ScalarType out : kTypes) {
        for (const Values values :
             {Values::kOrdinary, Values::kSpread, Values::kTiny, Values::kExtreme}) {
          constexpr int64_t kTokens[] = {0, 1, 3, 17, 2};
          constexpr int64_t kDepths[] = {32, 33, 64, 100, 128, 7, 256};
          add(x_type, scaled, out, kTokens[turn % 5], 1 + static_cast<int64_t>(turn % 4),
              scaled ? 32 : 1 + static_cast<int64_t>(turn % 40), kDepths[turn % 7], values);
          ++turn;
        }
      }
    }
  }
  OpCase wrong = product_case("head_group_linear");
  wrong.name = "a group is not a whole number of scale tiles";
  wrong.inputs = [](RandomStream& random) -> Tensors {
    return {random_tensor(random, {2, 2, 32}, at::kFloat), random_e4m3(random, {32, 32}),
            random_scales(random, {1, 1}, Values::kOrdinary)};
  };
  wrong.run = [](const Tensors& in, bool) -> Tensors {
    return {ops::head_group_linear(in[0], in[1], in[2], at::kFloat)};
  };
  wrong.throws = {{.text = "multiple of the 32-row scale tile"}};
  cases.push_back(wrong);
}

}  // namespace

namespace internal {
void add_linear_cases(std::vector<OpCase>& cases) {
  add_linear(cases);
  add_fp8_linear(cases);
  add_fp4_linear(cases);
  add_grouped_linear(cases);
  add_head_group_linear(cases);
}
}  // namespace internal

}  // namespace deepinfer::conformance
