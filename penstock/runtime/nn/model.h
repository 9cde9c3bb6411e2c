// A whole model as a list of layers: what holds between them.
//
// The Trainer checks a model with it, stage/ builds its layers.  Knows no stages: ties and skips
// are said layer by layer, and mean the same wherever stages begin.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "penstock/nn/layer.h"

namespace penstock::nn {

// Throws: ConfigError that lists what is wrong: a layer's name twice, a skip that is given twice,
// taken before it is given or never, a key that ties only one layer, or one twice, and a module
// that two layers are given which are not tied.
void check_model(const std::vector<LayerSpec>& model);

// Layers that are tied to a key, by key, in the order of the model.
std::map<std::string, std::vector<std::int64_t>> tied_layers(const std::vector<LayerSpec>& model);

// A layer's copy of a parameter that several layers share.
struct TiedParameter {
  at::Tensor copy;
  std::string name;                  // "transformer.wte.weight": of the first of the layers.
  std::int64_t layer = 0;            // The layer that has this copy.
  std::vector<std::int64_t> layers;  // Layers that share it, in the order of the model.

  bool is_first() const { return layer == layers.front(); }
};

struct BuiltLayer {
  std::shared_ptr<Layer> layer;
  std::vector<TiedParameter> tied;  // Sorted by key, then as the layer names them.
};

// What becomes of a layer that was made to be counted.
enum class AfterCount : std::uint8_t { Keep, Drop };

// Makes the layers of a rank, each by one call of its function, which may read files.
class LayerMaker {
 public:
  // `model` outlives it.
  LayerMaker(const std::vector<LayerSpec>& model, std::int64_t seed, const Making& making = {})
      : model_(model), seed_(seed), making_(making) {}

  // Says which share of weights the rank has, where that is not known before.
  void share(const partition::Share& share, std::optional<std::int64_t> blocks) {
    making_.share = share;
    making_.blocks = blocks;
  }

  // The trainable elements of a layer, which is made for that.
  std::int64_t count(std::int64_t index, AfterCount after);

  // Says which layers are the rank's: what was kept of others goes.
  void begin(std::set<std::int64_t> mine);

  // build() of model[index], with tied parameters as the first of their layers makes them.  Where
  // that one is another rank's, its function is called here, too.
  // Throws: ConfigError for a tied parameter that a layer does not have, or has under two keys, and
  // for two that cannot be the same.
  BuiltLayer make(std::int64_t index);

  // Trainable elements of each layer that was made here.
  const std::map<std::int64_t, std::int64_t>& trainable_elements() const { return elements_; }

 private:
  struct Named {
    std::string name;
    at::Tensor tensor;
    partition::Cut cut = {};
  };
  const LayerSpec& spec(std::int64_t index) const;
  std::shared_ptr<Layer> take(std::int64_t index);
  std::vector<Named> tied_parameters(std::int64_t index, const Tie& tie, Layer& layer) const;
  void check_alike(const std::string& key, const std::vector<Named>& first,
                   const std::vector<Named>& other) const;
  void note_first(const Tie& tie, const std::vector<std::int64_t>& layers,
                  const std::vector<Named>& own);
  std::vector<Named> first_values(const Tie& tie, const std::vector<std::int64_t>& layers);

  const std::vector<LayerSpec>& model_;
  std::int64_t seed_;
  Making making_;
  std::set<std::int64_t> mine_;
  std::map<std::int64_t, std::int64_t> elements_;
  std::map<std::int64_t, std::shared_ptr<Layer>> kept_;
  // Values of ties with later layers, by key.
  std::map<std::string, std::vector<Named>> first_values_;
};

// Builds one layer alone.
BuiltLayer build_layer(const std::vector<LayerSpec>& model, std::int64_t seed, std::int64_t index,
                       const Making& making = {});

// A layer's parameter as the model knows it.
struct ModelParameter {
  std::string name;  // "LAYER.PARAMETER", or that of the tied one.
  at::Tensor tensor;
  partition::Cut cut = {};
  bool is_tied = false;
  bool is_copy = false;  // It is an earlier layer's.
};

// The parameters of a built layer, in its order; `layer_name` is that of its LayerSpec.
std::vector<ModelParameter> parameters_of(const BuiltLayer& built, const std::string& layer_name);

}  // namespace penstock::nn
