// Wires planning, stages, executors and the optimizer into a training loop's body.
//
// The entry point for C++ users: make one on every rank, then call step() with this replica's
// batch. Owns nothing that a layer below could own; knows no files and no command line.
//
//   comm::run_ranks(2, [](comm::Communicator& communicator) {
//     train::Trainer trainer({.mesh = {.pipe = 2}, .microbatches = 4}, layers, loss, communicator);
//     for (const auto& [input, target] : batches) trainer.step(input, target);
//   });
//
// Shapes: inputs and targets of a batch are [samples, ...]; they may change from step to step.  A
// program of several replicas takes the whole step's batch, the same on each rank with the first
// stage, or the last.
// Ranks that share layers (mesh axis "tensor") are given the same batches.
// Weights: the next step begins with what the program sets in parameters() between steps, on all
// ranks alike.  That holds in every precision and under every stage of ZeRO.  Parameters that come
// and go (ZeroStage::Parameters) are set while they are whole (RankModel::whole_parameters()).
// Ranks that have set a parameter to different values are an error of the next step, which names
// it.  Of buffers, those of the first replica count.
// Numerics: gradients accumulate in microbatch order; the loss is the mean over all samples of the
// step, however they are cut; with one data rank, or GradientSums::Invariant, every layout of whole
// replicas gives the same bits (docs/numerics.md).
#pragma once
#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/files/checkpoint/manifest.h"
#include "penstock/nn/layer.h"
#include "penstock/runtime/execute/executor.h"
#include "penstock/runtime/stage/state_before.h"
#include "penstock/runtime/train/microbatches.h"
#include "penstock/runtime/train/rank_model.h"
#include "penstock/runtime/train/step_weights.h"
#include "penstock/runtime/train/training_calls.h"
#include "penstock/runtime/update/optimizer.h"
#include "penstock/runtime/update/update.h"
#include "penstock/train/trainer_options.h"
#include "penstock/train/training_program.h"

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace penstock::train {

struct OwnSettings;

// What a rank tells all ranks with the gradients of a step.
struct StepSignals {
  bool stop = false;  // Makes all ranks stop after this step.
  bool save = false;  // A checkpoint is due.
  bool busy = false;  // Work goes on beside the steps.
};

struct StepReport {
  std::int64_t step = 0;   // Counts from 1.
  double loss = 0.0;       // Loss of the whole step, all replicas: see LossScale.
  double lr = 0.0;         // Learning rate; it may be set before update(), on all ranks alike.
  double grad_norm = 0.0;  // Global 2-norm before clipping, each parameter once.
  // The gradient scale (Precision) of the step; absent: there is none.  `skipped` says that
  // gradients overflowed, so that no parameter was updated.
  std::optional<double> gradient_scale;
  bool skipped = false;
  StepSignals words;  // Words that any rank had set when its gradients were there.
};

// What becomes of gradients that were computed before and not applied.
enum class EarlierGradients : std::uint8_t {
  Refused,  // An error.
  Added,    // The new ones are added to them, as two backwards add.
};

// The one who takes a step: the optimizer of the options, or one of torch::optim, or of its form,
// at rates of its own.  An optimizer that was made of a Trainer's parameters() gets what this rank
// updates in their place: masters, or slices.  Checkpoints do not have its states.
class UpdatedBy {
 public:
  UpdatedBy() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): step(inputs, targets, optimizer).
  UpdatedBy(torch::optim::Optimizer& optimizer) : own_(&optimizer) {}
  torch::optim::Optimizer* own() const { return own_; }  // The program's; null: the options'.

 private:
  torch::optim::Optimizer* own_ = nullptr;
};

// What a rank updates of a parameter: the whole, or the slice from element `first` on, flat.
struct PartOfParameter {
  std::string name;  // The parameter's.
  at::Tensor part;   // Its grad() may be undefined, and be replaced.
  std::int64_t first = 0;
};

