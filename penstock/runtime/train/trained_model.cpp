// What a Trainer trains, between two steps: how it is made, and what the program has changed.
#include <ATen/ops/zeros.h>

#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/optimizer_states.h"
#include "penstock/plan/config/parameter_groups.h"
#include "penstock/plan/config/program_of_replicas.h"
#include "penstock/plan/lower/places.h"
#include "penstock/plan/lower/programs.h"
#include "penstock/runtime/comm/calls.h"
#include "penstock/runtime/comm/or_fail.h"
#include "penstock/runtime/nn/loss_layer.h"
#include "penstock/runtime/train/handshake.h"
#include "penstock/runtime/train/layer_sizes.h"
#include "penstock/runtime/train/shared_layers.h"
#include "penstock/train/trainer.h"

namespace penstock::train {

lower::ProgramOptions program_of(const TrainerOptions& options) {
  return {.schedule = options.schedule,
          .file = options.program,
          .ranks = options.mesh.size(mesh::Role::Pipe),
          .stages_per_rank = options.stages_per_rank,
          .microbatches = options.microbatches};
}

namespace {

// The layers of this rank if all stages have equally many.
std::set<std::int64_t> likely_layers(const std::vector<nn::LayerSpec>& layers,
                                     const mesh::Mesh& mesh,
                                     const verify::VerifiedSchedule& schedule, Rank rank) {
  const partition::Partition even =
      partition_of(layers, schedule.schedule().stages, partition::Uniform{});
  return layers_of(Rank(mesh.index(rank, mesh::Role::Pipe)), schedule, even);
}

// Whether parameters stay as they are made, so that it costs no memory to make them early.
bool keeps_what_is_made(const TrainerOptions& options) {
  const partition::SharingRules rules =
      parameters::sharing_rules(options.zero, options.offload.parameters,
                                options.mesh.size(mesh::Role::SameParameters), options.device);
  return options.device.is_cpu() && !options.precision.is_short() && !rules.come_and_go();
}

// Refuses what is not there for ranks that share layers, and layers that do not fit together.
void check_sharing(const TrainerOptions& options, const std::vector<nn::LayerSpec>& layers,
                   const nn::Loss& loss) {
  if (const std::int32_t context = options.mesh[mesh::Axis::Context]; context > 1) {
    throw ConfigError(str("mesh.context = ", context, ": context parallelism is not there yet"),
                      {"take 1, or mesh.tensor"});
  }
  check_shared_layers(options, layers, loss);
}

// Nothing to prove where ranks have whole layers.
void prove_exchanges_of(const TrainerOptions& options, const std::vector<nn::LayerSpec>& layers,
                        const nn::Loss& loss, const verify::VerifiedSchedule& schedule,
                        const partition::Partition& partition) {
  if (options.mesh.size(mesh::Role::SharedWeights) == 1) return;
  prove_exchanges(schedule,
                  exchanges_of_stages(layers, loss, partition, options.checkpointing, options.sums),
                  options.mesh);
}

// Collective over all ranks, which have the same of everything afterwards.  Layers may have to be
// made to be counted, which `layers` then are.
Layout make_layout(const TrainerOptions& options, std::vector<nn::LayerSpec>& layers,
                   const nn::Loss& loss, nn::LayerMaker& maker, comm::Communicator& communicator,
                   execute::Progress& progress) {
  const comm::Call call("Trainer()");
  mesh::Mesh mesh = mesh::make_mesh(communicator.world_size(), options.mesh);
  nn::check_model(layers);
  check_sharing(options, layers, loss);
  parameters::check(options.zero, options.offload.parameters);
  if (options.precision.sum_type() != options.precision.type &&
      options.sums == GradientSums::Invariant) {
    throw ConfigError("invariant sums of gradients are in the type of the parameters");
  }
  if (options.learning_rate && options.scheduler.type != config::SchedulerType::Constant) {
    throw ConfigError("the options have a learning_rate and a scheduler: keep one of them");
  }
  verify::VerifiedSchedule schedule = lower::training_program(program_of(options));
  config::check_programs(lower::programs_of(schedule), options.zero.stage);
  if (schedule.schedule().replicas > 1 && options.mesh[mesh::Axis::Tensor] > 1) {
    throw ConfigError(str(schedule::title(schedule.schedule()),
                          " is a program of several replicas, whose ranks have whole layers, and "
                          "mesh.tensor is ",
                          options.mesh[mesh::Axis::Tensor]));
  }
  const mesh::Group sharing = lower::groups_of(schedule, mesh, communicator.rank()).shared_weights;
  maker.share({.index = sharing.here, .of = sharing.size()}, blocks_of_layers(options));
  const std::int32_t stages = schedule.schedule().stages;
  const bool has_to_count = stages > 1 && !are_counted(layers) &&
                            std::holds_alternative<partition::ByParameters>(options.partition);
  const auto cut_into_stages = [&] { return partition_of(layers, stages, options.partition); };
  std::optional<partition::Partition> partition;
  if (!has_to_count) partition = cut_into_stages();
  {
    const execute::WaitMark wait(progress, "comparing with the other ranks what they will run");
    agree_on(Occasion::Trainer, facts_of(options, layers, schedule, partition), communicator);
  }
  if (has_to_count) {
    const execute::WorkMark work(progress, "counting the parameters of layers");
    const auto after = keeps_what_is_made(options) ? nn::AfterCount::Keep : nn::AfterCount::Drop;
    count_together(layers, likely_layers(layers, mesh, schedule, communicator.rank()), maker, after,
                   communicator);
    partition = cut_into_stages();
  }
  prove_exchanges_of(options, layers, loss, schedule, *partition);
  return {std::move(mesh), std::move(schedule), std::move(*partition)};
}

std::unique_ptr<update::Update> make_update(const TrainerOptions& options,
                                            const parameters::Parts& parts) {
  const config::Fp16Config& scale = options.precision.gradient_scale;
  return std::make_unique<update::Update>(
      parts.all(), std::make_shared<update::GradientScale>(scale),
      update::UpdateOptions{
          .clipping = options.gradient_clipping,
          .overflow = scale.enabled ? update::Overflow::SkipsStep : update::Overflow::Fails,
          .states = options.offload.states,
          .elements_at_once = options.offload.elements_at_once,
          .states_per_part = config::states_per_parameter(options.optimizer)});
}

// The parameter's name of each part.
std::vector<std::string> names_of_parts(const parameters::RankParameters& replicated) {
  std::vector<std::string> names;
  for (const auto& set : replicated.kept()) {
    for (const parameters::OwnedElements& each : set) {
      if (!each.part) continue;
      if (names.size() <= *each.part) names.resize(*each.part + 1);
      names[*each.part] = each.parameter.name;
    }
  }
  return names;
}

// Collective.  Throws: ConfigError, on every rank, for a group that has no parameter of the model.
void check_groups(const config::OptimizerConfig& optimizer, RankModel& here) {
  if (optimizer.groups.empty()) return;
  const config::GroupsByName groups(optimizer);
  const at::Tensor counts = at::zeros({static_cast<std::int64_t>(groups.size())}, at::kLong);
  auto* const count = counts.data_ptr<std::int64_t>();
  for (const auto& [name, tensor] : here.parameters()) ++count[groups.group_of(name)];
  here.sums().over_model(counts);
  for (std::size_t i = 1; i < groups.size(); ++i) {
    if (count[i] > 0) continue;
    throw ConfigError(str("optimizer.groups[", i - 1,
                          "].parameters = ", in_quotes(optimizer.groups[i - 1].parameters),
                          ": is found in no parameter's name that an earlier group has not"));
  }
}

}  // namespace

struct TrainedModel::Fixed {
  Fixed(const TrainerOptions& given, std::vector<nn::LayerSpec> specs, const nn::Loss& loss,
        comm::Communicator& ranks)
      : options(given),
        layers(std::move(specs)),
        communicator(ranks),
        progress(options.progress == nullptr ? own_progress : *options.progress),
        maker(std::make_unique<nn::LayerMaker>(layers, options.seed)),
        layout(make_layout(options, layers, loss, *maker, communicator, progress)) {}

