// Registers the canonical host kernels (sim/kernels) as the CPU implementation of the ops of
// platform/ops.h.
#pragma once

namespace deepinfer {

// From here on ops on CPU tensors compute in canonical arithmetic, outside an
// ArithmeticScope(kReference). To be called by the program that wires the parts together; again is
// harmless. Thread-safe.
void install_host_kernels();

}  // namespace deepinfer
