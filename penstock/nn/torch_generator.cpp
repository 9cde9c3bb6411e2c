#include "penstock/nn/torch_generator.h"

#include <ATen/Context.h>

namespace penstock::nn {
namespace {

std::mutex& turn() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

SeededTorchGenerator::SeededTorchGenerator(std::uint64_t seed, c10::Device device) : turn_(turn()) {
  std::vector<c10::Device> devices = {at::kCPU};
  if (!device.is_cpu()) devices.push_back(device);
  for (const c10::Device each : devices) {
    at::Generator generator = at::globalContext().defaultGenerator(each);
    const std::lock_guard guard(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
    generator.set_current_seed(seed);
  }
}

SeededTorchGenerator::~SeededTorchGenerator() {
  for (auto& [generator, state] : states_) {
    const std::lock_guard guard(generator.mutex());
    generator.set_state(state);
  }
}

}  // namespace penstock::nn
