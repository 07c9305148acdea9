// The device switch: the torch device that model code runs on.
#pragma once

#include <ATen/core/Tensor.h>

#include "platform/environment.h"

namespace deepinfer {

// Host or Neuron device, as DEEPINFER_NEURON_DEVICE says (systems.md P1). A Neuron device is
// torch's PrivateUse1 device of index `core`, the logical NeuronCore. Throws UnsupportedError when
// no plugin has registered that backend in this process, or it has no such core.
at::Device select_device(const Environment& environment, int64_t core = 0);

bool is_neuron(const at::Device& device);

}  // namespace deepinfer
