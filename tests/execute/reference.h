// The model in one process, a microbatch at a time under plain autograd: what every schedule must
// equal.
//
// A stage adds the gradients of its microbatches in the order of its B or W.  The reference keeps
// them apart, so that they can be added in the order of any schedule, to the same bits.
#pragma once
#include "tests/execute/pipeline.h"

namespace penstock::execute {

struct Reference {
  std::vector<at::Tensor> losses;   // Losses by microbatch, as all here.
  std::vector<nn::Values> outputs;  // Outputs of the last layer.
  std::vector<Gradients> gradients;
  std::map<std::string, std::int64_t> layer_of;  // Layers by the parameter's name.
};

inline Reference make_reference(const std::vector<nn::LayerSpec>& model, const StepInputs& step) {
  PlainModel plain(model);
  Reference reference;
  for (std::size_t m = 0; m < step.inputs.size(); ++m) {
    PlainModel::Pass pass = plain.run(step, m);
    reference.losses.push_back(std::move(pass.loss));
    reference.outputs.push_back(std::move(pass.outputs));
    reference.gradients.emplace_back();
    plain.each_parameter([&](const std::string& name, std::int64_t layer, at::Tensor& parameter) {
      reference.layer_of[name] = layer;
      reference.gradients.back()[name] = parameter.grad();
      parameter.mutable_grad().reset();
    });
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
