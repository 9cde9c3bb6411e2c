#include "penstock/train/handshake.h"

#include <torch/version.h>

#include <algorithm>

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
  const std::string gives = spec.given.empty() ? "" : " gives " + join(spec.given, ",");
  const std::string takes = spec.taken.empty() ? "" : " takes " + join(spec.taken, ",");
  return str(spec.meta.name, " ", spec.meta.type, gives, takes, ties);
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
  Facts facts = {
      {"penstock version", kVersion},
      {"torch version", TORCH_VERSION},
      {"schedule", schedule::title(schedule.schedule())},
      {"schedule program", str(stable_hash(schedule::to_csv(schedule.schedule())))},
      {"partition", join(partition.bounds, " ")},
      {"seed", str(options.seed)},
      {"optimizer", describe(options.optimizer)},
      {"scheduler", describe(options.scheduler)},
      {"steps", str(options.total_steps)},
      {"gradient_clipping", shortest(options.gradient_clipping)},
      {"loss scale", describe(options.loss_scale.kind)},
      {"sums of gradients", describe(options.sums)},
      {"ZeRO stage", str(static_cast<int>(options.zero.stage))},
      {"ZeRO bucket bytes", str(options.zero.bucket_bytes)},
      {"layers of the model", str(model.size())},
  };
  for (std::size_t i = 0; i < model.size(); ++i) {
    facts.emplace_back(str("layer ", i), describe(model[i]));
  }
  return facts;
}

void agree_on(const Facts& facts, comm::Communicator& communicator) {
  std::string text;
  for (const auto& [name, value] : facts) text += name + "=" + value + "\n";
  const std::vector<std::string> texts = communicator.exchange("handshake", text);
  const auto first = penstock::split(texts.front(), '\n');
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts.front()) continue;
    const auto other = penstock::split(texts[rank], '\n');
    const auto [ours, theirs] = std::ranges::mismatch(first, other);
    throw CommError(str("ranks 0 and ", rank, " do not run the same thing: rank 0 has ",
                        ours == first.end() ? "nothing" : *ours, ", rank ", rank, " has ",
                        theirs == other.end() ? "nothing" : *theirs),
                    {"start every rank with the same program and config"}, ExitCode::Usage);
  }
}

}  // namespace penstock::train
