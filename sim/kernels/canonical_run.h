// Runs a kernel of a table in canonical arithmetic, on every processor: what CANONICAL.md C1.2 asks
// beyond the floating-point mode.
#pragma once

#include <cstring>
#include <optional>
#include <vector>

#include "sim/kernels/float_scope.h"
#include "sim/kernels/row_view.h"

namespace deepinfer {

// The rows of an output that a kernel also reads, or nothing if input and output are two.
inline std::optional<MutableRowView> overwritten(const RowView& x, const MutableRowView& y) {
  if (x.data != y.data) return {};
  return y;
}

// A copy of rows, to bring them back.
class SavedRows {
 public:
  explicit SavedRows(const MutableRowView& rows)
      : rows_(rows), bytes_(static_cast<size_t>(rows.rows) * row_bytes()) {
    for (int64_t i = 0; i < rows_.rows; ++i) std::memcpy(copy(i), row(i), row_bytes());
  }
  void restore() {
    for (int64_t i = 0; i < rows_.rows; ++i) std::memcpy(row(i), copy(i), row_bytes());
  }

 private:
  size_t element_bytes() const {
    return rows_.type == ElementType::kBf16 ? sizeof(uint16_t) : sizeof(float);
  }
  size_t row_bytes() const { return static_cast<size_t>(rows_.columns) * element_bytes(); }
  uint8_t* row(int64_t i) const {
    return static_cast<uint8_t*>(rows_.data) +
           static_cast<size_t>(i * rows_.row_stride) * element_bytes();
  }
  uint8_t* copy(int64_t i) { return bytes_.data() + static_cast<size_t>(i) * row_bytes(); }

  MutableRowView rows_;
  std::vector<uint8_t> bytes_;
};

// run(kernels) inside a FloatScope. Where the processor may have flushed a result that C1.2 keeps,
// run(twin) follows: the scalar twin of the same table, which needs no mode. `in_place` are the
// rows, if any, that run both reads and writes; everything else that it writes it does not read.
//
// Kernels that compute no result whose flushing could matter (codecs, quantisers: C4, C5.4; sums
// alone) do without.
template <typename Kernels, typename Run>
void run_canonical(const Kernels& kernels, const Kernels& twin,
                   const std::optional<MutableRowView>& in_place, const Run& run) {
  const FloatScope scope;
  if constexpr (UnderflowWatch::kCanSee) {
    if (&kernels != &twin) {
      std::optional<SavedRows> saved;
      if (in_place) saved.emplace(*in_place);
      UnderflowWatch underflow;
      underflow.start();
      run(kernels);
      if (!underflow.seen()) return;
      if (saved) saved->restore();
      run(twin);
      return;
    }
  }
  run(kernels);
}
template <typename Kernels, typename Run>
void run_canonical(const Kernels& kernels, const Kernels& twin, const Run& run) {
  run_canonical(kernels, twin, std::nullopt, run);
}

}  // namespace deepinfer
