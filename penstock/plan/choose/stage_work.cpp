#include "penstock/plan/choose/stage_work.h"

#include <algorithm>
#include <vector>

namespace penstock::choose {
namespace {

// Bytes of the optimizer's states, and of the master of a short type.
double state_bytes(const memory::Parameter& parameter, const memory::Sharing& sharing) {
  constexpr std::int64_t kMasterBytes = 4;
  const std::int64_t masters = parameter.element_bytes < kMasterBytes ? 1 : 0;
  const std::int64_t bytes = std::max(parameter.element_bytes, kMasterBytes);
  return static_cast<double>(parameter.elements * (sharing.states_per_element + masters) * bytes);
}

// What is at the end of a step for some parameters.
StepEnd end_of(const StepInputs& inputs, const std::vector<const memory::Parameter*>& parameters,
               const memory::Sharing& sharing) {
  const MemorySpeed speed{.bytes_per_s = inputs.memory_bandwidth, .kernel_s = inputs.kernel_s};
  return inputs.is_fused ? fused_step_end(parameters, sharing, speed)
                         : step_end(parameters, sharing, inputs.layout.microbatches, speed);
}

}  // namespace

void Shared::add(const memory::Parameter& parameter, double bucket) {
  parameters += static_cast<double>(parameter.bytes());
  if (!parameter.is_trainable) return;
  const auto sum_bytes = static_cast<double>(parameter.sum_bytes());
  if (gradients == 0.0) last_sum = std::max(sum_bytes, bucket);
  if (in_bucket == 0.0 || in_bucket + sum_bytes > bucket) {
    buckets += 1.0;
    in_bucket = 0.0;
  }
  in_bucket += sum_bytes;
  gradients += sum_bytes;
}

StageWork work_of(const StepInputs& inputs, StageId stage) {
  StageWork work;
  const auto bucket = static_cast<double>(inputs.sharing.rules.bucket_bytes);
  std::vector<const memory::Parameter*> parameters, of_experts;
  for (auto i = inputs.partition.first_layer(stage); i < inputs.partition.end_layer(stage); ++i) {
    const LayerTimes& times = inputs.times[static_cast<std::size_t>(i)];
    const bool is_again = inputs.layout.recompute_interval > 0;
    const double again = is_again ? times.computing_again() : 0.0;
    const double exchanged_again =
        is_again ? times.backward_exchange_again - times.backward_exchange : 0.0;
    work.times.forward_exchange += times.forward_exchange;
    work.times.backward_exchange += times.backward_exchange + exchanged_again;
    work.times.input_exchange += times.input_exchange + exchanged_again;
    const double forwards = is_again ? 2.0 : 1.0;
    work.context += forwards * times.context_forward;
    work.context += times.context_backward;
    work.in_experts += forwards * times.experts_forward;
    work.in_experts += times.experts_backward;
    work.times.forward += times.forward;
    work.times.backward += times.backward + again;
    work.times.input += times.input + again;
    work.times.weight += times.weight;
    work.kernels += (is_again ? 2.0 : 1.0) * times.forward_by_kind;
    work.kernels += times.backward_by_kind;
    const memory::LayerMemory& layer = inputs.memory.layers[static_cast<std::size_t>(i)];
    work.output = static_cast<double>(layer.output);
    const std::size_t others = layer.first_expert();
    for (std::size_t p = 0; p < layer.parameters.size(); ++p) {
      const memory::Parameter& each = layer.parameters[p];
      Shared& shared = p < others ? work.others : work.experts;
      shared.add(each, bucket);
      if (!each.is_trainable) continue;
      (p < others ? parameters : of_experts).push_back(&each);
      shared.states += state_bytes(each, inputs.sharing);
    }
  }
  work.end = end_of(inputs, parameters, inputs.sharing);
  if (!of_experts.empty()) {
    work.end += end_of(inputs, of_experts, memory::of_experts(inputs.sharing));
  }
  return work;
}

}  // namespace penstock::choose
