#include "penstock/runtime/nn/loss_layer.h"

#include "penstock/core/check.h"

namespace penstock::nn {
namespace {

class LossLayer : public Wrapped {
 public:
  LossLayer(MadeLoss made, bool keeps_types)
      : Wrapped(std::move(made.module), [](const Values& inputs) { return inputs; }),
        function_(std::move(made.function)),
        keeps_types_(keeps_types) {}
  bool keeps_types() const override { return keeps_types_; }
  at::Tensor loss(const Values& outputs, const Values& targets) const {
    return function_(outputs, targets);
  }

 private:
  LossFunction function_;
  bool keeps_types_ = false;
};

}  // namespace

std::vector<LayerSpec> with_loss(std::vector<LayerSpec> layers, const Loss& loss) {
  if (!loss.is_of_module()) return layers;
  layers.push_back(
      {.meta = {kLossLayer, "Loss", kNotCounted},
       .make = [loss] { return std::make_shared<LossLayer>(loss.make(), !loss.takes_any_type()); },
       .is_loss = true,
       .copied = loss.copied()});
  return layers;
}

std::int64_t layers_in_line(const std::vector<LayerSpec>& model) {
  return std::ssize(model) - (!model.empty() && model.back().is_loss ? 1 : 0);
}

Loss loss_of(std::shared_ptr<Layer> layer, const Loss& loss) {
  auto computes = std::dynamic_pointer_cast<LossLayer>(std::move(layer));
  PENSTOCK_CHECK(computes != nullptr, "the last layer is no loss's");
  Loss bound = [computes](const Values& outputs, const Values& targets) {
    return computes->loss(outputs, targets);
  };
  return loss.takes_any_type() ? std::move(bound).of_any_type() : bound;
}

}  // namespace penstock::nn
