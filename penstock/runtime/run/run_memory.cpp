#include "penstock/runtime/run/run_memory.h"

#include "penstock/plan/config/optimizer_states.h"
#include "penstock/plan/lower/programs.h"
#include "penstock/runtime/train/layer_sizes.h"
#include "penstock/runtime/train/shared_layers.h"

namespace penstock::run {
namespace {

memory::Sharing sharing_of(const train::TrainerOptions& options) {
  return {.rules = sharing_rules(options.zero, options.offload.parameters,
                                 options.mesh.size(mesh::Role::SameParameters), options.device),
          .states_per_element = config::states_per_parameter(options.optimizer),
          .state_bytes_per_part = config::counts_steps(options.optimizer)
                                      ? static_cast<std::int64_t>(sizeof(float))
                                      : 0,
          .has_states_in_file = options.offload.states.place == offload::Place::File,
          .has_pieces_in_file = options.offload.parameters.place == offload::Place::File,
          .persistence = options.zero.persistence};
}

// Checks what a Trainer checks of ranks that share layers.
void check_shared(const train::TrainerOptions& options, const std::vector<nn::LayerSpec>& model,
                  const nn::Loss& loss, const verify::VerifiedSchedule& schedule,
                  const partition::Partition& partition) {
  if (options.mesh.size(mesh::Role::SharedWeights) == 1) return;
  train::check_shared_layers(options, model, loss);
  train::prove_exchanges(
      schedule,
      train::exchanges_of_stages(model, loss, partition, options.checkpointing, options.sums),
      options.mesh);
}

}  // namespace

memory::ModelMemory layer_memory(const train::TrainerOptions& options,
                                 std::vector<nn::LayerSpec>& model, const nn::Loss& loss,
                                 const TrainingInputs& inputs) {
  nn::check_model(model);
  nn::count_parameters(model);
  const train::Precision& precision = options.precision;
  memory::ModelMemory memory = probe::probe_model(
      model, precision.inputs(inputs.inputs), inputs.targets, precision.loss(loss),
      {.seed = options.seed,
       .type = precision.type,
       .sharers = options.mesh.size(mesh::Role::SharedWeights),
       .place = inputs.place,
       .begins = inputs.begins});
  for (memory::LayerMemory& layer : memory.layers) {
    for (memory::Parameter& each : layer.parameters) {
      each.sum_element_bytes = static_cast<std::int64_t>(c10::elementSize(precision.sum_type()));
    }
  }
  return memory;
}

probe::ModelTimes layer_times(const train::TrainerOptions& options,
                              std::vector<nn::LayerSpec>& model, const nn::Loss& loss,
                              const TrainingInputs& inputs, probe::Timing timing) {
  nn::check_model(model);
  nn::count_parameters(model);
  const train::Precision& precision = options.precision;
  timing.seed = options.seed;
  timing.type = precision.type;
  return probe::time_model(model, precision.inputs(inputs.inputs), inputs.targets,
                           precision.loss(loss), timing);
}

std::vector<PipeRank> run_memory(const train::TrainerOptions& options,
                                 std::vector<nn::LayerSpec> model, const nn::Loss& loss,
                                 const TrainingInputs& inputs, memory::Copies copies) {
  nn::check_model(model);
  nn::count_parameters(model);
  const verify::VerifiedSchedule schedule = lower::training_program(train::program_of(options));
  const partition::ModelMeta meta = nn::meta_of(model);
  const partition::Partition partition =
      train::partition_of(model, schedule.schedule().stages, options.partition);
  check_shared(options, model, loss, schedule, partition);
  const memory::ModelMemory layers = layer_memory(options, model, loss, inputs);
  return memory::pipe_memory({.schedule = schedule,
                              .partition = partition,
                              .mesh = options.mesh,
                              .model = meta,
                              .memory = layers,
                              .sharing = sharing_of(options),
                              .recomputation = options.checkpointing,
                              .live_page_bytes_max = options.zero.limits.budget_bytes,
                              .elements_at_once = options.offload.elements_at_once,
                              .batch_bytes = inputs.batch_bytes,
                              .copies = copies});
}

}  // namespace penstock::run
