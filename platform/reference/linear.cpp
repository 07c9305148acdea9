// Reference GEMMs: dequantise a piece of the weight, multiply in fp64, round once.
#include "platform/fault.h"
#include "platform/formats.h"
#include "platform/partials.h"
#include "platform/reference/reference.h"

namespace deepinfer::reference {

using at::Tensor;

namespace {

// A dequantised piece of a weight has at most this many elements (systems.md N5).
constexpr int64_t kPieceElements = int64_t{32} << 20;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

Tensor code_table(NumericFormat format, int64_t codes) {
  Tensor table = at::empty({codes}, at::kFloat);
  float* values = table.data_ptr<float>();
  for (int64_t code = 0; code < codes; ++code) {
    values[code] = decode(format, static_cast<uint32_t>(code));
  }
  return table;
}

// Multiplies x by the weight rows [begin, end) that `dequantize(begin, end)` returns as [rows, K],
// piece by piece. `row_step` keeps pieces on tile boundaries.
template <class Dequantize>
Tensor multiply_in_pieces(const Tensor& x, int64_t rows, int64_t row_step, at::ScalarType out_dtype,
                          const Dequantize& dequantize) {
  const int64_t columns = std::max<int64_t>(x.size(-1), 1);
  const int64_t piece = std::max(row_step, kPieceElements / columns / row_step * row_step);
  const Tensor wide = widen(x);
  std::vector<Tensor> results;
  for (int64_t begin = 0; begin < rows; begin += piece) {
    const int64_t end = std::min(rows, begin + piece);
    results.push_back(at::matmul(wide, widen(dequantize(begin, end)).t()));
  }
  if (results.empty()) return at::zeros({x.size(0), 0}, x.options().dtype(out_dtype));
  return (results.size() == 1 ? results[0] : at::cat(results, -1)).to(out_dtype);
}

// Each element times the scale of its 32x32 tile. codes [R, K], scales of the rows' tiles.
Tensor dequantize_tiles(const Tensor& codes, const Tensor& scales) {
  const int64_t rows = codes.size(0), columns = codes.size(1);
  const Tensor values = look_up(e4m3_table(codes.device()), codes);
  Tensor tile_scales = look_up(e8m0_table(codes.device()), scales);
  if (fault("scale_tile_transposed") && tile_scales.numel() > 1) {
    tile_scales = tile_scales.t().contiguous().view(tile_scales.sizes());
  }
  const Tensor by_element = tile_scales.repeat_interleave(kScaleBlock, 0)
                                .slice(0, 0, rows)
                                .repeat_interleave(kScaleBlock, 1)
                                .slice(1, 0, columns);
  return values * by_element;
}

// codes [R, K/2], scales [R, K/32] -> fp32 [R, K].
Tensor dequantize_fp4_rows(const Tensor& codes, const Tensor& scales) {
  const Tensor table = e2m1_table(codes.device());
  const Tensor low = look_up(table, codes.bitwise_and(0x0F));
  const Tensor high = look_up(table, codes.bitwise_right_shift(4));
  const Tensor values =
      fault("nibbles_swapped") ? at::stack({high, low}, -1) : at::stack({low, high}, -1);
  const int64_t columns = codes.size(1) * 2;
  const Tensor by_element = look_up(e8m0_table(codes.device()), scales)
                                .repeat_interleave(kScaleBlock, 1)
                                .slice(1, 0, columns);
  return values.view({codes.size(0), columns}) * by_element;
}

void check_fp8_weight(const Tensor& x, const Tensor& codes, const Tensor& scales) {
  TORCH_CHECK(codes.dim() == 2 && codes.scalar_type() == at::kByte && codes.size(1) == x.size(-1),
              "fp8_linear: codes must be uint8 [N, ", x.size(-1), "], found ", codes.scalar_type(),
              " ", codes.sizes());
  TORCH_CHECK(scales.dim() == 2 && scales.scalar_type() == at::kByte &&
                  scales.size(0) == ceil_div(codes.size(0), kScaleBlock) &&
                  scales.size(1) == ceil_div(codes.size(1), kScaleBlock),
              "fp8_linear: scales must be uint8 [", ceil_div(codes.size(0), kScaleBlock), ", ",
              ceil_div(codes.size(1), kScaleBlock), "], found ", scales.scalar_type(), " ",
              scales.sizes());
}

void check_rows(const char* op, const Tensor& x, int64_t dims) {
  TORCH_CHECK(
      x.dim() == dims && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16), op,
      ": x must be fp32 or bf16 with ", dims, " dimensions, found ", x.scalar_type(), " ",
      x.sizes());
}

}  // namespace

Tensor widen(const Tensor& x) { return x.to(at::kDouble); }

Tensor e4m3_table(at::Device device) {
  static const Tensor table = code_table(NumericFormat::kE4M3FN, 256);
  return table.to(device);
}
Tensor e8m0_table(at::Device device) {
  static const Tensor table = code_table(NumericFormat::kE8M0, 256);
  return table.to(device);
}
Tensor e2m1_table(at::Device device) {
  static const Tensor table = code_table(NumericFormat::kE2M1, 16);
  return table.to(device);
}

Tensor look_up(const Tensor& table, const Tensor& codes) {
  return table.index_select(0, codes.reshape({-1}).to(at::kInt)).view(codes.sizes());
}

Tensor linear(const Tensor& x, const Tensor& weight, at::ScalarType out_dtype) {
  check_rows("linear", x, 2);
  TORCH_CHECK(weight.dim() == 2 && weight.size(1) == x.size(1), "linear: weight must be [N, ",
              x.size(1), "], found ", weight.sizes());
  return multiply_in_pieces(x, weight.size(0), 1, out_dtype, [&](int64_t begin, int64_t end) {
    return weight.slice(0, begin, end);
  });
}

