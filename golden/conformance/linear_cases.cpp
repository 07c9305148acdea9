// Cases of the GEMMs: linear, fp8_linear, fp4_linear, grouped_linear, linear_partials.
//
// Bound of all: dot_bound() of the activations and the dequantised weight. A dequantised weight is
// code value * scale, exact in fp32 and bf16 (C2.4) but for what lies below 2^-126, which the bound
// counts as flushed, and what overflows, which is an infinity in both.
#include <cmath>

#include "golden/conformance/bounds.h"
#include "golden/conformance/case_values.h"
#include "golden/conformance/op_case.h"
#include "platform/formats.h"
#include "platform/ops.h"
#include "platform/shard_map.h"

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

// fp32 values of all codes, by the exact decoder of platform/formats.h.
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
    one.at_edges = at_edges(values);
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
    one.at_edges = at_edges(values);
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
    one.at_edges = at_edges(values);
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

// Where the positions of a linear_partials case lie.
struct Layout {
  int64_t first_position;
  std::vector<int64_t> bounds;
  int64_t first_column = 0;
  int64_t columns_after = 0;  // of the weight, past x's
};

// The bound of linear_partials: a subtree's columns in the order of its leaves' dot products, no
// deeper than all of them, and six sums more (C2.5). Each leaf's dot product and sum may flush its
// own last results.
Tensor partials_error(const Tensor& x, const Tensor& weight, const Layout& layout, SumOrder order) {
  const int64_t positions = static_cast<int64_t>(layout.bounds.size()) - 1;
  const Tensor columns = weight.slice(1, layout.first_column, layout.first_column + x.size(1));
  Tensors errors = {at::zeros({0, x.size(0), weight.size(0)}, at::kDouble)};
  for (const Subtree& subtree :
       maximal_subtrees({layout.first_position, layout.first_position + positions})) {
    const auto place = static_cast<size_t>(subtree.begin - layout.first_position);
    const int64_t left = layout.bounds[place],
                  right = layout.bounds[place + static_cast<size_t>(subtree.count)];
    const DotBound bound = dot_bound(x.slice(1, left, right), columns.slice(1, left, right), order);
    const double leaves = static_cast<double>(subtree.count);
    const Tensor more = bound.magnitude * (gamma(std::log2(kCanonicalLeaves)) * kSecondOrder) +
                        leaves * (dot_flushes(0) + 1) * kSmallest;
    // Beside an infinity the magnitude is none, and the error says what holds.
    const Tensor error = bound.error + more.masked_fill(more.isfinite().logical_not(), 0);
    errors.push_back((left == right ? at::zeros_like(error) : error).unsqueeze(0));
  }
  return at::cat(errors, 0);
}

