#include "penstock/train/trainer.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/version.h"
#include "penstock/schedule/dialects.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/schedule/passes/passes.h"
#include "penstock/train/lr_schedule.h"

namespace penstock::train {
namespace {

schedule::Schedule training_schedule(const TrainerOptions& options) {
  if (options.program.empty()) {
    const schedule::Schedule order =
        schedule::make_schedule(options.schedule, {.ranks = options.mesh.pipe,
                                                   .stages_per_rank = options.stages_per_rank,
                                                   .microbatches = options.microbatches});
    if (order.purpose == schedule::Purpose::Forward) {
      throw ScheduleError(str("schedule ", order.name, " has no backward: it cannot train"));
    }
    return schedule::lower_communication(order);
  }
  schedule::Schedule program = schedule::load_schedule(options.program).schedule;
  if (program.ranks() != options.mesh.pipe) {
    throw ScheduleError(str("schedule file \"", options.program, "\" has ", program.ranks(),
                            " rows, the mesh has ", options.mesh.pipe,
                            " pipeline ranks: one row per rank"));
  }
  if (program.purpose == schedule::Purpose::Forward) {
    throw ScheduleError(str("schedule file \"", options.program,
                            "\" has no backward: it cannot train; add the B of each F"));
  }
  if (program.microbatches != options.microbatches) {
    throw ScheduleError(str("schedule file \"", options.program, "\" has ", program.microbatches,
                            " microbatches, the batch has ", options.microbatches));
  }
  if (schedule::is_lowered(program)) return program;
  return schedule::lower_communication(
      verify::VerifiedSchedule::from(std::move(program)).schedule());
}

// Forward only, with every stage where the training schedule has it.
verify::VerifiedSchedule forward_schedule(const verify::VerifiedSchedule& training,
                                          std::int32_t microbatches) {
  const schedule::Schedule& model = training.schedule();
  schedule::Schedule forward{.name = "forward_only",
                             .purpose = schedule::Purpose::Forward,
                             .stages = model.stages,
                             .microbatches = microbatches};
  forward.programs.resize(model.programs.size());
  for (std::int32_t m = 0; m < microbatches; ++m) {
    for (std::int32_t s = 0; s < model.stages; ++s) {
      forward.programs[training.rank_of(StageId(s)).index()].push_back(
          {.stage = StageId(s), .op = schedule::Op::Forward, .microbatch = Microbatch(m)});
    }
  }
  return verify::VerifiedSchedule::from(schedule::add_send_recv(forward));
}

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

void check_names(const std::vector<nn::LayerSpec>& model) {
  std::vector<std::string> names;
  for (const auto& spec : model) names.push_back(spec.meta.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) {
    throw ConfigError(str("two layers of the model are called \"", *twice,
                          "\"; names must differ, they name the weights"));
  }
}

}  // namespace

Trainer::Trainer(const TrainerOptions& options, std::vector<nn::LayerSpec> model, nn::Loss loss,
                 comm::Communicator& communicator)
    : options_(options),
      model_(std::move(model)),
      loss_(std::move(loss)),
      communicator_(communicator),
      mesh_(mesh::make_mesh(communicator.world_size(), options.mesh)),
      activations_(std::make_shared<stage::ActivationCount>()) {
  check_names(model_);
  if (std::holds_alternative<partition::ByParameters>(options_.partition)) {
    nn::count_parameters(model_);
  }
  schedule_ = verify::VerifiedSchedule::from(training_schedule(options_));
  partition_ =
      partition::partition(nn::meta_of(model_), schedule_->schedule().stages, options_.partition);
  handshake();
  build_stages();
  build_groups();
  train_ = make_executor(*schedule_, /*reduce=*/true);
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : parameters()) tensors.push_back(parameter.tensor);
  optimizer_ = std::make_unique<Optimizer>(options_.optimizer, std::move(tensors));
}

Trainer::~Trainer() = default;

// Every rank runs the same program on the same model, or none starts.
void Trainer::handshake() {
  std::string layers;
  for (const auto& spec : model_) layers += spec.meta.name + " " + spec.meta.type + ";";
  const std::vector<std::pair<std::string, std::string>> facts = {
      {"penstock version", kVersion},
      {"torch version", TORCH_VERSION},
      {"schedule", schedule::title(schedule_->schedule())},
      {"schedule program", str(stable_hash(schedule::to_csv(schedule_->schedule())))},
      {"partition", join(partition_.bounds, " ")},
      {"layers of the model", str(model_.size(), " (", stable_hash(layers), ")")},
      {"seed", str(options_.seed)},
      {"optimizer", describe(options_.optimizer)},
      {"scheduler", describe(options_.scheduler)},
      {"steps", str(options_.total_steps)},
      {"gradient_clipping", shortest(options_.gradient_clipping)},
  };
  std::string text;
  for (const auto& [name, value] : facts) text += name + "=" + value + "\n";
  const std::vector<std::string> texts = communicator_.exchange("handshake", text);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const auto theirs = penstock::split(texts[rank], '\n');
    const auto ours = penstock::split(text, '\n');
    for (std::size_t i = 0; i < ours.size(); ++i) {
      if (i < theirs.size() && ours[i] == theirs[i]) continue;
      throw CommError(
          str("ranks ", communicator_.rank(), " and ", rank, " do not run the same thing: rank ",
              communicator_.rank(), " has ", ours[i], ", rank ", rank, " has ",
              i < theirs.size() ? theirs[i] : "nothing"),
          {"start every rank with the same program and config"}, ExitCode::Usage);
    }
  }
}

