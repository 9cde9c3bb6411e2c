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
// Numerics: gradients accumulate in microbatch order; the loss is the mean over all samples of the
// step, however they are cut; with one data rank, or GradientSums::Invariant, every layout of whole
// replicas gives the same bits (docs/numerics.md).
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/execute/executor.h"
#include "penstock/nn/layer.h"
#include "penstock/train/microbatches.h"
#include "penstock/train/rank_model.h"
#include "penstock/train/trainer_options.h"
#include "penstock/train/training_program.h"
#include "penstock/update/optimizer.h"
#include "penstock/update/update.h"

namespace penstock::train {

// What a rank tells all ranks with the gradients of a step.
struct StepWords {
  bool stop = false;  // All ranks stop after this step.
  bool save = false;  // A checkpoint is due.
  bool busy = false;  // Work goes on beside the steps.
};

struct StepReport {
  std::int64_t step = 0;  // From 1.
  double loss = 0.0;      // Of the whole step, all replicas: see LossScale.
  double lr = 0.0;
  double grad_norm = 0.0;  // Global 2-norm before clipping, each parameter once.
  // With a gradient scale (Precision): what it was, and whether gradients overflowed, so that no
  // parameter was updated.
  std::optional<double> gradient_scale;
  bool skipped = false;
  StepWords words;  // Of any rank, when its gradients were there.
};

class Trainer {
 public:
  // Collective over all ranks of `communicator`, which must outlive the trainer; `loss` is that of
  // one microbatch, as options.loss_scale takes it.
  // Throws: ConfigError or ScheduleError when the options, the model and the world do not fit;
  // CommError when the ranks do not have the same of them.
  Trainer(const TrainerOptions& options, std::vector<nn::LayerSpec> layers, nn::Loss loss,
          comm::Communicator& communicator);
  ~Trainer();
  // What was made of it, such as Checkpoints, knows the one that it was moved from.
  Trainer(Trainer&& other) noexcept;
  Trainer& operator=(Trainer&& other) noexcept;

  // One optimizer step.  `inputs` are used on the first stage's ranks, `targets` on the last's:
  // a tensor or several, with one first dimension.
  // Throws: NumericsError, on every rank, when the loss or the gradient norm is not finite; the
  // parameters are then as before the step.  With a gradient scale such a step is skipped instead,
  // unless the scale cannot be any smaller.
  StepReport step(const nn::Values& inputs, const nn::Values& targets);
  // Runs the program once for each of `batches`, and then takes one optimizer step: what one batch
  // of all their microbatches would give.  REQUIRES: as many batches on every rank.
  StepReport step(const std::vector<Microbatches>& batches);

  // The two halves of step().  Gradients stay until the next step: in parameters(), or, with ZeRO,
  // in the parts that this rank updates.
  StepReport compute_gradients(const nn::Values& inputs, const nn::Values& targets);
  StepReport compute_gradients(const std::vector<Microbatches>& batches);
  void update(StepReport& report);

  // The loss of a batch like step()'s, all replicas.  Keeps no graph and changes nothing: neither
  // gradients nor buffers, modes of modules or generators (docs/models.md#evaluation).
  double evaluate(const nn::Values& inputs, const nn::Values& targets);
  double evaluate(const Microbatches& batch);

  // The model's outputs for `inputs` as one microbatch, on the last stage's ranks; empty, or
  // undefined, elsewhere.  Changes nothing either.
  nn::Values infer(const nn::Values& inputs);
  at::Tensor infer(const at::Tensor& input);

  // Of this rank, to be set; the next StepReport has those of all ranks.  They stay.
  StepWords& words() { return words_; }

  // Optimizer steps taken, skipped ones too.  A run that was saved goes on after those of its
  // checkpoint (checkpoints.h).
  std::int64_t steps_taken() const { return steps_taken_; }
  void go_on_after(std::int64_t step) { steps_taken_ = step; }

  const std::vector<nn::LayerSpec>& layers() const { return layers_; }
  const Layout& layout() const { return layout_; }
  RankModel& rank_model() { return *rank_model_; }
  const RankModel& rank_model() const { return *rank_model_; }
  // Of layout().schedule; it may change between steps.
  TrainingProgram& program() { return *program_; }
  // This rank's trainable parameters, in model order (rank_model.h).
  const std::vector<stage::NamedParameter>& parameters() const { return rank_model_->parameters(); }
  // With the masters of what this rank updates.
  update::Update& updates() { return *update_; }
  // Of the masters; its states, by part.
  update::Optimizer& optimizer() { return *optimizer_; }
  // Of the files with its states and pieces of parameters; 0 without any.
  std::int64_t offloaded_bytes() const;

 private:
  std::vector<double> weights(const std::vector<Microbatches>& batches);
  std::vector<double> run(const std::vector<Microbatches>& batches,
                          const std::vector<double>& factors, std::int64_t step);
  double combine(const std::vector<double>& losses, const std::vector<double>& weights,
                 std::int64_t microbatches, StepReport& report);

  struct Fixed;  // What parts of it point to, and so stays where it is when a Trainer moves.

  std::unique_ptr<Fixed> fixed_;
  const TrainerOptions& options_;
  const std::vector<nn::LayerSpec>& layers_;
  nn::Loss loss_;
  comm::Communicator& communicator_;
  execute::Progress& progress_;
  Layout& layout_;
  std::unique_ptr<RankModel> rank_model_;
  std::unique_ptr<TrainingProgram> program_;
  std::unique_ptr<execute::Executor> evaluate_;
  std::unique_ptr<execute::Executor> infer_;
  std::unique_ptr<update::Update> update_;
  std::unique_ptr<update::Optimizer> optimizer_;
  std::int64_t steps_taken_ = 0;  // Skipped ones, too.
  std::int64_t evaluations_ = 0;  // Since the last step: each draws other numbers.
  StepWords words_;
};

}  // namespace penstock::train
