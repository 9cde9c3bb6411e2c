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

#include "penstock/nn/draw.h"
#include "penstock/nn/layer.h"

namespace penstock::stage {

class Untrained;

class LayerRun {
 public:
  // `layers` are those of `model` from number `first` on.  `untrained`, unless it is null, looks at
  // the first graph of each step.
  LayerRun(const std::vector<nn::LayerSpec>& model, std::int64_t first,
           std::vector<std::shared_ptr<nn::Layer>> layers,
           std::shared_ptr<Untrained> untrained = nullptr);

  // Random numbers are those of `place`, whose layer is set here; `own`, if any, notes generators
  // that layers have for themselves.
  // Throws: whatever a layer throws; Error for a skip that is changed in place on its way, and for
  // a layer that gives one and returns several tensors.
  nn::Values operator()(const nn::Values& inputs, const nn::DrawPlace& place,
                        nn::OwnGenerators* own = nullptr) const;

  std::int64_t first() const { return first_; }
  const std::vector<std::shared_ptr<nn::Layer>>& layers() const { return layers_; }

 private:
  nn::Values run_layer(std::size_t i, const nn::Values& inputs, nn::DrawPlace place,
                       nn::OwnGenerators* own) const;
  nn::Values compute(std::size_t i, const nn::Values& inputs, const nn::DrawPlace& place,
                     nn::OwnGenerators* own) const;
  nn::Values run_with_skips(const nn::Values& inputs, const nn::DrawPlace& place,
                            nn::OwnGenerators* own) const;

  std::int64_t first_ = 0;
  std::vector<nn::LayerSpec> specs_;
  std::vector<std::shared_ptr<nn::Layer>> layers_;
  std::shared_ptr<Untrained> untrained_;
  bool has_skips_ = false;
  std::vector<std::string> incoming_;  // Skips, by name.
  std::vector<std::string> outgoing_;
};

}  // namespace penstock::stage
