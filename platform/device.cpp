// Asks torch's registry of device backends whether a Neuron plugin is loaded.
#include "platform/device.h"

#include <atomic>
#include <limits>

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "platform/errors.h"

namespace deepinfer {

namespace {

constexpr at::DeviceType kNeuronType = at::DeviceType::PrivateUse1;

// The guard is what every backend registers, in torch 1.13 and 2.x alike; null without a plugin.
const c10::impl::DeviceGuardImplInterface* neuron_backend() {
  return c10::impl::device_guard_impl_registry[static_cast<size_t>(kNeuronType)].load();
}

}  // namespace

at::Device select_device(const Environment& environment, int64_t core) {
  if (environment.device() == DeviceKind::kCpu) return at::Device(at::kCPU);
  const c10::impl::DeviceGuardImplInterface* backend = neuron_backend();
  if (backend == nullptr) {
    throw UnsupportedError(
        {.what = "no Neuron device: no plugin has registered torch's PrivateUse1 backend",
         .where = "environment, DEEPINFER_NEURON_DEVICE",
         .expected =
             "a plugin library, loaded into this process, that registers a device guard, an "
             "allocator and kernels for PrivateUse1",
         .found = "DEEPINFER_NEURON_DEVICE=neuron, and no device guard for PrivateUse1",
         .remedy = "load the plugin, for example LD_PRELOAD=/path/to/the/plugin.so (built against "
                   "the same libtorch), or set DEEPINFER_NEURON_DEVICE=cpu to run on the host"});
  }
  const int64_t count = backend->deviceCount();
  if (core < 0 || core >= count || core > std::numeric_limits<at::DeviceIndex>::max()) {
    throw UnsupportedError({.what = "the Neuron plugin has no such core",
                            .where = "environment, DEEPINFER_NEURON_DEVICE",
                            .expected = "a core from 0 to " + std::to_string(count - 1),
                            .found = "core " + std::to_string(core),
                            .remedy = "choose another core, or make more of them visible"});
  }
  return at::Device(kNeuronType, static_cast<at::DeviceIndex>(core));
}

bool is_neuron(const at::Device& device) { return device.type() == kNeuronType; }

}  // namespace deepinfer
