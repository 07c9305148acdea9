// Comparisons of numbers by rows and of selections as sets.
#include "golden/compare.h"

#include <cmath>
#include <limits>

#include <doctest/doctest.h>

namespace deepinfer {
namespace {

TEST_CASE("numbers: largest, where, medians, rows") {
  const at::Tensor expected = at::zeros({3, 2, 2});
  at::Tensor found = at::zeros({3, 2, 2});
  found[1][0][1] = 0.5f;
  found[1][1][0] = -0.25f;
  found[2][0][0] = 1e-3f;
  const NumberDifference difference = compare_numbers(found, expected, 0.25);
  CHECK(difference.rows == 3);
  CHECK(difference.values == 12);
  CHECK(difference.largest == 0.5);
  CHECK(difference.largest_row == 1);
  CHECK(difference.largest_element == 1);
  CHECK(difference.found == 0.5);
  CHECK(difference.expected == 0);
  CHECK(difference.median == 0);  // 9 of 12 are 0
  CHECK(difference.row_median == std::vector<double>{0, 0, 0});
  CHECK(difference.within == std::vector<bool>{true, false, true});
  CHECK(difference.bit_equal == std::vector<bool>{true, false, false});
}

TEST_CASE("numbers: the median is the lower of two middles") {
  const at::Tensor found = at::tensor({1.0f, 2.0f, 3.0f, 4.0f}).reshape({2, 2});
  const NumberDifference difference = compare_numbers(found, at::zeros({2, 2}));
  CHECK(difference.median == 2);
  CHECK(difference.row_median == std::vector<double>{1, 3});
}

TEST_CASE("numbers: bit-equal is after rounding to bf16") {
  // bf16 steps by 2^-7 at 1: below half a step rounds away, above it does not; -0 is not +0.
  const at::Tensor expected = at::tensor({1.0f, 1.0f, 0.0f}).reshape({3, 1});
  const at::Tensor found = at::tensor({1.0f + 0x1p-9f, 1.0f + 0x1p-7f, -0.0f}).reshape({3, 1});
  CHECK(compare_numbers(found, expected).bit_equal == std::vector<bool>{true, false, false});
  // The found streams may be bf16 themselves.
  CHECK(compare_numbers(found.to(at::kBFloat16), expected).bit_equal[0]);
}

TEST_CASE("numbers: within one bf16 ulp of the expected value") {
  CHECK(bf16_ulp(1) == 0x1p-7);
  CHECK(bf16_ulp(-1.99) == 0x1p-7);
  CHECK(bf16_ulp(2) == 0x1p-6);
  CHECK(bf16_ulp(0) == 0x1p-133);  // the smallest subnormal
  CHECK(bf16_ulp(0x1p-130) == 0x1p-133);
  const at::Tensor expected = at::tensor({1.0f, 1.0f, -2.0f, 0.0f}).view({2, 2});
  const at::Tensor found =
      at::tensor({1.0f + 0x1p-7f, 1.0f + 0x1.02p-7f, -2.0f + 0x1p-6f, 0x1p-132f}).view({2, 2});
  CHECK(compare_numbers(found, expected).within_bf16_ulp == 2);
}

TEST_CASE("numbers: what is not finite differs by infinity, also from itself") {
  const float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {inf, -inf, std::nanf("")}) {
    const at::Tensor found = at::tensor({0.0f, bad}).reshape({2, 1});
    const NumberDifference difference = compare_numbers(found, found);
    CHECK(std::isinf(difference.largest));
    CHECK(difference.largest_row == 1);
    CHECK(difference.within == std::vector<bool>{true, true});  // no bound given
    CHECK(compare_numbers(found, found, 1e30).within == std::vector<bool>{true, false});
  }
}

TEST_CASE("numbers: no rows") {
  const NumberDifference difference = compare_numbers(at::zeros({0, 4}), at::zeros({0, 4}));
  CHECK(difference.values == 0);
  CHECK(difference.largest == 0);
  CHECK(difference.largest_row == -1);
}

TEST_CASE("selections: sets ignore order, addresses do not") {
  const at::Tensor expected = at::tensor({3, 1, 2, 5, 4, 6}, at::kLong).reshape({2, 3});
  const at::Tensor found = at::tensor({1, 2, 3, 5, 4, 7}, at::kInt).reshape({2, 3});
  const auto sets = compare_selections(found, expected, SelectionOrder::kSet);
  CHECK(sets.different_rows == 1);
  CHECK(sets.first_row == 1);
  CHECK(sets.found == std::vector<int64_t>{4, 5, 7});
  CHECK(sets.expected == std::vector<int64_t>{4, 5, 6});
  CHECK(sets.row_equal == std::vector<bool>{true, false});
  const auto exact = compare_selections(found, expected, SelectionOrder::kExact);
  CHECK(exact.different_rows == 2);
  CHECK(exact.first_row == 0);
  CHECK(exact.found == std::vector<int64_t>{1, 2, 3});
}

TEST_CASE("weights line up by expert id") {
  const at::Tensor ids = at::tensor({7, 2, 5}, at::kLong).reshape({1, 3});
  const at::Tensor weights = at::tensor({0.7f, 0.2f, 0.5f}).reshape({1, 3});
  const at::Tensor sorted = weights_by_ascending_id(ids, weights);
  CHECK(at::equal(sorted, at::tensor({0.2f, 0.5f, 0.7f}).reshape({1, 3})));
}

TEST_CASE("rows as text") {
  CHECK(row_text({}) == "[]");
  CHECK(row_text({1, -1}) == "[1, -1]");
  CHECK(row_text(std::vector<int64_t>(14, 8)) ==
        "[8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, ... 2 more]");
}

}  // namespace
}  // namespace deepinfer
