// A layer of a pipeline model, and the recipe that makes it.
//
// Users list LayerSpecs; a rank builds only the layers of its own stages, each from a seed of its
// own, so that initial weights are the same bits in every layout.  Knows no stages.
// Shapes: [microbatch, ...] in and out; one floating tensor crosses a stage boundary.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "penstock/model/layer_meta.h"

namespace penstock::nn {

class Layer : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& input) = 0;
};

// The loss of one microbatch: a scalar, the mean over the microbatch's samples.
using Loss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

inline constexpr std::int64_t kNotCounted = -1;

struct LayerSpec {
  model::LayerMeta meta;  // meta.parameters may be kNotCounted: see count_parameters().
  std::function<std::shared_ptr<Layer>()> make;
};

// Makes the layer with torch's default generator seeded from (seed, index) for the time of the
// call; the generator's own state is put back.  The same arguments give the same bits on every
// rank. Thread safety: calls take turns.
std::shared_ptr<Layer> build(const LayerSpec& spec, std::int64_t seed, std::int64_t index);

// Fills in the parameter counts that are not known yet, by building those layers one at a time.
void count_parameters(std::vector<LayerSpec>& layers);

// "Linear" for torch::nn::LinearImpl: what `type:REGEX` partitioning sees.
std::string type_name(const std::type_info& type);

model::ModelMeta meta_of(const std::vector<LayerSpec>& layers);

// Wraps any module that maps a tensor to a tensor, held by a torch::nn::ModuleHolder or a
// std::shared_ptr.  Its parameters keep their own names.
template <class Holder>
class Wrapped : public Layer {
 public:
  explicit Wrapped(Holder module) : module_(std::move(module)) {
    for (const auto& parameter : module_->named_parameters(/*recurse=*/false)) {
      register_parameter(parameter.key(), parameter.value(), parameter.value().requires_grad());
    }
    for (const auto& buffer : module_->named_buffers(/*recurse=*/false)) {
      register_buffer(buffer.key(), buffer.value());
    }
    for (const auto& child : module_->named_children()) register_module(child.key(), child.value());
  }
  at::Tensor forward(const at::Tensor& input) override { return module_->forward(input); }
  void train(bool on = true) override {
    Layer::train(on);
    module_->train(on);
  }

 private:
  Holder module_;
};

template <class T>
concept ModuleHolder = requires { typename T::ContainedType; };

// A layer from a torch::nn module and its arguments: layer<torch::nn::Linear>("fc", 8, 16).
template <ModuleHolder Module, class... Args>
LayerSpec layer(std::string name, const Args&... args) {
  static_assert(!(ModuleHolder<Args> || ...),
                "a module made here would be shared by all ranks and not seeded: give layer() a "
                "function that makes it");
  return {.meta = {std::move(name), type_name(typeid(typename Module::ContainedType)), kNotCounted},
          .make = [=] { return std::make_shared<Wrapped<Module>>(Module(args...)); }};
}

// A layer from a function that makes a module, called once on each rank that needs it:
// layer("mlp", [] { return torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::ReLU()); }).
template <class Make>
  requires(!ModuleHolder<Make>) && std::invocable<const Make&>
LayerSpec layer(std::string name, Make make) {
  using Holder = std::invoke_result_t<const Make&>;
  using Contained = std::remove_reference_t<decltype(*std::declval<Holder&>())>;
  return {.meta = {std::move(name), type_name(typeid(Contained)), kNotCounted},
          .make = [make] { return std::make_shared<Wrapped<Holder>>(make()); }};
}

}  // namespace penstock::nn
