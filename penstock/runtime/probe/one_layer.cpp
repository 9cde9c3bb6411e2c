#include "penstock/runtime/probe/one_layer.h"

#include <ATen/ops/zeros.h>

#include <memory>

#include "penstock/runtime/nn/convert.h"
#include "penstock/runtime/stage/layer_run.h"

namespace penstock::probe {

OneLayer build_alone(const std::vector<nn::LayerSpec>& model, std::size_t index, std::int64_t seed,
                     at::ScalarType type) {
  const auto number = static_cast<std::int64_t>(index);
  nn::BuiltLayer built = nn::build_layer(model, seed, number);
  if (type != at::kFloat) nn::convert(*built.layer, type);
  const auto run = std::make_shared<const stage::LayerRun>(model, number, std::vector{built.layer});
  return {.built = std::move(built), .function = [run, seed](const nn::Values& values) {
            return (*run)(values, {.seed = seed});
          }};
}

Likeness likeness_of(const nn::LayerSpec& spec, const nn::Form& inputs) {
  return {spec.meta.type, spec.meta.parameters, spec.ties.size(), inputs};
}

nn::Values gradients_of(const nn::Values& outputs) {
  nn::Values gradients;
  for (const at::Tensor& output : outputs) {
    const bool takes_one = output.defined() && output.requires_grad();
    gradients.push_back(takes_one ? at::zeros(output.sizes(), output.options().requires_grad(false))
                                  : at::Tensor());
  }
  return gradients;
}

}  // namespace penstock::probe
