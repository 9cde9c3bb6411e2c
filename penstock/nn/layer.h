// A layer of a pipeline model, and the recipe that makes it.
//
// Users list LayerSpecs; a rank builds only the layers of its own stages, each from a seed of its
// own, so that initial weights are the same bits in every layout.  Where sizes decide on stages and
// nobody has said them, the rank that seems to have a layer makes it for that.  Knows no stages.
// Shapes: [microbatch, ...] in and out.  What one layer returns is what the next one gets, and may
// cross a stage boundary: one tensor, or any tuple of them (docs/models.md).
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "penstock/nn/draw.h"
#include "penstock/nn/loss.h"
#include "penstock/nn/values.h"
#include "penstock/partition/layer_meta.h"

namespace penstock::nn {

// Overrides one of the two.
class Layer : public torch::nn::Module {
 public:
  // Of a layer that maps one tensor to one tensor.
  // Throws: Error for a layer that does not.
  virtual at::Tensor forward(const at::Tensor& input);
  // Of any layer.  By default forward() of the only tensor.
  virtual Values forward_values(const Values& inputs);

  // The module that computes, where that is another one: its train() and eval() are what counts.
  virtual torch::nn::Module& computing() { return *this; }

  // What torch's operators draw from while it runs.
  virtual TorchDraws torch_draws() const { return TorchDraws::ByPlace; }

  // Whether its backward runs code that asks torch's engine where it is: Python's hooks do.
  virtual bool needs_engine() const { return false; }
  // Whether its backward has two halves; where not, the first does the work of both.  Asked at
  // every backward: a layer may learn it in its first forward.
  virtual bool splits_backward() const { return true; }
};

inline constexpr std::int64_t kNotCounted = -1;

// Parameters that the layer has in common with all layers that have the key.
struct Tie {
  std::string key;
  std::vector<std::string> parameters;  // The layer's names for them; empty: all that it has.
};

struct LayerSpec {
  partition::LayerMeta meta;  // meta.parameters may be kNotCounted: see count_parameters().
  std::function<std::shared_ptr<Layer>()> make;
  std::vector<Tie> ties;
  std::vector<std::string> given;
  std::vector<std::string> taken;

  // A skip connection: its output, one tensor, goes to the next layer, and to every later one that
  // takes `name`, whatever stages those are in.
  LayerSpec gives(std::string name) &&;
  // What was given as `name` is appended to its inputs.
  LayerSpec takes(std::string name) &&;
};

// A layer whose parameters, all or those named, are also those of the other layers with `key`: the
// first named by one is the first named by every other.  There is one weight, as the first of the
// layers makes it, and its gradient is the sum over all of them, whatever stages they are in.
struct TiedLayerSpec : LayerSpec {
  TiedLayerSpec(std::string key, LayerSpec layer, std::vector<std::string> parameters = {});
};

// Makes the layer with torch's default generator seeded from (seed, index) for the time of the
// call; the generator's own state is put back.  The same arguments give the same bits on every
// rank; knows no ties (model.h does). Thread safety: calls take turns.
std::shared_ptr<Layer> build(const LayerSpec& spec, std::int64_t seed, std::int64_t index);

// Of its parameters, those that require a gradient.
std::int64_t trainable_elements(const Layer& layer);
// Fills in the parameter counts that are not known yet, by building those layers one at a time.
void count_parameters(std::vector<LayerSpec>& layers);

// "Linear" for torch::nn::LinearImpl: what `type:REGEX` partitioning sees.
std::string type_name(const std::type_info& type);

partition::ModelMeta meta_of(const std::vector<LayerSpec>& layers);

// Converts to a tensor, and so not to Values: what takes it, takes a tensor.
struct OnlyATensor {
  operator const at::Tensor&() const;  // NOLINT: declared only.
};

template <class Module>
concept TakesATensor = requires(Module& module, OnlyATensor tensor) { module.forward(tensor); };

// Wraps any module that maps a tensor or Values to a tensor, a std::tuple of tensors or Values,
// held by a torch::nn::ModuleHolder or a std::shared_ptr.  Its parameters keep their own names.
template <class Holder>
class Wrapped : public Layer {
  using Module = std::remove_reference_t<decltype(*std::declval<Holder&>())>;

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
  at::Tensor forward(const at::Tensor& input) override {
    return the_only(forward_values(input), "the result of this layer's forward()");
  }
  Values forward_values(const Values& inputs) override {
    if constexpr (TakesATensor<Module>) {
      return as_values(module_->forward(the_only(inputs, "a layer of a tensor")));
    } else {
      return as_values(module_->forward(inputs));
    }
  }
  torch::nn::Module& computing() override { return *module_; }
  void train(bool on = true) override {
    Layer::train(on);
    module_->train(on);
  }

 private:
  static Values as_values(Values values) { return values; }
  template <class... Tensors>
  static Values as_values(const std::tuple<Tensors...>& tensors) {
    return std::apply([](const auto&... each) { return Values{each...}; }, tensors);
  }

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

// A layer from a function that makes a module or a Layer, called once on each rank that has it, and
// each time of new memory (docs/models.md#memory-of-a-layer):
// layer("mlp", [] { return torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::ReLU()); }).
template <class Make>
  requires(!ModuleHolder<Make>) && std::invocable<const Make&>
LayerSpec layer(std::string name, Make make) {
  using Holder = std::invoke_result_t<const Make&>;
  using Contained = std::remove_reference_t<decltype(*std::declval<Holder&>())>;
  LayerSpec spec{.meta = {std::move(name), type_name(typeid(Contained)), kNotCounted}};
  if constexpr (std::derived_from<Contained, Layer>) {
    spec.make = std::move(make);
  } else {
    spec.make = [make] { return std::make_shared<Wrapped<Holder>>(make()); };
  }
  return spec;
}

}  // namespace penstock::nn