// What a Trainer trains, between two steps: a rank's part of the model, its masters and its
// optimizer's states.
class TrainedModel {
 public:
  const std::vector<nn::LayerSpec>& layers() const;
  const Layout& layout() const;
  RankModel& rank_model() { return *rank_model_; }
  const RankModel& rank_model() const { return *rank_model_; }
  // The program of layout().schedule; it may change between steps.
  TrainingProgram& program() { return *program_; }
  // This rank's trainable parameters, in model order (rank_model.h).
  const NamedParameters& parameters() const { return rank_model_->parameters(); }
  // The update, with the masters of what this rank updates.
  update::Update& updates() { return *update_; }
  // The optimizer of the masters.  Its states go by part.
  update::Optimizer& optimizer() { return *optimizer_; }
  // Whether an optimizer of the program's own has taken a step.
  bool has_own_optimizer() const { return own_ != nullptr; }
  // Bytes of the files with its states and pieces of parameters; 0: there are none.
  std::int64_t offloaded_bytes() const;

  // Optimizer steps taken, skipped ones too.  A run that was saved goes on after those of its
  // checkpoint (checkpoints.h).
  std::int64_t steps_taken() const { return steps_taken_; }
  void go_on_after(std::int64_t step);

  // A whole tensor by its name in the model, on every rank, in host memory: a parameter, as the
  // optimizer updates it, or a buffer; or what the optimizer keeps of a parameter, by torch's name,
  // "exp_avg" for one.  Collective over all ranks, which call it with the same name.
  // Throws: Error, on every rank, for a name that none of them has, with the nearest one.
  at::Tensor get(const std::string& name, std::string_view state = checkpoint::kWeight);
  // Sets it: what a parameter is updated from, and the parameter, rounded.  Collective over all
  // ranks, also those that have nothing of it, which call it with the same values.  Optimizer
  // states that the parameter does not have yet are made.
  // Throws: Error as get(), and for another shape; DifferenceError for different values.
  void set(const std::string& name, const at::Tensor& values,
           std::string_view state = checkpoint::kWeight);
  // What the program has set up to now is what masters go on from: the next update does so itself,
  // and so does a save.
  void take_changes();

  // The Trainer's calls.  What speaks to all ranks about it makes its own calls there
  // (checkpoints.h).
  TrainingCalls& calls() { return calls_; }

  // What this rank updates, with gradients between compute_gradients() and update().
  std::vector<PartOfParameter> gradients() const;
  // Gives up gradients that were computed and not applied.
  void zero_grad();

 protected:
  // Takes what Trainer's constructor takes.
  TrainedModel(const TrainerOptions& options, std::vector<nn::LayerSpec> layers,
               const nn::Loss& loss, comm::Communicator& communicator);
  ~TrainedModel();
  TrainedModel(TrainedModel&& other) noexcept;

  const TrainerOptions& options() const;
  comm::Communicator& communicator() const;
  execute::Progress& progress() const;

  // Gradients that are to be applied.
  struct Computed {
    std::int64_t step = 0;
    bool overflows = false;  // A loss was not finite.
  };

  struct Fixed;  // What its parts refer to: it stays where it is when a Trainer moves.

  TrainingCalls calls_;  // The first one has begun before layouts are compared.
  std::unique_ptr<Fixed> fixed_;
  std::unique_ptr<RankModel> rank_model_;
  std::unique_ptr<TrainingProgram> program_;
  std::unique_ptr<update::Update> update_;
  std::unique_ptr<update::Optimizer> optimizer_;
  const torch::optim::Optimizer* own_ = nullptr;  // The program's, that has taken a step.
  std::int64_t steps_taken_ = 0;                  // Skipped ones, too.
  std::optional<Computed> computed_;
  std::optional<comm::Group> all_ranks_;  // Once there was a get().
};

class Trainer : public TrainedModel {
 public:
  // Collective over all ranks of `communicator`, which must outlive the trainer; `loss` is that of
  // one microbatch, as options.loss_scale takes it.
  // Throws: ConfigError or ScheduleError when the options, the model and the world do not fit;
  // CommError when the ranks do not have the same of them.
  Trainer(const TrainerOptions& options, std::vector<nn::LayerSpec> layers, nn::Loss loss,
          comm::Communicator& communicator);
  template <std::same_as<TorchTrainerOptions> Options = TorchTrainerOptions>
  Trainer(const Options& options, std::vector<nn::LayerSpec> layers, nn::Loss loss,
          comm::Communicator& communicator)
      : Trainer(with_own_optimizer(options), std::move(layers), std::move(loss), communicator) {}
  // What was made of it, such as Checkpoints, knows the one that it was moved from.
  Trainer(Trainer&& other) noexcept = default;
  Trainer& operator=(Trainer&& other) noexcept;

