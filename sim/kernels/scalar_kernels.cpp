// The scalar twin of every kernel that is written in lanes: the same files on lanes_software.h.
#define DEEPINFER_SIM_SOFTWARE_LANES
#include "sim/kernels/attention-inl.h"
#include "sim/kernels/codec-inl.h"
#include "sim/kernels/engram-inl.h"
#include "sim/kernels/hyper_connection-inl.h"
#include "sim/kernels/math_arrays-inl.h"
#include "sim/kernels/quantize-inl.h"
#include "sim/kernels/rows-inl.h"
#include "sim/kernels/select-inl.h"

namespace deepinfer {

const MathKernels& scalar_math_kernels() { return N_SOFTWARE::kMathKernels; }
const CodecKernels& scalar_codec_kernels() { return N_SOFTWARE::kCodecKernels; }
const QuantizeKernels& scalar_quantize_kernels() { return N_SOFTWARE::kQuantizeKernels; }
const RowKernels& scalar_row_kernels() { return N_SOFTWARE::kRowKernels; }
const HyperConnectionKernels& scalar_hyper_connection_kernels() {
  return N_SOFTWARE::kHyperConnectionKernels;
}
const SelectKernels& scalar_select_kernels() { return N_SOFTWARE::kSelectKernels; }
const AttentionKernels& scalar_attention_kernels() { return N_SOFTWARE::kAttentionKernels; }
const EngramKernels& scalar_engram_kernels() { return N_SOFTWARE::kEngramKernels; }

}  // namespace deepinfer
