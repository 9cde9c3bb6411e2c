// A layer of a pipeline model, and the recipe that makes it.
//
// Users list LayerSpecs.  A rank builds only the layers of its own stages, each from a seed of its
// own, so that initial weights have the same bits in every layout.  Where sizes decide on stages
// and nobody has said them, the rank that seems to have a layer makes it for that.  Knows no
// stages.
// Shapes: [microbatch, ...] in and out.  What one layer returns is what the next one gets, and may
// cross a stage boundary: one tensor, or any tuple of them (docs/models.md).
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "penstock/plan/partition/layer_meta.h"
#include "penstock/runtime/nn/callable.h"
#include "penstock/runtime/nn/draw.h"
#include "penstock/runtime/nn/loss.h"
#include "penstock/runtime/nn/making.h"
#include "penstock/runtime/nn/values.h"

namespace penstock::nn {

// Overrides one of the two.
class Layer : public CutModule {
 public:
  // Runs a layer that maps one tensor to one tensor.
  // Throws: Error for a layer that does not.
  virtual at::Tensor forward(const at::Tensor& input);
  // Runs any layer; by default forward() of the only tensor.
  virtual Values forward_values(const Values& inputs);

  // Runs a piece (LayerMeta::pieces) of a layer whose weights ranks share, on what this rank has of
  // the piece's values, and returns what it has of those that the piece gives.
  // Throws: Error for a layer without pieces.
  virtual Values forward_piece(std::size_t piece, const Values& values);

  // The module that computes, where that is another one: its train() and eval() are what counts.
  virtual torch::nn::Module& computing() { return *this; }

  // Whether its parameters keep their types where a run has a short one.
  virtual bool keeps_types() const { return false; }

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
  std::string key = {};
  std::vector<std::string> parameters = {};  // The layer's names for them; empty: all that it has.
};

// The function that makes a layer: of a Making, or of nothing where every rank has all weights.
class MakeLayer {
 public:
  MakeLayer() = default;
  template <class F>
    requires(!std::same_as<F, MakeLayer>)
  MakeLayer(F make) {  // NOLINT: functions are meant to convert.
    if constexpr (std::invocable<F&>) {
      make_ = [make = std::move(make)](const Making&) mutable -> std::shared_ptr<Layer> {
        return make();
      };
    } else {
      make_ = std::move(make);
    }
  }

  std::shared_ptr<Layer> operator()(const Making& making = {}) const { return make_(making); }

 private:
  std::function<std::shared_ptr<Layer>(const Making&)> make_;
};

struct LayerSpec {
  partition::LayerMeta meta = {};  // meta.parameters may be kNotCounted: see count_parameters().
  MakeLayer make = {};
  std::vector<Tie> ties = {};
  std::vector<std::string> given = {};
  std::vector<std::string> taken = {};
  // It computes the loss (loss_layer.h): it comes last, and no value passes it.
  bool is_loss = false;
  // The module that `make` returns copies of, or itself where there are none; null: it makes one.
  std::shared_ptr<torch::nn::Module> copied = {};

  // A skip connection: its output, one tensor, goes to the next layer, and to every later one that
  // takes `name`, whatever stages those are in.
  LayerSpec gives(std::string name) &&;
  // What was given as `name` is appended to its inputs.
  LayerSpec takes(std::string name) &&;
};

// A layer whose parameters, all or those named, are also those of the other layers with `key`: the
// first named by one is the first named by every other.  There is one weight, as the first of the
// layers makes it.  Its gradient is the sum over all of them, whatever stages they are in.
struct TiedLayerSpec : LayerSpec {
  TiedLayerSpec(std::string key, LayerSpec layer, std::vector<std::string> parameters = {});
};

// Makes the layer with torch's default generator seeded from (seed, index) for the time of the
// call; the generator's own state is put back.  The same arguments give the same bits on every
// rank; knows no ties (model.h does). Thread safety: calls take turns.
std::shared_ptr<Layer> build(const LayerSpec& spec, std::int64_t seed, std::int64_t index,
                             const Making& making = {});

// The elements of those parameters that require a gradient, with the parts that other ranks have.
std::int64_t trainable_elements(const Layer& layer);
// Fills in the parameter counts that are not known yet, by building those layers one at a time.
void count_parameters(std::vector<LayerSpec>& layers);

// "Linear" for torch::nn::LinearImpl: what `type:REGEX` partitioning sees.
std::string type_name(const std::type_info& type);

partition::ModelMeta meta_of(const std::vector<LayerSpec>& layers);

// A layer that computes with a module of another class, or with a function alone.
class Wrapped : public Layer {
 public:
  using Run = std::function<Values(const Values&)>;

  // Parameters, buffers and modules of `module` keep their names; null: there are none.
  Wrapped(std::shared_ptr<torch::nn::Module> module, Run run);
  at::Tensor forward(const at::Tensor& input) override;
  Values forward_values(const Values& inputs) override { return run_(inputs); }
  torch::nn::Module& computing() override;
  void train(bool on = true) override;