  // One optimizer step.  `inputs` are used on the first stage's ranks, `targets` on the last's:
  // a tensor or several, with one first dimension.
  // Throws: NumericsError, on every rank, when the loss or the gradient norm is not finite.  With a
  // gradient scale such a step is skipped instead, unless the scale cannot be any smaller.  Error,
  // on every rank, for whatever a layer, the loss or a hook throws on one: it names the rank, the
  // step, the microbatch and the layer.  After either, all is as before the step: the caller may
  // catch it, on every rank, and go on with another batch.  ConfigError, by name, for an optimizer
  // of the program's that cannot update what this rank does.
  StepReport step(const nn::Values& inputs, const nn::Values& targets, UpdatedBy optimizer = {});
  // Runs the program once for each of `batches`, and then takes one optimizer step: what one batch
  // of all their microbatches would give.  REQUIRES: as many batches on every rank.
  StepReport step(const std::vector<Microbatches>& batches, UpdatedBy optimizer = {});

  // The two halves of step().  In between, gradients may be seen and changed, on all replicas
  // alike: in parameters(), or, with ZeRO, in gradients().  They are those of the loss, without
  // the gradient scale.  update() takes their norm, into report.grad_norm, and clips by it.
  // Throws: Error, for gradients that are still to be applied, unless they are to be Added.  Where
  // a half fails, all is as before the step: what earlier gradients there were are dropped, too.
  StepReport compute_gradients(const nn::Values& inputs, const nn::Values& targets,
                               EarlierGradients earlier = EarlierGradients::Refused);
  StepReport compute_gradients(const std::vector<Microbatches>& batches,
                               EarlierGradients earlier = EarlierGradients::Refused);
  // Throws: Error, where compute_gradients() has not given the report, or it was applied already.
  // DifferenceError, naming one, where replicas have changed gradients to different values.  What
  // else fails, but for numbers that are not finite, may leave some parameters updated: then the
  // trainer trains no more.
  void update(StepReport& report, UpdatedBy optimizer = {});

  // The loss of a batch like step()'s, all replicas.  Keeps no graph and changes nothing: neither
  // gradients nor buffers, modes of modules or generators (docs/models.md#evaluation).
  double evaluate(const nn::Values& inputs, const nn::Values& targets);
  double evaluate(const Microbatches& batch);

  // The model's outputs for `inputs` as one microbatch, on the last stage's ranks; empty, or
  // undefined, elsewhere.  Changes nothing either.
  nn::Values infer(const nn::Values& inputs);
  at::Tensor infer(const at::Tensor& input);

  // This rank's words, to be set; the next StepReport has those of all ranks.  They stay.
  StepSignals& words() { return words_; }

 private:
  enum class Use : std::uint8_t { Applied, Shown };  // What becomes of computed gradients.
  // Computes gradients of a step that updates at `rates`, one for each parameter group.
  StepReport compute(const std::vector<Microbatches>& batches, EarlierGradients earlier, Use use,
                     const std::vector<double>& rates);
  // What is computed comes to nothing where it throws.
  template <class Action>
  auto or_undone(const Action& action) {
    try {
      return action();
    } catch (...) {
      undo_step();
      throw;
    }
  }
  void undo_step();
  void compare_batch(const Microbatches& batch, std::int64_t step);
  std::vector<double> run(const std::vector<Microbatches>& batches,
                          const std::vector<double>& weights, std::int64_t step);
  double combine(const std::vector<double>& losses, const std::vector<double>& weights,
                 std::int64_t microbatches, const OwnSettings& own, StepReport& report);
  std::vector<double> rates_of_step(UpdatedBy optimizer);
  void check_computed(const StepReport& report) const;
  double norm_again(const std::vector<double>& rates);
  void apply(StepReport& report, UpdatedBy optimizer);

  // The programs that only go forward, each made when it runs first.
  struct ForwardRuns {
    std::unique_ptr<execute::Executor> evaluate;
    std::unique_ptr<execute::Executor> infer;
    std::int64_t since_step = 0;  // Runs since the last step: each draws other numbers.
  };

  nn::Loss loss_;
  std::optional<StepWeights> weights_;
  stage::StateBefore before_step_;  // Buffers, as its first half found them.
  ForwardRuns forwards_;
  StepSignals words_;
};

}  // namespace penstock::train
