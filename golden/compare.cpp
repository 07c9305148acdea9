#include "golden/compare.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "platform/errors.h"

namespace deepinfer {
namespace {

int64_t row_size(const at::Tensor& tensor) {
  return tensor.size(0) == 0 ? 0 : tensor.numel() / tensor.size(0);
}

// The lower of the two middles of an even count; 0 of nothing.
double lower_median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<int64_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<int64_t> row_of(const at::Tensor& tensor, int64_t row, bool sorted) {
  const int64_t size = row_size(tensor);
  const int64_t* data = tensor.data_ptr<int64_t>() + row * size;
  std::vector<int64_t> values(data, data + size);
  if (sorted) std::sort(values.begin(), values.end());
  return values;
}

}  // namespace

double bf16_ulp(double value) {
  constexpr int kFractionBits = 7, kSmallestExponent = -126;
  const int exponent =
      value == 0 ? kSmallestExponent : std::max(std::ilogb(value), kSmallestExponent);
  return std::ldexp(1.0, exponent - kFractionBits);
}

NumberDifference compare_numbers(const at::Tensor& found, const at::Tensor& expected,
                                 double row_bound) {
  DEEPINFER_ASSERT(found.sizes() == expected.sizes(), found.sizes() << " != " << expected.sizes());
  const at::Tensor found_values = found.to(at::kCPU, at::kFloat).contiguous();
  const at::Tensor expected_values = expected.to(at::kCPU, at::kFloat).contiguous();
  const float* found_data = found_values.data_ptr<float>();
  const float* expected_data = expected_values.data_ptr<float>();
  // Codes, so that +0 and -0 differ and equal NaNs do not.
  const at::Tensor found_codes = found_values.to(at::kBFloat16).view(at::kShort);
  const at::Tensor expected_codes = expected_values.to(at::kBFloat16).view(at::kShort);
  const int16_t* found_bf16 = found_codes.data_ptr<int16_t>();
  const int16_t* expected_bf16 = expected_codes.data_ptr<int16_t>();

  NumberDifference result;
  result.rows = found.size(0);
  result.values = found.numel();
  const int64_t columns = row_size(found);
  std::vector<double> differences(static_cast<size_t>(result.values));
  for (int64_t row = 0; row < result.rows; ++row) {
    bool bit_equal = true;
    bool within = true;
    for (int64_t element = 0; element < columns; ++element) {
      const int64_t i = row * columns + element;
      // In double, where the difference of two floats near each other is exact.
      double difference = std::abs(double{found_data[i]} - double{expected_data[i]});
      if (!std::isfinite(difference)) difference = std::numeric_limits<double>::infinity();
      differences[static_cast<size_t>(i)] = difference;
      if (result.largest_row < 0 || difference > result.largest) {
        result.largest = difference;
        result.largest_row = row;
        result.largest_element = element;
        result.found = found_data[i];
        result.expected = expected_data[i];
      }
      within = within && difference <= row_bound;
      result.within_bf16_ulp += difference <= bf16_ulp(double{expected_data[i]});
      bit_equal = bit_equal && found_bf16[i] == expected_bf16[i];
    }
    result.bit_equal.push_back(bit_equal);
    result.within.push_back(within);
  }
  for (int64_t row = 0; row < result.rows; ++row) {
    result.row_median.push_back(lower_median(
        {differences.begin() + row * columns, differences.begin() + (row + 1) * columns}));
  }
  result.median = lower_median(std::move(differences));
  return result;
}

SelectionDifference compare_selections(const at::Tensor& found, const at::Tensor& expected,
                                       SelectionOrder order) {
  DEEPINFER_ASSERT(found.sizes() == expected.sizes(), found.sizes() << " != " << expected.sizes());
  const at::Tensor found_values = found.to(at::kCPU, at::kLong).contiguous();
  const at::Tensor expected_values = expected.to(at::kCPU, at::kLong).contiguous();
  const bool sorted = order == SelectionOrder::kSet;
  SelectionDifference result;
  result.rows = found.size(0);
  for (int64_t row = 0; row < result.rows; ++row) {
    auto found_row = row_of(found_values, row, sorted);
    auto expected_row = row_of(expected_values, row, sorted);
    const bool equal = found_row == expected_row;
    result.row_equal.push_back(equal);
    if (equal) continue;
    ++result.different_rows;
    if (result.first_row < 0) {
      result.first_row = row;
      result.found = std::move(found_row);
      result.expected = std::move(expected_row);
    }
  }
  return result;
}

at::Tensor weights_by_ascending_id(const at::Tensor& ids, const at::Tensor& weights) {
  DEEPINFER_ASSERT(ids.sizes() == weights.sizes(), ids.sizes() << " != " << weights.sizes());
  return weights.to(at::kCPU, at::kFloat)
      .gather(1, ids.to(at::kCPU, at::kLong).argsort(/*dim=*/int64_t{1}));
}

std::string row_text(const std::vector<int64_t>& row) {
  constexpr size_t kShown = 12;
  std::ostringstream text;
  text << '[';
  for (size_t i = 0; i < std::min(row.size(), kShown); ++i) text << (i ? ", " : "") << row[i];
  if (row.size() > kShown) text << ", ... " << row.size() - kShown << " more";
  text << ']';
  return text.str();
}

}  // namespace deepinfer
