// A loss that is a module, as the last layer of the model.
//
// So its parameters are the model's: trained, placed by ZeRO, saved, compared and counted in the
// norm.  The Trainer adds it to the layers of its user, and takes the loss from it on the ranks of
// the last stage.  Knows no stages: stage/ makes it and runs the layers before it.
#pragma once
#include <memory>
#include <vector>

#include "penstock/nn/layer.h"

namespace penstock::nn {

// Its name; parameters are "loss.PARAMETER".
inline constexpr const char* kLossLayer = "loss";

// `layers`, and behind them that of `loss`, if it is of a module.
std::vector<LayerSpec> with_loss(std::vector<LayerSpec> layers, const Loss& loss);

// How many of the layers values pass: all but a loss's.
std::int64_t layers_in_line(const std::vector<LayerSpec>& model);

// The loss of `layer`, which was made from the spec that with_loss() has added for `loss`.
Loss loss_of(std::shared_ptr<Layer> layer, const Loss& loss);

}  // namespace penstock::nn
