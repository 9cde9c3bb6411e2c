// The layers of one stage, with their parameters and buffers.
//
// A Stage has one, and runs them.  Knows no microbatches and no activations.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/runtime/nn/model.h"
#include "penstock/runtime/stage/exchanges.h"

namespace penstock::stage {

struct NamedParameter {
  std::string name;  // "transformer.h.0.attn.c_attn.weight"; of a tied one, the first layer's.
  at::Tensor tensor;
};

// Tensors that layers or a loss depend on, require a gradient, and are no parameters.
enum class Leaves : std::uint8_t { Any, ParametersOnly };

// How a stage makes its layers, one by one, each in host memory.
struct Making {
  // Makes the layer of that number in the model; absent: nn::build_layer().
  std::function<nn::BuiltLayer(std::int64_t)> make = {};
  c10::Device device = at::kCPU;  // Device to which a layer goes when it has been made.
  // Type that its floating parameters and buffers get then.
  std::optional<at::ScalarType> type = {};
  Leaves leaves = Leaves::Any;  // ParametersOnly: others are an error (untrained.h).
  // The ranks that share the layers; null: nobody does.
  std::shared_ptr<Exchanges> exchanges = {};
  // Has the layer's parameters before the next layer is made: their memory may be elsewhere then.
  std::function<void(const std::vector<nn::ModelParameter>&)> after_layer = {};
};

class StageLayers {
 public:
  // Builds layers [first, end) of the model, each from (seed, its index).
  // Throws: ConfigError for ties that do not fit.
  StageLayers(const std::vector<nn::LayerSpec>& model, std::int64_t first, std::int64_t end,
              std::int64_t seed, const Making& making);

  const std::vector<std::shared_ptr<nn::Layer>>& all() const { return layers_; }
  std::int64_t first() const { return first_; }
  std::int64_t end() const { return first_ + std::ssize(layers_); }

  // The trainable ones, in layer order.
  const std::vector<NamedParameter>& trained() const { return trained_; }
  // The frozen ones.
  const std::vector<NamedParameter>& frozen() const { return frozen_; }
  // Whether trained()[i] is a copy of a parameter that an earlier layer has, too (nn/model.h).
  bool is_copy(std::size_t i) const { return is_copy_[i]; }
  // Number of trained parameters that are no copies, by layer.
  const std::vector<std::int64_t>& trained_per_layer() const { return trained_per_layer_; }
  // Everything a checkpoint holds: all parameters but copies, frozen ones too, and buffers.
  const std::vector<NamedParameter>& state() const { return state_; }
  std::vector<at::Tensor> buffers() const;
  // Parameters that layers share with other layers.
  const std::vector<nn::TiedParameter>& tied() const { return tied_; }
  // Cuts of the parameters of which other ranks have other parts, by the parameters' names.
  const nn::Cuts& cuts() const { return cuts_; }

  // Whether a backward of any of them needs torch's engine, and whether all of them have two halves
  // (nn/layer.h).  Asked at every backward: a layer may learn it in its first forward.
  bool need_engine() const;
  bool split_backward() const;

 private:
  void add(const std::vector<nn::LayerSpec>& model, std::int64_t index, std::int64_t seed,
           const Making& making);

  std::int64_t first_;
  std::vector<std::shared_ptr<nn::Layer>> layers_;
  bool may_need_engine_ = false;  // Some did when they were built; others never will.
  std::vector<NamedParameter> trained_;
  std::vector<NamedParameter> frozen_;
  std::vector<bool> is_copy_;  // Copies among the trained parameters.
  std::vector<std::int64_t> trained_per_layer_;
  std::vector<NamedParameter> state_;
  std::vector<nn::TiedParameter> tied_;
  nn::Cuts cuts_;
};

}  // namespace penstock::stage