 private:
  std::shared_ptr<torch::nn::Module> module_;
  Run run_;
};

template <class Function>
std::shared_ptr<Layer> wrapped(std::shared_ptr<torch::nn::Module> module, Function function) {
  static_assert(callable::OfTensors<Function>,
                "penstock: a layer is a torch::nn module with a public forward(), or a function; "
                "either takes tensors, also in optionals, pairs, tuples and arrays, or all as "
                "penstock::nn::Values or a std::vector, and returns some; penstock/nn/layer.h");
  if constexpr (callable::OfTensors<Function>) {
    return std::make_shared<Wrapped>(
        std::move(module), [function = std::move(function)](const Values& inputs) mutable {
          return callable::call<Values>(function, inputs, "this layer");
        });
  } else {
    return nullptr;
  }
}

// The layer of a module whose class only a run can tell.
// Throws: Error, unless it is a Layer or a torch::nn::Sequential: forward() is not virtual.
std::shared_ptr<Layer> layer_of_base(std::shared_ptr<torch::nn::Module> module);

// The layer of a module, a pointer to one, a holder of one, or a function of tensors.
template <class Thing>
std::shared_ptr<Layer> layer_of(Thing thing) {
  if constexpr (callable::AModule<Thing>) {
    auto handle = callable::handle_of(std::move(thing));
    using Handle = decltype(handle);
    if constexpr (std::convertible_to<Handle, std::shared_ptr<Layer>>) {
      return handle;
    } else if constexpr (std::same_as<Handle, std::shared_ptr<torch::nn::Module>>) {
      return layer_of_base(std::move(handle));
    } else {
      return wrapped(callable::module_of(handle), callable::function_of(handle));
    }
  } else {
    return wrapped(nullptr, callable::with_default_options(std::move(thing)));
  }
}

// type_name() of what `Thing` holds.
template <class Thing>
std::string type_of() {
  if constexpr (callable::Holder<Thing>) {
    return type_name(typeid(typename Thing::ContainedType));
  } else if constexpr (callable::Pointer<Thing>) {
    return type_name(typeid(typename Thing::element_type));
  } else if constexpr (callable::AModule<Thing>) {
    return type_name(typeid(Thing));
  } else {
    return "Function";
  }
}

// A function that makes a module with a share of its weights.
template <class F>
concept MakesShare = std::same_as<callable::Parameters<F>, std::tuple<const Making&>>;

// A layer from
// - a function of nothing, or of a const Making&, that makes a module, called once on each rank
//   that has it, and each time of new memory (docs/models.md#memory-of-a-layer):
//   layer("mlp", [] { return torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::ReLU()); })
// - a function of tensors: layer("flatten", [](const at::Tensor& x) { return x.flatten(1); })
// - a module: layer("fc", linear).  Each rank that needs it gets a copy by clone(), with the values
//   of `linear`, which is not trained itself.  One whose class does not derive from
//   torch::nn::Cloneable cannot be copied, and is for the one rank that needs it.
// A module is one of torch's or of your own, as itself, a holder such as torch::nn::Linear, a
// std::shared_ptr or std::unique_ptr, or a torch::nn::AnyModule.
template <class Thing>
LayerSpec layer(std::string name, Thing thing) {
  LayerSpec spec{.meta = {std::move(name), type_of<Thing>(), kNotCounted}};
  if constexpr (callable::AModule<Thing>) {
    auto handle = callable::handle_of(std::move(thing));
    spec.copied = callable::module_of(handle);
    spec.make = [handle = std::move(handle)] { return layer_of(callable::copy_of(handle)); };
  } else if constexpr (callable::Maker<Thing>) {
    spec.meta.type = type_of<std::invoke_result_t<Thing&>>();
    spec.make = [make = std::move(thing)]() mutable { return layer_of(make()); };
  } else if constexpr (MakesShare<Thing>) {
    spec.meta.type = type_of<std::invoke_result_t<Thing&, const Making&>>();
    spec.make = [make = std::move(thing)](const Making& making) mutable {
      return layer_of(make(making));
    };
  } else {
    spec.meta.parameters = 0;
    spec.make = [function = std::move(thing)] { return layer_of(function); };
  }
  return spec;
}

// A layer from a class of modules and its arguments: layer<torch::nn::Linear>("fc", 8, 16).  With
// modules among these it is made once, and is a module as above.
template <class Module, class... Args>
  requires(sizeof...(Args) != 1 || !(std::same_as<Module, Args> && ...))
LayerSpec layer(std::string name, Args... args) {
  constexpr bool kMakes = callable::Makes<Module, Args...>;
  static_assert(kMakes,
                "penstock: layer<Module>(name, arguments) takes a class that derives from "
                "torch::nn::Module, or a holder of one such as torch::nn::Linear, and arguments of "
                "its constructor; penstock/nn/layer.h");
  if constexpr (!kMakes) {
    return {};
  } else if constexpr ((callable::AModule<Args> || ...)) {
    return layer(std::move(name), callable::made<Module>(args...));
  } else {
    return layer(std::move(name), [args...] { return callable::made<Module>(args...); });
  }
}

}  // namespace penstock::nn
