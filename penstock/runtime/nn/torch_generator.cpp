#include "penstock/runtime/nn/torch_generator.h"

#include <ATen/Context.h>

#include "penstock/runtime/nn/torch_draws.h"

namespace penstock::nn {
namespace {

std::recursive_mutex& turn_at_default() {
  static std::recursive_mutex mutex;
  return mutex;
}

}  // namespace

SeededTorchGenerator::SeededTorchGenerator(std::uint64_t seed)
    : turn_(turn_at_default()),
      no_scope_(key_of_draws()),
      generator_(at::globalContext().defaultGenerator(at::kCPU)) {
  const std::lock_guard guard(generator_.mutex());
  state_ = generator_.get_state();
  generator_.set_current_seed(seed);
}

SeededTorchGenerator::~SeededTorchGenerator() {
  const std::lock_guard guard(generator_.mutex());
  generator_.set_state(state_);
}

}  // namespace penstock::nn
