// The device switch: the host, a missing plugin, and a plugin that this test registers itself.
#include "platform/device.h"

#include <map>
#include <string>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <doctest/doctest.h>

#include "platform/errors.h"

namespace deepinfer {
namespace {

Environment environment_with_device(const std::string& device) {
  return Environment(std::map<std::string, std::string>{{"DEEPINFER_NEURON_DEVICE", device}});
}

// What a plugin registers, with four cores, and nothing behind it.
class FourCores final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override { return device; }
  c10::Device getDevice() const override { return {type(), 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 4; }
};

TEST_CASE("cpu is the host") {
  CHECK(select_device(environment_with_device("cpu")) == at::Device(at::kCPU));
  CHECK(!is_neuron(at::Device(at::kCPU)));
}

// One case, because a registration cannot be taken back through torch's interface.
TEST_CASE("neuron without a plugin says what is missing; with one it is that device") {
  const Environment environment = environment_with_device("neuron");
  try {
    select_device(environment);
    FAIL("accepted");
  } catch (const UnsupportedError& error) {
    CHECK(error.exit_code() == ExitCode::kBadInput);
    const std::string text = error.what();
    for (const char* part : {"PrivateUse1", "DEEPINFER_NEURON_DEVICE", "LD_PRELOAD", "cpu"}) {
      CHECK(text.find(part) != std::string::npos);
    }
  }

  static const FourCores four_cores;
  const c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::PrivateUse1, &four_cores);
  const at::Device device = select_device(environment, 3);
  CHECK(device.type() == c10::DeviceType::PrivateUse1);
  CHECK(device.index() == 3);
  CHECK(is_neuron(device));
  CHECK_THROWS_AS(select_device(environment, 4), UnsupportedError);
  CHECK_THROWS_AS(select_device(environment, -1), UnsupportedError);
  CHECK(select_device(environment_with_device("cpu")) == at::Device(at::kCPU));
}

}  // namespace
}  // namespace deepinfer
