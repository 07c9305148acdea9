// Which columns of a row-parallel product stand at which tree position.
#include <numeric>
#include <vector>

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "model/weights.h"
#include "platform/ops.h"
#include "tests/random_seed.h"

namespace deepinfer {
namespace {

// 65 bounds by what holds from a position on.
std::vector<int64_t> bounds_of(const std::vector<std::pair<int64_t, int64_t>>& from_position) {
  std::vector<int64_t> bounds(kCanonicalLeaves + 1);
  for (const auto& [position, bound] : from_position) {
    std::fill(bounds.begin() + position, bounds.end(), bound);
  }
  return bounds;
}

TEST_CASE("bounds of heads, of slices and of a last unit that is shorter") {
  // Heads 2 and 3 of 4 are on leaves 32 and 48.
  CHECK(column_bounds(ShardMap::contiguous("heads", 4, 1), {2, 4}, 64, 128) ==
        bounds_of({{33, 64}, {49, 128}}));
  // The released shared expert: 18 slices of 128 on leaves 0 to 17.
  std::vector<int64_t> leaves(18);
  std::iota(leaves.begin(), leaves.end(), 0);
  std::vector<std::pair<int64_t, int64_t>> slices;
  for (int64_t i = 1; i <= 18; ++i) slices.push_back({i, 128 * i});
  CHECK(column_bounds(ShardMap::explicit_leaves("slices", leaves, 1), {0, 18}, 128, 2304) ==
        bounds_of(slices));
  // Leaves 0, 21 and 42.
  CHECK(column_bounds(ShardMap::contiguous("units", 3, 1), {0, 3}, 32, 70) ==
        bounds_of({{1, 32}, {22, 64}, {43, 70}}));
  // Two units on every leaf.
  const std::vector<int64_t> pairs =
      column_bounds(ShardMap::contiguous("units", 128, 1), {0, 128}, 32, 4096);
  for (int64_t i = 0; i <= kCanonicalLeaves; ++i) CHECK(pairs[static_cast<size_t>(i)] == 64 * i);
}

// Small whole numbers: every order of their sums is exact.
TEST_CASE("a row-parallel projection is the projection") {
  at::manual_seed(static_cast<int64_t>(random_seed(17)));
  Numerics numerics;
  const auto whole = [](at::IntArrayRef shape) {
    return at::randint(-8, 9, shape, at::kLong).to(at::kBFloat16);
  };
  const at::Tensor x = whole({5, 160});
  const ShardMap map = ShardMap::contiguous("units", 5, 1);
  const Projection plain = {whole({40, 160}), {}};
  const Projection fp8 = {at::randint(0, 0x50, {40, 160}, at::kByte),
                          at::full({2, 5}, 127, at::kByte)};
  const Projection fp4 = {at::randint(0, 256, {40, 80}, at::kByte),
                          at::full({40, 5}, 128, at::kByte)};
  for (const bool quantize : {false, true}) {
    numerics.quantize_linear = quantize;
    for (const Projection& projection : {plain, fp8, fp4}) {
      CHECK(at::equal(project_row_parallel(x, projection, numerics, map, 32),
                      project(x, projection, numerics)));
    }
  }
}

}  // namespace
}  // namespace deepinfer
