// Compares what the model computed with what a golden file holds: numbers by rows, selections as
// sets.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <ATen/ATen.h>

namespace deepinfer {

// Differences between two fp32 tensors [rows, ...]. A value that is not finite, or a row that was
// never computed, differs by infinity.
struct NumberDifference {
  int64_t rows = 0;
  int64_t values = 0;            // numbers in all rows
  int64_t within_bf16_ulp = 0;   // of those: within one bf16 ulp of the expected value
  double median = 0;             // of |found - expected| over all values (the lower of two middles)
  double largest = 0;            // of |found - expected|
  int64_t largest_row = -1;      // where it is; -1 without rows
  int64_t largest_element = -1;  // in the row
  double found = 0;              // the two values there
  double expected = 0;
  std::vector<double> row_median;  // [rows] of |found - expected| in the row
  std::vector<bool> bit_equal;     // [rows] every value rounds to the same bf16
  std::vector<bool> within;        // [rows] every difference is at most the bound that was given
};

// One bf16 ulp at `value`: the distance of neighbouring bf16 numbers in its binade (8 significant
// bits), and in the subnormal range that of the subnormals.
double bf16_ulp(double value);

NumberDifference compare_numbers(const at::Tensor& found, const at::Tensor& expected,
                                 double row_bound = std::numeric_limits<double>::infinity());

// Differences between two int64 tensors [rows, k].
struct SelectionDifference {
  int64_t rows = 0;
  int64_t different_rows = 0;
  int64_t first_row = -1;      // the first that differs
  std::vector<int64_t> found;  // that row, as compared
  std::vector<int64_t> expected;
  std::vector<bool> row_equal;  // [rows]
};

enum class SelectionOrder {
  kExact,  // position matters: Engram rows, one a hash column
  kSet,    // consumers use the set (model-verified.md 8, 9): top-k entries, experts
};

SelectionDifference compare_selections(const at::Tensor& found, const at::Tensor& expected,
                                       SelectionOrder order);

// Reorders each row of `weights` by ascending id, so that weights of equal sets line up.
// ids int64 [rows, k], weights fp32 [rows, k] -> fp32 [rows, k].
at::Tensor weights_by_ascending_id(const at::Tensor& ids, const at::Tensor& weights);

// "[1, 2, 3]", cut after twelve.
std::string row_text(const std::vector<int64_t>& row);

}  // namespace deepinfer
