#include "penstock/runtime/train/handshake.h"

#include "penstock/core/check.h"
#include "penstock/core/content_hash.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/kinds.h"
#include "penstock/runtime/stage/value_hash.h"
#include "penstock/schedule/schedule.h"

namespace penstock::train {

using agreement::Fact;

namespace {

// A text for comparison between ranks: different options, different texts.
std::string describe(const config::OptimizerConfig& optimizer) {
  const bool is_sgd = optimizer.type == config::OptimizerType::Sgd;
  const std::string_view name = is_sgd ? "SGD" : optimizer.is_decoupled() ? "AdamW" : "Adam";
  std::vector<std::string> numbers;
  for (const double number : {optimizer.lr, optimizer.betas[0], optimizer.betas[1], optimizer.eps,
                              optimizer.weight_decay, optimizer.momentum}) {
    numbers.push_back(shortest(number));
  }
  return str(name, "(lr, betas, eps, weight_decay, momentum: ", join(numbers, ", "), ")",
             optimizer.amsgrad ? " with amsgrad" : "", optimizer.nesterov ? " with nesterov" : "",
             optimizer.dampening != 0 ? " with dampening " + shortest(optimizer.dampening) : "",
             optimizer.groups.empty()
                 ? ""
                 : " in groups " + config::ParameterGroups{}.write(optimizer.groups));
}

std::string describe(const config::SchedulerConfig& scheduler) {
  if (scheduler.type == config::SchedulerType::Constant) return "constant";
  return str("WarmupCosineLR(", scheduler.warmup_num_steps, ", ",
             scheduler.total_num_steps.value_or(0), ", ", shortest(scheduler.warmup_min_ratio),
             ", ", shortest(scheduler.cos_min_ratio), ")");
}

std::string describe(const nn::LayerSpec& spec) {
  std::string ties;
  for (const nn::Tie& tie : spec.ties) {
    ties += str(" tied to ", tie.key, " (", join(tie.parameters, ","), ")");
  }
  const std::string gives = spec.given.empty() ? "" : " gives " + join(spec.given, ",");
  const std::string takes = spec.taken.empty() ? "" : " takes " + join(spec.taken, ",");
  const std::string size =
      spec.meta.parameters == nn::kNotCounted ? "" : str(" of ", spec.meta.parameters, " elements");
  const exchange::Pieces& pieces = spec.meta.pieces;
  const std::string in_pieces =
      pieces.empty() ? "" : str(" in pieces ", content_hash(exchange::to_string(pieces)));
  return str(spec.meta.name, " ", spec.meta.type, size, gives, takes, ties, in_pieces);
}

std::string describe(LossScale::Kind kind) {
  switch (kind) {
    case LossScale::Kind::Samples:
      return "by samples";
    case LossScale::Kind::Counted:
      return "by a count";
    case LossScale::Kind::Sum:
      return "sum";
  }
  return {};
}

// "Float[4, 8]"
std::string shape_of(const at::Tensor& tensor) {
  return penstock::str(c10::toString(tensor.scalar_type()), tensor.sizes());
}

std::string describe(const config::Fp16Config& scale) {
  if (!scale.enabled) return "1";
  if (scale.loss_scale != 0) return shortest(scale.loss_scale);
  return str("from 2^", scale.initial_scale_power, ", window ", scale.loss_scale_window,
             ", hysteresis ", scale.hysteresis, scale.consecutive_hysteresis ? " in a row" : "",
             ", at least ", shortest(scale.min_loss_scale));
}

// Kernels of two devices may differ in their bits; where the states are does not matter.
bool updates_on_host(const TrainerOptions& options) {
  const OffloadOptions& offload = options.offload;
  return offload.states.place != offload::Place::Device ||
         offload.parameters.place != offload::Place::Device || options.device.is_cpu();
}

std::string describe(GradientSums sums) {
  return sums == GradientSums::Invariant ? "invariant" : "as they come";
}

}  // namespace

Facts facts_of(const verify::VerifiedSchedule& verified) {
  const schedule::Schedule& program = verified.schedule();
  return facts_of_process() +
         Facts{{Fact::Schedule, schedule::title(program)},
               {Fact::Purpose,
                program.purpose == schedule::Purpose::Train ? "train" : "forward only"},
               {Fact::ScheduleProgram, content_hash(schedule::to_csv(program))}};
}

Facts facts_of(const TrainerOptions& options, const std::vector<nn::LayerSpec>& model,
               const verify::VerifiedSchedule& schedule,
               const std::optional<partition::Partition>& partition) {
  Facts facts = {
      {Fact::Mesh, mesh::to_string(options.mesh)},
      {Fact::Partition, partition ? join(partition->bounds, " ") : "by parameters"},
      {Fact::Seed, str(options.seed)},
      {Fact::Device, c10::DeviceTypeName(options.device.type(), /*lower_case=*/true)},
      {Fact::Optimizer, describe(options.optimizer)},
      {Fact::Updates, updates_on_host(options) ? "on the host" : "on the device"},
      {Fact::Scheduler, options.learning_rate ? "a function" : describe(options.scheduler)},
      {Fact::Steps, str(options.total_steps)},
      {Fact::GradientClipping, shortest(options.gradient_clipping)},
      {Fact::LossScale, describe(options.loss_scale.kind)},
      {Fact::SumsOfGradients, describe(options.sums)},
      {Fact::Types, options.precision.describe()},
      {Fact::GradientScale, describe(options.precision.gradient_scale)},
      {Fact::ZeroStage, str(static_cast<int>(options.zero.stage))},
      {Fact::ZeroBucketBytes, str(options.zero.bucket_bytes)},
      {Fact::ZeroBudget,
       str(options.zero.limits.budget_bytes, " ", options.zero.limits.prefetch_bytes)},
      {Fact::ZeroPersistence,
       str(options.zero.persistence.elements, " ", options.zero.persistence.elements_in_all)},
      {Fact::LayersOfModel, str(model.size())},
  };
  for (std::size_t i = 0; i < model.size(); ++i) {
    facts.add(Fact::Layer, str(i), describe(model[i]));
  }
  if (updates_on_host(options)) facts.add(facts_of_host_updates());
  if (options.sums == GradientSums::Invariant) facts.add(facts_of_bits());
  return options.facts + facts_of(schedule) + facts;
}

Facts facts_of(const std::vector<stage::Stage>& stages, const ValueHashes& values) {
  Facts facts;
  const auto add = [&](Fact fact, const stage::NamedParameter& each) {
    const auto hash = values.find(each.name);
    facts.add(fact, each.name,
              str(shape_of(each.tensor), hash == values.end() ? "" : " " + hash->second));
  };
  for (const stage::Stage& stage : stages) {
    for (const auto& each : stage.parameters()) add(Fact::Parameter, each);
    for (const auto& each : stage.layers().frozen()) add(Fact::FrozenParameter, each);
    const std::vector<at::Tensor>& buffers = stage.layers().buffers();
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      facts.add(Fact::Buffer, str(i, " of stage ", stage.id()),
                str(shape_of(buffers[i]), " ", stage::hash_of_values(buffers[i])));
    }
  }
  return facts;
}

Facts facts_of(const checkpoint::SavedCheckpoint* saved) {
  if (saved == nullptr) return {{Fact::Checkpoint, "none"}};
  return {{Fact::Checkpoint,
           str("step ", saved->manifest().step, ", manifest ", saved->manifest_hash())}};
}

void agree_on(Occasion occasion, const Facts& facts, comm::Communicator& communicator,
              const std::vector<std::vector<Rank>>& groups) {
  for (const agreement::StatedFact& each : facts) {
    PENSTOCK_CHECK(agreement::is_compared(each.fact, occasion), each.name);
  }
  agreement::check_alike(occasion, communicator.exchange("facts", to_text(facts)), groups);
}

void agree_on(Occasion occasion, const Facts& facts, comm::Communicator& communicator) {
  agree_on(occasion, facts, communicator, {communicator.all_ranks()});
}

}  // namespace penstock::train
