// Consecutive layers of the model, run one after the other, with the skip connections that start
// in, end in or pass them.
//
// segment.h runs one.  Knows no gradients.
// Shapes: what comes in and goes out is the skips that cross there, one tensor each, then what the
// layers themselves hand on.  So a skip crosses every stage between its ends with the other values
// of the hop: it has no message of its own (docs/models.md has the price).
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "penstock/nn/layer.h"
#include "penstock/runtime/nn/draw.h"
#include "penstock/runtime/stage/backward.h"

namespace penstock::stage {

class Untrained;

// Torch's number of the next node as each layer began, and as the last one ended: nodes of a graph
// are numbered as they are made.
using LayerMarks = std::vector<std::uint64_t>;

// What a pass notes, each unless it is null.
struct Notes {
  nn::OwnGenerators* generators = nullptr;  // Generators that layers have for themselves.
  LayerMarks* marks = nullptr;  // Marks that tell which layer makes which nodes of the graph.
};

class LayerRun {
 public:
  // `layers` are those of `model` from number `first` on.  `untrained`, unless it is null, looks at
  // the first graph of each step.
  LayerRun(const std::vector<nn::LayerSpec>& model, std::int64_t first,
           std::vector<std::shared_ptr<nn::Layer>> layers,
           std::shared_ptr<Untrained> untrained = nullptr);

  // Random numbers are those of `place`, whose layer is set here.
  // Throws: Error that names the layer, for whatever it throws; Error for a skip that is changed in
  // place on its way, and for a layer that gives one and returns several tensors.
  nn::Values operator()(const nn::Values& inputs, const nn::DrawPlace& place,
                        const Notes& notes = {}) const;

  // "layer "fc"": what made the node that failed, of a graph with these leaves for the inputs; "the
  // loss", behind the layers.
  std::string maker_of(const NodeFailure& failure, const nn::Values& inputs,
                       const LayerMarks& marks) const;

  std::int64_t first() const { return first_; }
  const std::vector<std::shared_ptr<nn::Layer>>& layers() const { return layers_; }

 private:
  nn::Values run_layer(std::size_t i, const nn::Values& inputs, nn::DrawPlace place,
                       const Notes& notes) const;
  nn::Values compute(std::size_t i, const nn::Values& inputs, const nn::DrawPlace& place,
                     const Notes& notes) const;
  nn::Values run_with_skips(const nn::Values& inputs, const nn::DrawPlace& place,
                            const Notes& notes) const;
  std::string name_of(std::size_t layer) const;

  std::int64_t first_ = 0;
  std::vector<nn::LayerSpec> specs_;
  std::vector<std::shared_ptr<nn::Layer>> layers_;
  std::shared_ptr<Untrained> untrained_;
  bool has_skips_ = false;
  std::vector<std::string> incoming_;  // Skips, by name.
  std::vector<std::string> outgoing_;
};

}  // namespace penstock::stage