void Trainer::build_stages() {
  const std::int32_t pipe = mesh_.coordinate(communicator_.rank()).pipe;
  for (std::int32_t s = 0; s < partition_.stages(); ++s) {
    if (schedule_->rank_of(StageId(s)).value != pipe) continue;
    stages_.emplace_back(StageId(s), model_, partition_.first_layer(StageId(s)),
                         partition_.end_layer(StageId(s)), options_.seed, activations_);
  }
}

void Trainer::build_groups() {
  const Rank rank = communicator_.rank();
  std::vector<Rank> peers;
  for (const auto& instruction : lower::lower(*schedule_, partition_, mesh_, rank).instructions) {
    if (instruction.kind == lower::Kind::Send || instruction.kind == lower::Kind::Receive) {
      peers.push_back(instruction.peer);
    }
  }
  communicator_.link(peers);
  data_group_ = communicator_.make_group(mesh_.data_group(rank));
  pipe_group_ = communicator_.make_group(mesh_.pipe_group(rank));
  for (stage::Stage& stage : stages_) {
    reducers_.push_back(std::make_unique<execute::GradientReducer>(
        stage, communicator_, data_group_, options_.mesh.data));
  }

  // Each layer's number of parameter tensors is known where it lives: the sum is the whole model.
  const at::Tensor counts = at::zeros({std::ssize(model_)}, at::kLong);
  auto* count = counts.data_ptr<std::int64_t>();
  for (const stage::Stage& stage : stages_) {
    std::copy(stage.parameters_per_layer().begin(), stage.parameters_per_layer().end(),
              count + stage.first_layer());
  }
  sum_over_pipe(counts);
  for (const stage::Stage& stage : stages_) {
    std::int64_t place = 0;
    for (std::int64_t layer = 0; layer < stage.first_layer(); ++layer) place += count[layer];
    for (std::size_t i = 0; i < stage.parameters().size(); ++i) {
      parameter_place_.push_back(place++);
    }
  }
  for (std::size_t layer = 0; layer < model_.size(); ++layer) model_parameters_ += count[layer];
}

std::unique_ptr<execute::Executor> Trainer::make_executor(const verify::VerifiedSchedule& schedule,
                                                          bool reduce) {
  std::vector<stage::Stage*> chunks;
  std::vector<execute::StageHooks*> hooks;
  for (stage::Stage& stage : stages_) chunks.push_back(&stage);
  if (reduce) {
    for (const auto& reducer : reducers_) hooks.push_back(reducer.get());
  }
  return std::make_unique<execute::Executor>(
      lower::lower(schedule, partition_, mesh_, communicator_.rank()), std::move(chunks),
      std::move(hooks), communicator_, progress_);
}

std::vector<stage::NamedParameter> Trainer::parameters() const {
  std::vector<stage::NamedParameter> parameters;
  for (const stage::Stage& stage : stages_) {
    parameters.insert(parameters.end(), stage.parameters().begin(), stage.parameters().end());
  }
  return parameters;
}

std::vector<nn::Values> Trainer::split(const nn::Values& batch) const {
  const std::int64_t count = options_.microbatches;
  std::vector<nn::Values> microbatches(static_cast<std::size_t>(count));
  for (const at::Tensor& tensor : batch) {
    if (!tensor.defined() || tensor.dim() == 0 || tensor.size(0) == 0 ||
        tensor.size(0) % count != 0) {
      throw Error(penstock::str(
          "a batch of shape ", tensor.defined() ? tensor.sizes() : at::IntArrayRef(),
          " does not split into ", count, " microbatches of equal size along its first dimension"));
    }
    const auto parts = tensor.split(tensor.size(0) / count);
    for (std::size_t m = 0; m < parts.size(); ++m) microbatches[m].push_back(parts[m]);
  }
  return microbatches;
}

execute::StepInputs Trainer::step_inputs(const nn::Values& inputs,
                                         const nn::Values& targets) const {
  const double microbatches = options_.microbatches * options_.mesh.data;
  execute::StepInputs step{.loss = loss_, .loss_factor = 1.0 / microbatches};
  if (is_first_stage()) step.inputs = split(inputs);
  if (is_last_stage()) step.targets = split(targets);
  return step;
}

void Trainer::sum_over_pipe(const at::Tensor& tensor) {
  communicator_.all_reduce(tensor, pipe_group_)->wait();
}