void add_linear_partials(std::vector<OpCase>& cases) {
  const auto add = [&](at::ScalarType x_type, Weights form, at::ScalarType w_type, int64_t t,
                       int64_t n, const Layout& layout, Values values, bool strided) {
    const int64_t k = layout.bounds.back();
    const int64_t whole = layout.first_column + k + layout.columns_after;
    OpCase one = product_case("linear_partials");
    one.at_edges = at_edges(values);
    const std::string form_name = form == Weights::kPlain ? dtype_name(w_type)
                                  : form == Weights::kFp8 ? "e4m3fn"
                                                          : "e2m1";
    one.name =
        product_name(x_type, form_name, at::kFloat,
                     shape_text({t, k}) + " x " + shape_text({n, whole}) + " from column " +
                         std::to_string(layout.first_column) + ", positions from " +
                         std::to_string(layout.first_position) + " at " + shape_text(layout.bounds),
                     values) +
        (strided ? " strided" : "");
    one.inputs = [=](RandomStream& random) -> Tensors {
      // As for the whole products: an infinity meets no number that may be flushed.
      const bool special = values == Values::kSpecial;
      const Tensor x = random_tensor(
          random, {t, k}, x_type, special && form != Weights::kPlain ? Values::kOrdinary : values);
      Tensors in = {strided ? strided_copy(x) : x};
      if (form == Weights::kPlain) {
        in.push_back(
            random_tensor(random, {n, whole}, w_type, special ? Values::kOrdinary : values));
        in.emplace_back();
      } else if (form == Weights::kFp8) {
        in.push_back(random_e4m3(random, {n, whole}, special));
        in.push_back(random_scales(random, {ceil_div(n, 32), ceil_div(whole, 32)}, values));
      } else {
        in.push_back(random_integers(random, {n, whole / 2}, 256, at::kByte));
        in.push_back(random_scales(random, {n, ceil_div(whole, 32)}, values));
      }
      return in;
    };
    one.run = [=](const Tensors& in, bool wide) -> Tensors {
      const ops::OptionalTensor scales =
          in[2].defined() ? ops::OptionalTensor(in[2]) : c10::nullopt;
      return {ops::linear_partials(wide ? in[0].to(at::kDouble) : in[0], in[1], scales,
                                   layout.first_column, layout.first_position, layout.bounds)};
    };
    one.errors = [=](const Tensors& in, const Tensors&, SumOrder order) -> Tensors {
      const Tensor weight = form == Weights::kPlain ? in[1]
                            : form == Weights::kFp8 ? fp8_weight(in[1], in[2])
                                                    : fp4_weight(in[1], in[2]);
      return {partials_error(in[0], weight, layout, order)};
    };
    cases.push_back(one);
  };
  std::vector<int64_t> even = {0}, last_quarter(49, 0);
  for (int64_t i = 1; i <= 64; ++i) even.push_back(32 * i);
  for (int64_t i = 1; i <= 16; ++i) last_quarter.push_back(32 * i);
  const std::vector<Layout> layouts = {
      {.first_position = 0, .bounds = even},
      {.first_position = 0, .bounds = last_quarter},  // one subtree, three quarters absent
      {.first_position = 5,
       .bounds = {0, 32, 32, 64, 96, 160, 160, 192},
       .first_column = 64,
       .columns_after = 32},
      {.first_position = 42, .bounds = {0, 0, 0, 32, 64, 64}, .first_column = 32},
      {.first_position = 63, .bounds = {0, 96}, .columns_after = 64},
      {.first_position = 3, .bounds = {0, 64, 128, 134}, .first_column = 32},
      {.first_position = 30, .bounds = {0, 0, 0, 0, 0, 0}, .columns_after = 32},  // K = 0
      {.first_position = 64, .bounds = {0}},                                      // no positions
  };
  size_t turn = 0;
  for (const at::ScalarType x_type : kTypes) {
    for (const Weights form : {Weights::kPlain, Weights::kFp8, Weights::kFp4}) {
      for (const Values values : kAllValues) {
        for (int64_t i = 0; i < 2; ++i) {
          constexpr int64_t kTokens[] = {3, 1, 17, 0, 2};
          constexpr int64_t kOutputs[] = {33, 5, 64, 1, 32, 17, 0};
          add(x_type, form, kTypes[turn % 3 == 0 ? 0 : 1], kTokens[turn % 5], kOutputs[turn % 7],
              layouts[turn % layouts.size()], values, turn % 9 == 8);
          ++turn;
        }
      }
    }
  }
  for (const Layout& layout : layouts) {
    add(at::kBFloat16, Weights::kFp8, at::kBFloat16, 4, 40, layout, Values::kOrdinary, false);
    add(at::kFloat, Weights::kPlain, at::kFloat, 5, 9, layout, Values::kSpread, true);
  }

  // One row of so few codes that both forms have one scale.
  const Layout one_block = {.first_position = 9, .bounds = {0, 32}};
  const Layout half_a_block = {.first_position = 9, .bounds = {0, 16}};
  add(at::kFloat, Weights::kFp4, at::kFloat, 2, 1, one_block, Values::kOrdinary, false);
  add(at::kFloat, Weights::kFp8, at::kFloat, 2, 1, half_a_block, Values::kOrdinary, false);

  const auto refuse = [&](const char* name, int64_t k, int64_t columns, int64_t first_column,
                          int64_t first_position, const std::vector<int64_t>& bounds,
                          const char* text) {
    OpCase wrong = product_case("linear_partials");
    wrong.name = name;
    wrong.inputs = [=](RandomStream& random) -> Tensors {
      return {random_tensor(random, {2, k}, at::kFloat),
              random_tensor(random, {3, columns}, at::kFloat)};
    };
    wrong.run = [=](const Tensors& in, bool) -> Tensors {
      return {
          ops::linear_partials(in[0], in[1], c10::nullopt, first_column, first_position, bounds)};
    };
    wrong.throws = {{.text = text}};
    cases.push_back(wrong);
  };
  refuse("first_column inside a block", 32, 96, 16, 0, {0, 32},
         "first_column must be a multiple of 32");
  refuse("a position inside a block", 96, 96, 0, 0, {0, 40, 96}, "starts at column 40");
  refuse("bounds past x", 64, 96, 0, 0, {0, 32, 96}, "bounds must ascend from 0 to 64");
  refuse("bounds descend", 64, 96, 0, 0, {0, 64, 32, 64}, "bounds must ascend from 0 to 64");
  refuse("no bounds", 0, 96, 0, 0, {}, "bounds must ascend from 0 to 0");
  refuse("a position past the last", 64, 64, 0, 63, {0, 32, 64}, "must lie in 0 .. 63");
  refuse("columns past the weight's", 64, 96, 64, 0, {0, 64}, "of a weight with 96 columns");
  OpCase scales = product_case("linear_partials");
  scales.name = "scales of neither form";
  scales.inputs = [](RandomStream& random) -> Tensors {
    return {random_tensor(random, {2, 64}, at::kFloat), random_e4m3(random, {40, 64}),
            random_scales(random, {2, 3}, Values::kOrdinary)};
  };
  scales.run = [](const Tensors& in, bool) -> Tensors {
    return {ops::linear_partials(in[0], in[1], in[2], 0, 0, {0, 64})};
  };
  scales.throws = {{.text = "must be [2, 2] (fp8) or [40, 4] (fp4)"}};
  cases.push_back(scales);
}

}  // namespace

namespace internal {
void add_linear_cases(std::vector<OpCase>& cases) {
  add_linear(cases);
  add_fp8_linear(cases);
  add_fp4_linear(cases);
  add_grouped_linear(cases);
  add_linear_partials(cases);
}
}  // namespace internal

}  // namespace deepinfer::conformance
