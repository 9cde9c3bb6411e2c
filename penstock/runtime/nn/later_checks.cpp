#include "penstock/runtime/nn/later_checks.h"

#include <utility>

namespace penstock::nn {
namespace {

thread_local LaterChecks* innermost_checks = nullptr;

}  // namespace

LaterChecks::LaterChecks() : outer_(std::exchange(innermost_checks, this)) {}

LaterChecks::~LaterChecks() { innermost_checks = outer_; }

void LaterChecks::run() {
  for (const Check& check : std::exchange(checks_, {})) {
    if (check.is_wrong.item<bool>()) check.refuse();
  }
}

void refuse_if(const at::Tensor& is_wrong, std::function<void()> refuse) {
  if (!is_wrong.is_cpu() && innermost_checks != nullptr) {
    innermost_checks->checks_.push_back({is_wrong, std::move(refuse)});
  } else if (is_wrong.item<bool>()) {
    refuse();
  }
}

}  // namespace penstock::nn
