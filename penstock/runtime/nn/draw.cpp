#include "penstock/runtime/nn/draw.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <algorithm>
#include <mutex>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/torch_draws.h"

namespace penstock::nn {
namespace {

DrawScope*& innermost() {
  thread_local DrawScope* scope = nullptr;
  return scope;
}

at::Generator make_generator(c10::Device device, std::uint64_t key) {
  if (device.is_cpu()) return at::make_generator<at::CPUGeneratorImpl>(key);
  at::Generator generator = at::globalContext().defaultGenerator(device).clone();
  generator.set_current_seed(key);
  return generator;
}

}  // namespace

// A training forward's is of the first four alone.
std::uint64_t DrawPlace::key() const {
  std::uint64_t key = 0;
  for (const std::int64_t part : {seed, step, microbatch, layer}) {
    key = mix(key ^ static_cast<std::uint64_t>(part));
  }
  if (piece != 0) key = mix(key ^ ~static_cast<std::uint64_t>(piece));
  if (evaluation != 0) key = mix(key ^ static_cast<std::uint64_t>(evaluation));
  return pass == Pass::Forward ? key : mix(~key ^ static_cast<std::uint64_t>(pass));
}

void OwnGenerators::note(at::Generator generator) {
  if (std::ranges::count(noted_, generator, &Noted::generator) > 0) return;
  const std::lock_guard lock(generator.mutex());
  noted_.push_back({generator, generator.get_state()});
}

void OwnGenerators::exchange() {
  for (Noted& each : noted_) {
    const std::lock_guard lock(each.generator.mutex());
    const at::Tensor now = each.generator.get_state();
    each.generator.set_state(each.state);
    each.state = now;
  }
}

DrawScope::DrawScope(const DrawPlace& place, OwnGenerators* own, TorchDraws torchs)
    : place_(place), own_(own), torchs_(torchs), outer_(innermost()) {
  innermost() = this;
  if (torchs == TorchDraws::ByPlace) operators_.emplace(key_of_draws());
}

DrawScope::~DrawScope() { innermost() = outer_; }

DrawScope* DrawScope::current() { return innermost(); }
void DrawScope::set_current(DrawScope* scope) { innermost() = scope; }

at::Generator& DrawScope::generator(c10::Device device) {
  const auto made = std::ranges::find(generators_, device, &OfDevice::device);
  if (made != generators_.end()) return made->generator;
  return generators_.emplace_back(device, make_generator(device, place_.key())).generator;
}

PieceScope::PieceScope(std::int64_t piece) {
  const DrawScope* const layer = DrawScope::current();
  if (layer == nullptr) return;
  DrawPlace place = layer->place();
  place.piece = piece;
  scope_.emplace(place, layer->own(), layer->torchs());
}

at::Generator& generator() {
  DrawScope* scope = DrawScope::current();
  if (scope == nullptr) {
    throw Error("random numbers are drawn outside of a stage's forward pass",
                {"nn::Dropout in a loop of your own needs an nn::DrawScope around the layer, with "
                 "the seed, step, microbatch and layer that the numbers depend on"});
  }
  return scope->generator(at::kCPU);
}

const DrawPlace& draw_place() {
  PENSTOCK_CHECK(DrawScope::current() != nullptr, "no layer is running");
  return DrawScope::current()->place();
}

}  // namespace penstock::nn
