#include "penstock/nn/torch_generator.h"

#include <ATen/CPUGeneratorImpl.h>

namespace penstock::nn {
namespace {

std::mutex& turn() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

SeededTorchGenerator::SeededTorchGenerator(std::uint64_t seed)
    : turn_(turn()), generator_(at::detail::getDefaultCPUGenerator()) {
  const std::lock_guard guard(generator_.mutex());
  state_ = generator_.get_state();
  generator_.set_current_seed(seed);
}

SeededTorchGenerator::~SeededTorchGenerator() {
  const std::lock_guard guard(generator_.mutex());
  generator_.set_state(state_);
}

}  // namespace penstock::nn
