#include "penstock/train/handshake.h"

#include <algorithm>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/schedule/schedule.h"

namespace penstock::train {
namespace {

// For comparison between ranks: different options, different texts.
std::string describe(const config::OptimizerConfig& optimizer) {
  const bool is_sgd = optimizer.type == config::OptimizerType::Sgd;
  const std::string_view name = is_sgd ? "SGD" : optimizer.is_decoupled() ? "AdamW" : "Adam";
  std::vector<std::string> numbers;
  for (const double number : {optimizer.lr, optimizer.betas[0], optimizer.betas[1], optimizer.eps,
                              optimizer.weight_decay, optimizer.momentum}) {
    numbers.push_back(shortest(number));
  }
  return str(name, "(lr, betas, eps, weight_decay, momentum: ", join(numbers, ", "), ")");
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
  return str(spec.meta.name, " ", spec.meta.type, size, gives, takes, ties);
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

const char* repair_of(std::string_view fact) {
  if (fact.starts_with("text ")) {
    return "every rank reads the text itself, from --data or, without it, its own Python library: "
           "give all of them the same files";
  }
  if (fact.starts_with("bits of an update") || fact.starts_with("CPU kernels")) {
    return "CPUs differ: the variable ATEN_CPU_CAPABILITY of every rank's environment says which "
           "kernels torch takes: default, avx2 or avx512";
  }
  if (fact.starts_with("threads")) return "give every rank the same OMP_NUM_THREADS";
  return "start every rank with the same program and config";
}

void compare(Rank one, const std::string& of_one, Rank other, const std::string& of_other) {
  if (of_one == of_other) return;
  const auto ours = penstock::split(of_one, '\n'), theirs = penstock::split(of_other, '\n');
  const auto [our_line, their_line] = std::ranges::mismatch(ours, theirs);
  const auto said = [](auto line, auto end) {
    return line == end || line->empty() ? "nothing more" : *line;
  };
  throw DifferenceError(
      str("ranks ", one, " and ", other, " do not run the same thing: rank ", one, " has ",
          said(our_line, ours.end()), ", rank ", other, " has ", said(their_line, theirs.end())),
      {repair_of(our_line == ours.end() ? "" : *our_line)});
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
         Facts{{"schedule", schedule::title(program)},
               {"purpose", program.purpose == schedule::Purpose::Train ? "train" : "forward only"},
               {"schedule program", str(stable_hash(schedule::to_csv(program)))}};
}

Facts facts_of(const TrainerOptions& options, const std::vector<nn::LayerSpec>& model,
               const verify::VerifiedSchedule& schedule, const partition::Partition& partition) {
  Facts facts = {
      {"mesh", mesh::to_string(options.mesh)},
      {"partition", join(partition.bounds, " ")},
      {"seed", str(options.seed)},
      {"device", c10::DeviceTypeName(options.device.type(), /*lower_case=*/true)},
      {"optimizer", describe(options.optimizer)},
      {"updates", updates_on_host(options) ? "on the host" : "on the device"},
      {"scheduler", describe(options.scheduler)},
      {"steps", str(options.total_steps)},
      {"gradient_clipping", shortest(options.gradient_clipping)},
      {"loss scale", describe(options.loss_scale.kind)},
      {"sums of gradients", describe(options.sums)},
      {"types", options.precision.describe()},
      {"gradient scale", describe(options.precision.gradient_scale)},
      {"ZeRO stage", str(static_cast<int>(options.zero.stage))},
      {"ZeRO bucket bytes", str(options.zero.bucket_bytes)},
      {"ZeRO budget and prefetch bytes",
       str(options.zero.limits.budget_bytes, " ", options.zero.limits.prefetch_bytes)},
      {"ZeRO persistence",
       str(options.zero.persistence.elements, " ", options.zero.persistence.elements_in_all)},
      {"layers of the model", str(model.size())},
  };
  for (std::size_t i = 0; i < model.size(); ++i) {
    facts.emplace_back(str("layer ", i), describe(model[i]));
  }
  if (updates_on_host(options)) facts = std::move(facts) + facts_of_host_updates();
  if (options.sums == GradientSums::Invariant) facts = std::move(facts) + facts_of_bits();
  return options.facts + facts_of(schedule) + facts;
}

Facts facts_of(const std::vector<stage::Stage>& stages) {
  Facts facts;
  for (const stage::Stage& stage : stages) {
    for (const auto& [name, tensor] : stage.parameters()) {
      facts.emplace_back("parameter " + name, shape_of(tensor));
    }
    for (const auto& [name, tensor] : stage.layers().frozen()) {
      facts.emplace_back("frozen parameter " + name, shape_of(tensor));
    }
    for (const at::Tensor& buffer : stage.layers().buffers()) {
      facts.emplace_back(str("a buffer of stage ", stage.id()), shape_of(buffer));
    }
  }
  return facts;
}

void agree_on(const std::string& name, const Facts& facts, comm::Communicator& communicator,
              const std::vector<std::vector<Rank>>& groups) {
  std::string text;
  for (const auto& [fact, value] : facts) text += fact + "=" + value + "\n";
  const std::vector<std::string> texts = communicator.exchange(name, text);
  for (const std::vector<Rank>& group : groups) {
    for (const Rank rank : group) {
      compare(group.front(), texts[group.front().index()], rank, texts[rank.index()]);
    }
  }
}

}  // namespace penstock::train
