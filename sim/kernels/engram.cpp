// Hashes and fetches Engram rows in integer code, and runs the gate on a target.
#include "sim/kernels/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sim/kernels/engram.cpp"
#include <hwy/foreach_target.h>

#include "sim/kernels/engram-inl.h"

#if HWY_ONCE
#include "platform/errors.h"
#include "platform/formats.h"
#include "sim/kernels/canonical_run.h"
#include "sim/kernels/engram.h"
#include "sim/kernels/quantize.h"

namespace deepinfer {
namespace {

const EngramKernels& engram_kernels(Target target) {
  DEEPINFER_SIM_SELECT_TARGET(target, kEngramKernels);
  return scalar_engram_kernels();
}

}  // namespace

void engram_hash(std::span<const int64_t> compressed_ids, int64_t rows,
                 std::span<const int64_t> multipliers, std::span<const int64_t> primes,
                 std::span<const int64_t> offsets, int64_t pad, int64_t* table_rows) {
  const int64_t length = static_cast<int64_t>(compressed_ids.size());
  const int64_t order = static_cast<int64_t>(multipliers.size());
  const int64_t columns = static_cast<int64_t>(primes.size());
  DEEPINFER_ASSERT(rows >= 0 && rows <= length && order >= 2 && columns % (order - 1) == 0 &&
                       offsets.size() == primes.size(),
                   "ids " << length << ", rows " << rows << ", multipliers " << order << ", primes "
                          << columns << ", offsets " << offsets.size());
  const int64_t heads = columns / (order - 1);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t position = length - rows + row;
    bool blocked = false;
    uint64_t hash = 0;
    for (int64_t back = 0; back < order; ++back) {
      // Once a look-back is dead, all longer ones are pad.
      const int64_t at = position - back;
      blocked = blocked || at < 0 || compressed_ids[static_cast<size_t>(at)] < 0;
      const int64_t id = blocked ? pad : compressed_ids[static_cast<size_t>(at)];
      hash ^=
          static_cast<uint64_t>(id) * static_cast<uint64_t>(multipliers[static_cast<size_t>(back)]);
      for (int64_t head = 0; back > 0 && head < heads; ++head) {
        const size_t column = static_cast<size_t>((back - 1) * heads + head);
        int64_t rest = static_cast<int64_t>(hash) % primes[column];
        if (rest < 0) rest += primes[column];
        table_rows[row * columns + static_cast<int64_t>(column)] = rest + offsets[column];
      }
    }
  }
}

int64_t engram_fetch(const uint8_t* codes, const uint8_t* scales, int64_t rows_in_table,
                     const int64_t* table_rows, const MutableRowView& out, Target target) {
  for (int64_t i = 0; i < out.rows; ++i) {
    if (table_rows[i] < 0 || table_rows[i] >= rows_in_table) return i;
  }
  const int64_t columns = out.columns, blocks = columns / kScaleBlock;
  for (int64_t i = 0; i < out.rows; ++i) {
    MutableRowView row = out;
    row.rows = 1;
    row.data = out.type == ElementType::kBf16 ? static_cast<void*>(out.row<uint16_t>(i))
                                              : static_cast<void*>(out.row<float>(i));
    dequantize_aq32(codes + table_rows[i] * columns, columns, scales + table_rows[i] * blocks,
                    blocks, row, target);
  }
  return -1;
}

void engram_gate(const RowView& streams, int64_t count, const RowView& key_value,
                 const RowView& q_weight, const RowView& k_weight, const uint8_t* text,
                 float norm_eps, const MutableRowView& out, float* gates, Target target) {
  DEEPINFER_ASSERT(count > 0 && streams.columns % count == 0,
                   "streams " << count << ", columns " << streams.columns);
  const int64_t columns = streams.columns / count;
  DEEPINFER_ASSERT(
      key_value.type == streams.type && key_value.rows == streams.rows &&
          key_value.columns == (count + 1) * columns && out.type == streams.type &&
          out.rows == streams.rows && out.columns == streams.columns &&
          q_weight.type == k_weight.type && q_weight.rows == count && k_weight.rows == count &&
          q_weight.columns == columns && k_weight.columns == columns,
      "streams [" << streams.rows << ", " << count << " * " << columns << "], key_value ["
                  << key_value.rows << ", " << key_value.columns << "], q_weight [" << q_weight.rows
                  << ", " << q_weight.columns << "], k_weight [" << k_weight.rows << ", "
                  << k_weight.columns << "], out [" << out.rows << ", " << out.columns
                  << "], or two types");
  run_canonical(engram_kernels(target), scalar_engram_kernels(), overwritten(streams, out),
                [&](const EngramKernels& kernels) {
                  kernels.gate(streams, count, key_value, q_weight, k_weight, text, norm_eps, out,
                               gates);
                });
}

}  // namespace deepinfer
#endif  // HWY_ONCE
