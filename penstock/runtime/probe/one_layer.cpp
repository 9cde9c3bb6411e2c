#include "penstock/runtime/probe/one_layer.h"

#include <ATen/ops/zeros.h>

#include "penstock/runtime/nn/convert.h"

namespace penstock::probe {

OneLayer build_alone(const std::vector<nn::LayerSpec>& model, std::size_t index,
                     const Alone& alone) {
  const auto number = static_cast<std::int64_t>(index);
  nn::Making making{.device = alone.device};
  if (alone.exchanges) making.share = alone.exchanges->share();
  nn::BuiltLayer built = nn::build_layer(model, alone.seed, number, making);
  if (!alone.device.is_cpu()) built.layer->to(alone.device);  // Some are made in host memory.
  const bool converts = alone.type != at::kFloat && !built.layer->keeps_types();
  if (converts) nn::convert(*built.layer, alone.type);
  auto parts = std::make_shared<const stage::LayerParts>(
      stage::layer_parts(model, number, {built.layer}, alone.exchanges, /*untrained=*/nullptr));
  return {.built = std::move(built), .parts = std::move(parts)};
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
