// The model in one process, a microbatch at a time under plain autograd: what every schedule must
// equal.
//
// A stage adds the gradients of its microbatches in the order of its B or W.  The reference keeps
// them apart, so that they can be added in the order of any schedule, to the same bits.
#pragma once
#include <algorithm>

#include "tests/execute/pipeline.h"

namespace penstock::execute {

struct Reference {
  std::vector<at::Tensor> losses;   // By microbatch, as all here.
  std::vector<nn::Values> outputs;  // Of the last layer.
  std::vector<Gradients> gradients;
  std::map<std::string, std::int64_t> layer_of;  // By the parameter's name.
};

inline Reference make_reference(const std::vector<nn::LayerSpec>& model, const StepInputs& step) {
  at::set_num_threads(1);  // As every rank does.
  Reference reference;
  std::vector<std::shared_ptr<nn::Layer>> layers;
  for (std::size_t i = 0; i < model.size(); ++i) {
    layers.push_back(nn::build(model[i], kSeed, static_cast<std::int64_t>(i)));
  }
  for (std::size_t m = 0; m < step.inputs.size(); ++m) {
    nn::Values values = step.inputs[m];
    for (const auto& layer : layers) values = layer->forward_values(values);
    const at::Tensor loss = step.loss(values, step.targets[m]);
    torch::autograd::backward({loss}, {at::full({}, loss_factor(step, m))});
    reference.losses.push_back(loss.detach());
    reference.outputs.push_back(std::move(values));
    reference.gradients.emplace_back();
    for (std::size_t i = 0; i < model.size(); ++i) {
      for (const auto& parameter : layers[i]->named_parameters()) {
        const std::string name = model[i].meta.name + "." + parameter.key();
        reference.layer_of[name] = static_cast<std::int64_t>(i);
        reference.gradients.back()[name] = parameter.value().grad();
        parameter.value().mutable_grad().reset();
      }
    }
  }
  return reference;
}

// The microbatches of each stage in the order of its B or W.
using Orders = std::vector<std::vector<std::size_t>>;

inline Orders orders_of(const schedule::Schedule& schedule) {
  Orders orders(static_cast<std::size_t>(schedule.stages));
  for (const schedule::Program& program : schedule.programs) {
    for (const schedule::Action& action : program) {
      if (action.op != schedule::Op::Backward && action.op != schedule::Op::BackwardWeight)
        continue;
      orders[action.stage.index()].push_back(action.microbatch->index());
    }
  }
  return orders;
}

inline bool rising(const Orders& orders) {
  return std::ranges::all_of(orders,
                             [](const auto& order) { return std::ranges::is_sorted(order); });
}

// The reference's gradients, each added in the order of the stage that holds its layer.
inline Gradients summed(const Reference& reference, const Orders& orders,
                        const partition::Partition& partition) {
  Gradients sums;
  for (const auto& [name, layer] : reference.layer_of) {
    std::size_t stage = 0;
    while (partition.end_layer(StageId(stage)) <= layer) ++stage;
    at::Tensor& sum = sums[name];
    for (const std::size_t m : orders[stage]) {
      const at::Tensor& gradient = reference.gradients[m].at(name);
      if (!gradient.defined()) continue;
      sum = sum.defined() ? sum + gradient : gradient;
    }
  }
  return sums;
}

}  // namespace penstock::execute
