#include "penstock/nn/draw.h"

#include <ATen/CPUGeneratorImpl.h>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::nn {
namespace {

DrawScope*& current() {
  thread_local DrawScope* scope = nullptr;
  return scope;
}

}  // namespace

std::uint64_t DrawPlace::key() const {
  std::uint64_t key = 0;
  for (const std::int64_t part : {seed, step, microbatch, layer}) {
    key = mix(key ^ static_cast<std::uint64_t>(part));
  }
  return key;
}

DrawScope::DrawScope(const DrawPlace& place) : place_(place), outer_(current()) {
  current() = this;
}

DrawScope::~DrawScope() { current() = outer_; }

at::Generator& generator() {
  DrawScope* scope = current();
  if (scope == nullptr) {
    throw Error("random numbers are drawn outside of a stage's forward pass",
                {"nn::Dropout in a loop of your own needs an nn::DrawScope around the layer, with "
                 "the seed, step, microbatch and layer that the numbers depend on"});
  }
  if (!scope->generator_.defined()) {
    scope->generator_ = at::make_generator<at::CPUGeneratorImpl>(scope->place_.key());
  }
  return scope->generator_;
}

const DrawPlace& draw_place() {
  PENSTOCK_CHECK(current() != nullptr, "no layer is running");
  return current()->place_;
}

}  // namespace penstock::nn
