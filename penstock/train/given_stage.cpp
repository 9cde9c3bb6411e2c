#include "penstock/train/given_stage.h"

#include <memory>
#include <utility>

#include "penstock/nn/layer.h"

namespace penstock::train {
namespace {

// A layer that has one parameter.
class GivenParameter : public nn::Layer {
 public:
  GivenParameter(std::string name, const at::Tensor& tensor) {
    register_parameter(std::move(name), tensor, tensor.requires_grad());
  }
};

}  // namespace

stage::Stage stage_of(const std::vector<stage::NamedParameter>& parameters) {
  std::vector<nn::LayerSpec> model;
  for (const stage::NamedParameter& each : parameters) {
    const std::size_t dot = each.name.rfind('.');
    model.push_back({.meta = {.name = each.name.substr(0, dot), .type = "Parameter"},
                     .make = [name = each.name.substr(dot + 1), tensor = each.tensor] {
                       return std::make_shared<GivenParameter>(name, tensor);
                     }});
  }
  return {StageId(0),        model,
          /*first_layer=*/0, std::ssize(model),
          /*seed=*/0,        std::make_shared<stage::ActivationCount>()};
}

}  // namespace penstock::train
