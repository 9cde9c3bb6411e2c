#include "penstock/runtime/stage/stage_layers.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "penstock/core/text.h"
#include "penstock/runtime/nn/convert.h"

namespace penstock::stage {

StageLayers::StageLayers(const std::vector<nn::LayerSpec>& model, std::int64_t first,
                         std::int64_t end, std::int64_t seed, const Making& making)
    : first_(first) {
  for (std::int64_t i = first; i < end; ++i) add(model, i, seed, making);
}

void StageLayers::add(const std::vector<nn::LayerSpec>& model, std::int64_t index,
                      std::int64_t seed, const Making& making) {
  nn::BuiltLayer built = making.make ? making.make(index) : nn::build_layer(model, seed, index);
  if (!making.device.is_cpu()) built.layer->to(making.device);
  if (making.type && !built.layer->keeps_types()) nn::convert(*built.layer, *making.type);
  const std::string& layer_name = model[static_cast<std::size_t>(index)].meta.name;
  const std::vector<nn::ModelParameter> parameters = nn::parameters_of(built, layer_name);
  trained_per_layer_.push_back(0);
  for (const nn::ModelParameter& each : parameters) {
    if (!each.is_copy) state_.push_back({each.name, each.tensor});
    if (!each.cut.is_whole()) cuts_[each.name] = each.cut;
    if (!each.tensor.requires_grad()) {
      frozen_.push_back({each.name, each.tensor});
      continue;
    }
    trained_.push_back({each.name, each.tensor});
    is_copy_.push_back(each.is_copy);
    if (!each.is_copy) ++trained_per_layer_.back();
  }
  for (const auto& buffer : built.layer->named_buffers()) {
    state_.push_back({str(layer_name, ".", buffer.key()), buffer.value()});
  }
  std::ranges::move(built.tied, std::back_inserter(tied_));
  may_need_engine_ |= built.layer->needs_engine();
  layers_.push_back(std::move(built.layer));
  if (making.after_layer) making.after_layer(parameters);
}

std::vector<at::Tensor> StageLayers::buffers() const {
  std::vector<at::Tensor> buffers;
  for (const auto& layer : layers_) {
    for (const at::Tensor& buffer : layer->buffers()) {
      if (buffer.defined()) buffers.push_back(buffer);
    }
  }
  return buffers;
}

bool StageLayers::need_engine() const {
  return may_need_engine_ &&
         std::ranges::any_of(layers_, [](const auto& layer) { return layer->needs_engine(); });
}

bool StageLayers::split_backward() const {
  return std::ranges::all_of(layers_, [](const auto& layer) { return layer->splits_backward(); });
}

}  // namespace penstock::stage
