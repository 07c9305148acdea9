// Runs norm, rotation and activation on a target.
#include "sim/kernels/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/kernels/rows.cpp"
#include <hwy/foreach_target.h>

#include "sim/kernels/rows-inl.h"

#if HWY_ONCE
#include <cstring>

#include "platform/errors.h"
#include "sim/kernels/canonical_run.h"
#include "sim/kernels/rows.h"

namespace deepinfer {
namespace {

const RowKernels& row_kernels(Target target) {
  DEEPINFER_SIM_SELECT_TARGET(target, kRowKernels);
  return scalar_row_kernels();
}

void check_same(const char* name, const RowView& x, const RowView& y) {
  DEEPINFER_ASSERT(x.type == y.type && x.rows == y.rows && x.columns == y.columns,
                   name << ": [" << x.rows << ", " << x.columns << "] and [" << y.rows << ", "
                        << y.columns << "], or two types");
}

}  // namespace

void rms_norm(const RowView& x, const RowView& weight, float eps, const MutableRowView& y,
              Target target) {
  check_same("rms_norm", x, y);
  DEEPINFER_ASSERT(weight.columns == x.columns, "weight " << weight.columns << ", x " << x.columns);
  run_canonical(row_kernels(target), scalar_row_kernels(), overwritten(x, y),
                [&](const RowKernels& kernels) { kernels.rms_norm(x, weight, eps, y); });
}

void rope_table(const int64_t* positions, int64_t count, const float* frequencies, int64_t pairs,
                float* cosines, float* sines, Target target) {
  run_canonical(row_kernels(target), scalar_row_kernels(), [&](const RowKernels& kernels) {
    kernels.rope_table(positions, count, frequencies, pairs, cosines, sines);
  });
}

void rope(const RowView& x, int64_t rows_per_angle, const float* cosines, const float* sines,
          int64_t pairs, bool inverse, const MutableRowView& y, Target target) {
  check_same("rope", x, y);
  DEEPINFER_ASSERT(rows_per_angle > 0 && x.rows % rows_per_angle == 0 && 2 * pairs <= x.columns,
                   "rows " << x.rows << ", rows per angle " << rows_per_angle << ", pairs " << pairs
                           << ", columns " << x.columns);
  run_canonical(row_kernels(target), scalar_row_kernels(), overwritten(x, y),
                [&](const RowKernels& kernels) {
                  kernels.rope(x, rows_per_angle, cosines, sines, pairs, inverse, y);
                });
}

void swiglu(const RowView& gate, const RowView& up, const float* row_weights, float limit,
            const MutableRowView& y, Target target) {
  check_same("swiglu", gate, y);
  check_same("swiglu", gate, up);
  run_canonical(
      row_kernels(target), scalar_row_kernels(), overwritten(gate.data == y.data ? gate : up, y),
      [&](const RowKernels& kernels) { kernels.swiglu(gate, up, row_weights, limit, y); });
}

int64_t store_rows(const MutableRowView& pool, const RowView& rows, const int64_t* slots) {
  DEEPINFER_ASSERT(
      pool.type == rows.type && pool.columns == rows.columns,
      "pool of " << pool.columns << " columns, rows of " << rows.columns << ", or two types");
  for (int64_t i = 0; i < rows.rows; ++i) {
    if (slots[i] < 0 || slots[i] >= pool.rows) return i;
  }
  for (int64_t i = 0; i < rows.rows; ++i) {
    if (rows.type == ElementType::kBf16) {
      std::memcpy(pool.row<uint16_t>(slots[i]), rows.row<uint16_t>(i),
                  static_cast<size_t>(rows.columns) * sizeof(uint16_t));
    } else {
      std::memcpy(pool.row<float>(slots[i]), rows.row<float>(i),
                  static_cast<size_t>(rows.columns) * sizeof(float));
    }
  }
  return -1;
}

}  // namespace deepinfer
#endif  // HWY_ONCE
