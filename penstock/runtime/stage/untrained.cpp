#include "penstock/runtime/stage/untrained.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/form.h"
#include "penstock/runtime/stage/piece_check.h"

namespace penstock::stage {
namespace {

using torch::autograd::Node;

// The name of the tensor as a parameter of the layer.
std::optional<std::string> name_of(const at::Tensor& tensor, nn::Layer& layer) {
  for (const torch::nn::Module* module :
       {static_cast<torch::nn::Module*>(&layer), &layer.computing()}) {
    for (const auto& parameter : module->named_parameters()) {
      if (parameter.value().is_same(tensor)) return parameter.key();
    }
  }
  return std::nullopt;
}

std::string described(const at::Tensor& tensor) { return nn::to_string(nn::form_of(tensor)); }

}  // namespace

Untrained::Untrained(const StageLayers& layers)
    : first_(layers.first()),
      steps_(layers.all().size() + 1),
      microbatches_(layers.all().size() + 1) {
  for (auto& step : steps_) step = -1;
  for (const NamedParameter& each : layers.trained()) {
    trained_.insert(each.tensor.unsafeGetTensorImpl());
  }
}

bool Untrained::is_due(const nn::DrawPlace& place) {
  if (!at::GradMode::is_enabled()) return false;
  const auto layer = static_cast<std::size_t>(place.layer - first_);
  std::atomic<std::int64_t>&last = steps_[layer], &microbatch = microbatches_[layer];
  if (place.piece > 0) return last == place.step && microbatch == place.microbatch;
  const bool is_due = last.exchange(place.step, std::memory_order_relaxed) != place.step;
  if (is_due) microbatch.store(place.microbatch, std::memory_order_relaxed);
  return is_due;
}

Nodes Untrained::behind(const nn::Values& values) {
  Nodes nodes;
  for (const at::Tensor& value : values) {
    if (value.defined() && value.requires_grad()) nodes.insert(value.grad_fn().get());
  }
  return nodes;
}

std::optional<at::Tensor> Untrained::find(const nn::Values& outputs, Nodes known) const {
  std::optional<at::Tensor> found;
  const auto is_untrained = [&](const at::Tensor& leaf) {
    if (trained_.count(leaf.unsafeGetTensorImpl()) == 0) found = leaf;
    return found.has_value();
  };
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad() || output.grad_fn()) continue;
    if (is_untrained(output)) return found;
  }
  any_node(
      outputs,
      [&](const Node& node) {
        if (node.num_outputs() > 0) return false;
        const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(&node);
        return leaf != nullptr && is_untrained(leaf->variable);
      },
      std::move(known));
  return found;
}

void Untrained::check_layer(const std::string& name, nn::Layer& layer, const nn::Values& outputs,
                            Nodes known) const {
  const std::optional<at::Tensor> found = find(outputs, std::move(known));
  if (!found) return;
  if (const std::optional<std::string> parameter = name_of(*found, layer)) {
    throw ConfigError(str("the parameter ", in_quotes(*parameter), " of layer ", in_quotes(name),
                          ", ", described(*found),
                          ", is trained by nobody: it was made, or ceased to be frozen, after "
                          "the layer was made"),
                      {"make it where the layer is made, and let it require a gradient there"});
  }
  throw ConfigError(
      str("layer ", in_quotes(name), " depends on a tensor, ", described(*found),
          ", that requires a gradient and is no parameter of it, so that nobody trains it"),
      {"let the layer's module register it, or the module that has it; or detach() it"});
}

void Untrained::check_piece(const partition::LayerMeta& meta, std::size_t piece, nn::Layer& layer,
                            const nn::Values& inputs, const nn::Values& outputs) const {
  check_layer(meta.name, layer, outputs, behind(inputs));
  check_piece_graph(meta.pieces[piece], str("piece ", piece, " of layer ", in_quotes(meta.name)),
                    inputs, outputs, [&](const at::Tensor& leaf) { return name_of(leaf, layer); });
}

void Untrained::check_loss(const nn::Values& loss, Nodes known) const {
  const std::optional<at::Tensor> found = find(loss, std::move(known));
  if (!found) return;
  throw ConfigError(str("the loss depends on a tensor, ", described(*found),
                        ", that requires a gradient and is no parameter of the model, so that "
                        "nobody trains it"),
                    {"a loss with parameters is a module that the Trainer makes: nn::loss<Module>("
                     "arguments), or a function that makes one; else detach() it"});
}

}  // namespace penstock::stage