  const TrainerOptions options;
  std::vector<nn::LayerSpec> layers;
  comm::Communicator& communicator;
  execute::Progress own_progress;
  execute::Progress& progress;
  std::unique_ptr<nn::LayerMaker> maker;  // While the Trainer is made.
  Layout layout;
};

TrainedModel::TrainedModel(const TrainerOptions& options, std::vector<nn::LayerSpec> layers,
                           const nn::Loss& loss, comm::Communicator& communicator)
    : calls_(communicator),
      fixed_(std::make_unique<Fixed>(options, std::move(layers), loss, communicator)) {
  const comm::Call call("Trainer()");
  Layout& layout = fixed_->layout;
  execute::Progress& progress = fixed_->progress;
  lower::Plan plan = lower_here(layout, layout.schedule, communicator);
  {
    const execute::WaitMark wait(progress, "connecting to the other ranks");
    communicator.link(lower::peers(plan));
  }
  rank_model_ = std::make_unique<RankModel>(fixed_->options, fixed_->layers, layout, *fixed_->maker,
                                            communicator, progress);
  if (layout.partition.stages() == 1) {
    for (const auto& [layer, elements] : fixed_->maker->trainable_elements()) {
      fixed_->layers[static_cast<std::size_t>(layer)].meta.parameters = elements;
    }
  }
  fixed_->maker.reset();
  program_ = std::make_unique<TrainingProgram>(
      std::move(plan), layout, *rank_model_, fixed_->options.sums, communicator, progress,
      [&fixed = *fixed_, loss](const verify::VerifiedSchedule& schedule) {
        prove_exchanges_of(fixed.options, fixed.layers, loss, schedule, fixed.layout.partition);
      });
  const execute::WorkMark work(progress, "making masters and optimizer states",
                               execute::Files::Used);
  comm::or_fail(communicator, [this] {
    update_ = make_update(fixed_->options, rank_model_->replicated().parts());
    optimizer_ = std::make_unique<update::Optimizer>(
        fixed_->options.optimizer, update_->masters().tensors(), update_->memory(),
        names_of_parts(rank_model_->replicated()));
  });
  check_groups(fixed_->options.optimizer, *rank_model_);
}

const TrainerOptions& TrainedModel::options() const { return fixed_->options; }
const std::vector<nn::LayerSpec>& TrainedModel::layers() const { return fixed_->layers; }
comm::Communicator& TrainedModel::communicator() const { return fixed_->communicator; }
execute::Progress& TrainedModel::progress() const { return fixed_->progress; }
const Layout& TrainedModel::layout() const { return fixed_->layout; }

TrainedModel::~TrainedModel() = default;

TrainedModel::TrainedModel(TrainedModel&& other) noexcept = default;

void TrainedModel::take_changes() {
  comm::or_fail(communicator(), [this] { rank_model_->replicated().changes().find(); });
  update_->take_changes();
}

void TrainedModel::go_on_after(std::int64_t step) {
  steps_taken_ = step;
  rank_model_->replicated().changes().forget_found();
  zero_grad();
}

std::vector<PartOfParameter> TrainedModel::gradients() const {
  std::vector<PartOfParameter> all;
  for (const auto& set : rank_model_->replicated().kept()) {
    for (const parameters::OwnedElements& each : set) {
      if (each.part) all.push_back({each.parameter.name, each.values, each.first});
    }
  }
  return all;
}

void TrainedModel::zero_grad() {
  rank_model_->replicated().drop_gradients();
  update_->begin_gradients();
  computed_.reset();
}

std::int64_t TrainedModel::offloaded_bytes() const {
  return rank_model_->replicated().file_bytes() + update_->file_bytes();
}

}  // namespace penstock::train
