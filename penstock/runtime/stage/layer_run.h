// Consecutive layers of the model, run one after the other, with the skip connections that start
// in, end in or pass them.  Of layers that ranks share, also some of their pieces.
//
// segment.h runs one.  Knows no gradients and no exchanges.
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

// A place between layers, or between pieces of a layer.
struct Bound {
  std::int64_t layer = 0;  // The layer behind it.
  std::size_t piece = 0;   // The piece behind it: of a layer that is whole, its only one.
};

class LayerRun {
 public:
  // `layers` are those of `model` from number `first` on.  `untrained`, unless it is null, looks at
  // the first graph of each step.
  LayerRun(const std::vector<nn::LayerSpec>& model, std::int64_t first,
           std::vector<std::shared_ptr<nn::Layer>> layers,
           std::shared_ptr<Untrained> untrained = nullptr);
  // The same of layers that run in pieces, where they have any: from `first` to `end`, which may be
  // inside of layers.  `layers` are all of which there is something between the two.
  LayerRun(const std::vector<nn::LayerSpec>& model, Bound first, Bound end,
           std::vector<std::shared_ptr<nn::Layer>> layers, std::shared_ptr<Untrained> untrained);

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
  // How many skips come before the values behind the last layer, or piece.
  std::size_t skips_behind() const { return outgoing_.size(); }
  const std::vector<std::shared_ptr<nn::Layer>>& layers() const { return layers_; }

 private:
  // The pieces of a layer that run here.
  struct Pieces {
    std::size_t first = 0;
    std::size_t end = 0;
  };
  void note_skips(const std::vector<nn::LayerSpec>& model, Bound first, Bound end);
  bool begins(std::size_t i) const { return pieces_[i].first == 0; }
  bool ends(std::size_t i) const;
  nn::Values run_layer(std::size_t i, const nn::Values& inputs, nn::DrawPlace place,
                       const Notes& notes) const;
  nn::Values run_piece(std::size_t i, std::size_t piece, const nn::Values& inputs,
                       nn::DrawPlace place, const Notes& notes) const;
  template <class Forward>
  nn::Values compute(std::size_t i, const nn::DrawPlace& place, const Notes& notes,
                     const Forward& forward) const;
  nn::Values run_with_skips(const nn::Values& inputs, const nn::DrawPlace& place,
                            const Notes& notes) const;
  std::string name_of(std::size_t layer) const;

  std::int64_t first_ = 0;
  std::vector<nn::LayerSpec> specs_;
  std::vector<std::shared_ptr<nn::Layer>> layers_;
  std::vector<Pieces> pieces_;  // Pieces by layer; empty: layers are whole.
  std::shared_ptr<Untrained> untrained_;
  bool has_skips_ = false;
  std::vector<std::string> incoming_;  // Skips, by name.
  std::vector<std::string> outgoing_;
};

}  // namespace penstock::stage
