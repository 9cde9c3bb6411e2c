#include "penstock/nn/layer.h"

#include <c10/util/Type.h>
#include <torch/nn/modules/container/sequential.h>

#include "penstock/core/error.h"
#include "penstock/core/exception_text.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/torch_generator.h"

namespace penstock::nn {

at::Tensor Layer::forward(const at::Tensor&) {
  throw Error("this layer maps tuples: it has forward_values() only");
}

Values Layer::forward_values(const Values& inputs) {
  return forward(the_only(inputs, "a layer of a tensor"));
}

Values Layer::forward_piece(std::size_t piece, const Values&) {
  throw Error(penstock::str("this layer is told to run its piece ", piece, ", and has none"),
              {"a class of layers with pieces overrides forward_piece(); penstock/nn/layer.h"});
}

Wrapped::Wrapped(std::shared_ptr<torch::nn::Module> module, Run run)
    : module_(std::move(module)), run_(std::move(run)) {
  if (module_ == nullptr) return;
  take_cuts(*module_);
  for (const auto& parameter : module_->named_parameters(/*recurse=*/false)) {
    register_parameter(parameter.key(), parameter.value(), parameter.value().requires_grad());
  }
  for (const auto& buffer : module_->named_buffers(/*recurse=*/false)) {
    register_buffer(buffer.key(), buffer.value());
  }
  for (const auto& child : module_->named_children()) register_module(child.key(), child.value());
}

at::Tensor Wrapped::forward(const at::Tensor& input) {
  return the_only(forward_values(input), "the result of this layer's forward()");
}

torch::nn::Module& Wrapped::computing() {
  if (module_ == nullptr) return *this;
  return *module_;
}

void Wrapped::train(bool on) {
  Layer::train(on);
  if (module_ != nullptr) module_->train(on);
}

std::shared_ptr<Layer> layer_of_base(std::shared_ptr<torch::nn::Module> module) {
  if (auto layer = std::dynamic_pointer_cast<Layer>(module)) return layer;
  if (auto sequential = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(module)) {
    return layer_of(std::move(sequential));
  }
  if (module == nullptr) throw Error("it returns a null pointer");
  const torch::nn::Module& unknown = *module;
  const std::string type = type_name(typeid(unknown));
  throw Error(
      penstock::str("a layer is made of a std::shared_ptr<torch::nn::Module>, behind which "
                    "forward() of ",
                    type, " cannot be called"),
      {penstock::str("make it of a std::shared_ptr<", type, ">, or a torch::nn::AnyModule")});
}

namespace {

std::shared_ptr<Layer> made(const LayerSpec& spec, const Making& making) {
  try {
    if (std::shared_ptr<Layer> layer = spec.make(making)) return layer;
    throw Error("it returns a null pointer");
  } catch (...) {
    rethrow_from(str("the function that makes layer ", in_quotes(spec.meta.name)));
  }
}

}  // namespace

std::shared_ptr<Layer> build(const LayerSpec& spec, std::int64_t seed, std::int64_t index,
                             const Making& making) {
  const auto salt = static_cast<std::uint64_t>(index) * 0x9E3779B97F4A7C15u;
  const SeededTorchGenerator seeded(mix(mix(static_cast<std::uint64_t>(seed)) ^ salt));
  std::shared_ptr<Layer> layer = made(spec, making);
  // Torch's fused optimizers walk a weight and its gradient by address, whatever their strides.
  for (at::Tensor& parameter : layer->parameters()) {
    if (!parameter.is_contiguous()) parameter.set_data(parameter.detach().contiguous());
  }
  return layer;
}

std::int64_t trainable_elements(const Layer& layer) {
  const Cuts cuts = cuts_in(layer);
  std::int64_t elements = 0;
  for (const auto& each : layer.named_parameters()) {
    if (!each.value().requires_grad()) continue;
    elements += elements_of(
        partition::shape_of_whole(each.value().sizes().vec(), cut_of(cuts, each.key())));
  }
  return elements;
}

void count_parameters(std::vector<LayerSpec>& layers) {
  for (LayerSpec& spec : layers) {
    if (spec.meta.parameters != kNotCounted) continue;
    spec.meta.parameters = trainable_elements(*build(spec, 0, 0));
  }
}

std::string type_name(const std::type_info& type) {
  std::string name = c10::demangle(type.name());
  name = name.substr(0, name.find('<'));
  name = name.substr(name.rfind(':') + 1);
  if (name.size() > 4 && name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

partition::ModelMeta meta_of(const std::vector<LayerSpec>& layers) {
  partition::ModelMeta meta;
  for (const LayerSpec& spec : layers) meta.push_back(spec.meta);
  return meta;
}

}  // namespace penstock::nn