Tensor fp8_linear(const Tensor& x, const Tensor& codes, const Tensor& scales,
                  at::ScalarType out_dtype) {
  check_rows("fp8_linear", x, 2);
  check_fp8_weight(x, codes, scales);
  return multiply_in_pieces(
      x, codes.size(0), kScaleBlock, out_dtype, [&](int64_t begin, int64_t end) {
        return dequantize_tiles(codes.slice(0, begin, end),
                                scales.slice(0, begin / kScaleBlock, ceil_div(end, kScaleBlock)));
      });
}

Tensor fp4_linear(const Tensor& x, const Tensor& codes, const Tensor& scales,
                  at::ScalarType out_dtype) {
  check_rows("fp4_linear", x, 2);
  const int64_t k = x.size(1);
  TORCH_CHECK(codes.dim() == 2 && codes.scalar_type() == at::kByte && codes.size(1) * 2 == k,
              "fp4_linear: codes must be uint8 [N, ", k / 2, "], found ", codes.scalar_type(), " ",
              codes.sizes());
  TORCH_CHECK(scales.dim() == 2 && scales.scalar_type() == at::kByte &&
                  scales.size(0) == codes.size(0) && scales.size(1) == ceil_div(k, kScaleBlock),
              "fp4_linear: scales must be uint8 [", codes.size(0), ", ", ceil_div(k, kScaleBlock),
              "], found ", scales.scalar_type(), " ", scales.sizes());
  return multiply_in_pieces(x, codes.size(0), 1, out_dtype, [&](int64_t begin, int64_t end) {
    return dequantize_fp4_rows(codes.slice(0, begin, end), scales.slice(0, begin, end));
  });
}

Tensor grouped_linear(const Tensor& x, const Tensor& offsets, at::TensorList weights,
                      at::TensorList scales, at::ScalarType out_dtype) {
  check_rows("grouped_linear", x, 2);
  const int64_t groups = static_cast<int64_t>(weights.size());
  TORCH_CHECK(groups > 0 && (scales.empty() || scales.size() == weights.size()),
              "grouped_linear: needs weights, and no scales or one for each; found ",
              weights.size(), " and ", scales.size());
  TORCH_CHECK(offsets.scalar_type() == at::kLong && offsets.numel() == groups + 1 &&
                  offsets.is_cpu() && offsets.is_contiguous(),
              "grouped_linear: offsets must be int64 [", groups + 1, "] on the host");
  const int64_t* bounds = offsets.data_ptr<int64_t>();
  TORCH_CHECK(bounds[0] == 0 && bounds[groups] == x.size(0),
              "grouped_linear: offsets must run from 0 to ", x.size(0), ", found ", bounds[0],
              " to ", bounds[groups]);
  std::vector<Tensor> results;
  for (int64_t group = 0; group < groups; ++group) {
    TORCH_CHECK(bounds[group] <= bounds[group + 1], "grouped_linear: offsets descend at group ",
                group);
    if (bounds[group] == bounds[group + 1]) continue;
    const Tensor rows = x.slice(0, bounds[group], bounds[group + 1]);
    const Tensor& weight = weights[group];
    if (scales.empty()) {
      results.push_back(linear(rows, weight, out_dtype));
    } else if (weight.size(1) == x.size(1)) {
      results.push_back(fp8_linear(rows, weight, scales[group], out_dtype));
    } else {
      results.push_back(fp4_linear(rows, weight, scales[group], out_dtype));
    }
  }
  if (results.empty()) return at::zeros({0, weights[0].size(0)}, x.options().dtype(out_dtype));
  return at::cat(results, 0);
}

Tensor linear_partials(const Tensor& x, const Tensor& weight, const ops::OptionalTensor& scales,
                       int64_t first_column, int64_t first_position, at::IntArrayRef bounds) {
  const LinearPartials parts =
      check_linear_partials(x, weight, scales, first_column, first_position, bounds);
  // x in fp64 asks for what is there before the rounding.
  const at::ScalarType type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const int64_t rows = x.size(0), outputs = weight.size(0);
  // Rows [begin, end) and columns [left, right) of the weight; left is a multiple of 32.
  const auto piece = [&](int64_t begin, int64_t end, int64_t left, int64_t right) {
    const int64_t first_block = left / kScaleBlock, last_block = ceil_div(right, kScaleBlock);
    if (parts.form == WeightForm::kPlain) return weight.slice(0, begin, end).slice(1, left, right);
    if (parts.form == WeightForm::kFp8) {
      return dequantize_tiles(weight.slice(0, begin, end).slice(1, left, right),
                              scales->slice(0, begin / kScaleBlock, ceil_div(end, kScaleBlock))
                                  .slice(1, first_block, last_block));
    }
    return dequantize_fp4_rows(weight.slice(0, begin, end).slice(1, left / 2, ceil_div(right, 2)),
                               scales->slice(0, begin, end).slice(1, first_block, last_block))
        .slice(1, 0, right - left);
  };
  std::vector<Tensor> partials;
  for (const Subtree& subtree : parts.subtrees) {
    const auto place = static_cast<size_t>(subtree.begin - first_position);
    const int64_t left = bounds[place], right = bounds[place + static_cast<size_t>(subtree.count)];
    partials.push_back(left == right
                           ? at::full({rows, outputs}, -0.0, x.options().dtype(type))
                           : multiply_in_pieces(x.slice(1, left, right), outputs, kScaleBlock, type,
                                                [&](int64_t begin, int64_t end) {
                                                  return piece(begin, end, first_column + left,
                                                               first_column + right);
                                                }));
  }
  if (partials.empty()) return at::empty({0, rows, outputs}, x.options().dtype(type));
  return at::stack(partials, 0);
}

}  // namespace deepinfer::reference
