#include "penstock/train/handshake.h"

#include <torch/version.h>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/core/version.h"
#include "penstock/schedule/schedule.h"

namespace penstock::train {
namespace {

// For comparison between ranks: different options, different texts.
std::string describe(const config::OptimizerConfig& optimizer) {
  const bool adamw = optimizer.type == config::OptimizerType::AdamW;
  std::vector<std::string> numbers;
  for (const double number : {optimizer.lr, optimizer.betas[0], optimizer.betas[1], optimizer.eps,
                              optimizer.weight_decay, optimizer.momentum}) {
    numbers.push_back(shortest(number));
  }
  return str(adamw ? "AdamW" : "SGD",
             "(lr, betas, eps, weight_decay, momentum: ", join(numbers, ", "), ")");
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
  return str(spec.meta.name, " ", spec.meta.type, " gives ", join(spec.given, ","), " takes ",
             join(spec.taken, ","), ties, ";");
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

std::string describe(GradientSums sums) {
  return sums == GradientSums::Invariant ? "invariant" : "as they come";
}

}  // namespace

Facts facts_of(const TrainerOptions& options, const std::vector<nn::LayerSpec>& model,
               const verify::VerifiedSchedule& schedule, const partition::Partition& partition) {
  std::string layers;
  for (const auto& spec : model) layers += describe(spec);
  return {
      {"penstock version", kVersion},
      {"torch version", TORCH_VERSION},
      {"schedule", schedule::title(schedule.schedule())},
      {"schedule program", str(stable_hash(schedule::to_csv(schedule.schedule())))},
      {"partition", join(partition.bounds, " ")},
      {"layers of the model", str(model.size(), " (", stable_hash(layers), ")")},
      {"seed", str(options.seed)},
      {"optimizer", describe(options.optimizer)},
      {"scheduler", describe(options.scheduler)},
      {"steps", str(options.total_steps)},
      {"gradient_clipping", shortest(options.gradient_clipping)},
      {"loss scale", describe(options.loss_scale.kind)},
      {"sums of gradients", describe(options.sums)},
  };
}

void agree_on(const Facts& facts, comm::Communicator& communicator) {
  std::string text;
  for (const auto& [name, value] : facts) text += name + "=" + value + "\n";
  const std::vector<std::string> texts = communicator.exchange("handshake", text);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const auto theirs = penstock::split(texts[rank], '\n');
    const auto ours = penstock::split(text, '\n');
    for (std::size_t i = 0; i < ours.size(); ++i) {
      if (i < theirs.size() && ours[i] == theirs[i]) continue;
      throw CommError(
          str("ranks ", communicator.rank(), " and ", rank, " do not run the same thing: rank ",
              communicator.rank(), " has ", ours[i], ", rank ", rank, " has ",
              i < theirs.size() ? theirs[i] : "nothing"),
          {"start every rank with the same program and config"}, ExitCode::Usage);
    }
  }
}

}  // namespace penstock::train