// Shares the loss, the gradient norm and the wish to stop; returns the norm.  The squared norms of
// the parameters are added in model order on every rank, whatever the layout: summing them with
// zeros over the pipe is exact.
double Trainer::combine(const execute::StepResult& result, StepReport& report) {
  enum : std::int64_t { kLoss, kBadMicrobatches, kStop, kNorms };
  const at::Tensor shared = at::zeros({kNorms + model_parameters_}, at::kDouble);
  auto* value = shared.data_ptr<double>();
  if (is_last_stage()) {
    for (const at::Tensor& loss : result.losses) {
      const double microbatch_loss = loss.item<double>();
      value[kLoss] += microbatch_loss;
      if (!std::isfinite(microbatch_loss)) value[kBadMicrobatches] += 1;
    }
  }
  value[kStop] = stop_requested_ ? 1 : 0;
  const execute::WaitMark wait(progress_, "sharing the loss and the gradient norm");
  communicator_.all_reduce(shared.narrow(0, 0, kNorms), data_group_)->wait();
  const auto mine = parameters();
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const at::Tensor& gradient = mine[i].tensor.grad();
    if (!gradient.defined()) continue;
    const double norm = at::linalg_vector_norm(gradient, 2, {}, false, at::kDouble).item<double>();
    value[kNorms + parameter_place_[i]] = norm * norm;
  }
  sum_over_pipe(shared);

  report.loss = value[kLoss] / (options_.microbatches * options_.mesh.data);
  report.stop = value[kStop] > 0;
  double sum = 0.0;
  for (std::int64_t i = 0; i < model_parameters_; ++i) sum += value[kNorms + i];
  if (value[kBadMicrobatches] > 0) {
    throw NumericsError(str("step ", report.step, ": the loss of ", value[kBadMicrobatches], " of ",
                            options_.microbatches * options_.mesh.data,
                            " microbatches is not finite; their mean is ", shortest(report.loss)),
                        {"the weights are as before this step",
                         "lower optimizer.params.lr, or set gradient_clipping"});
  }
  return std::sqrt(sum);
}

void Trainer::clip(double norm) {
  if (options_.gradient_clipping <= 0) return;
  const double factor = options_.gradient_clipping / (norm + 1e-6);
  if (factor >= 1) return;
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters()) {
    if (parameter.tensor.grad().defined()) gradients.push_back(parameter.tensor.grad());
  }
  if (!gradients.empty()) at::_foreach_mul_(gradients, factor);
}

StepReport Trainer::compute_gradients(const nn::Values& inputs, const nn::Values& targets) {
  StepReport report{.step = steps_taken_ + 1};
  progress_.step.store(report.step, std::memory_order_relaxed);
  for (stage::Stage& stage : stages_) stage.drop_gradients();
  const execute::StepResult result = train_->run(step_inputs(inputs, targets));
  const torch::NoGradGuard no_grad;
  report.grad_norm = combine(result, report);
  return report;
}

StepReport Trainer::step(const nn::Values& inputs, const nn::Values& targets) {
  StepReport report = compute_gradients(inputs, targets);
  if (!std::isfinite(report.grad_norm)) {
    throw NumericsError(str("step ", report.step, ": the gradient norm is ",
                            shortest(report.grad_norm), " at loss ", shortest(report.loss)),
                        {"the weights are as before this step",
                         "lower optimizer.params.lr, or set gradient_clipping"});
  }
  const torch::NoGradGuard no_grad;
  clip(report.grad_norm);
  report.lr =
      options_.optimizer.lr * lr_factor(options_.scheduler, report.step, options_.total_steps);
  optimizer_->step(report.lr);
  steps_taken_ = report.step;
  return report;
}

double Trainer::evaluate(const nn::Values& inputs, const nn::Values& targets) {
  if (!evaluate_) {
    evaluate_ = make_executor(forward_schedule(*schedule_, options_.microbatches), false);
  }
  const execute::StepResult result = evaluate_->run(step_inputs(inputs, targets));
  const at::Tensor sum = at::zeros({1}, at::kDouble);
  if (is_last_stage()) {
    for (const at::Tensor& loss : result.losses) *sum.data_ptr<double>() += loss.item<double>();
  }
  const execute::WaitMark wait(progress_, "sharing the validation loss");
  communicator_.all_reduce(sum, data_group_)->wait();
  sum_over_pipe(sum);
  return sum.item<double>() / (options_.microbatches * options_.mesh.data);
}

nn::Values Trainer::infer(const nn::Values& inputs) {
  if (!infer_) infer_ = make_executor(forward_schedule(*schedule_, 1), false);
  execute::StepInputs step;
  if (is_first_stage()) step.inputs = {inputs};
  return infer_->run(step).outputs[0];
}

at::Tensor Trainer::infer(const at::Tensor& input) {
  const nn::Values outputs = infer(nn::Values(input));
  return is_last_stage() ? nn::the_only(outputs, "the output of infer() of a tensor")
                         : at::Tensor();
}

}  // namespace penstock::train
