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
// Shapes: inputs and targets of a batch are [samples, ...]; they may change from step to step.
// Numerics: gradients accumulate in microbatch order; the loss is the mean over all samples of the
// step, however they are cut; with one data rank, or GradientSums::Invariant, every layout gives
// the same bits (docs/numerics.md).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/comm/shard_group.h"
#include "penstock/config/config.h"
#include "penstock/execute/executor.h"
#include "penstock/execute/stage_hooks.h"
#include "penstock/execute/tied_parameters.h"
#include "penstock/lower/programs.h"
#include "penstock/mesh/mesh.h"
#include "penstock/nn/layer.h"
#include "penstock/offload/place.h"
#include "penstock/partition/partition.h"
#include "penstock/replicas/replicated_parameters.h"
#include "penstock/replicas/zero_options.h"
#include "penstock/stage/stage.h"
#include "penstock/train/facts.h"
#include "penstock/train/microbatches.h"
#include "penstock/train/model_order.h"
#include "penstock/train/precision.h"
#include "penstock/update/optimizer.h"
#include "penstock/update/update.h"

namespace penstock::train {

using config::ZeroStage;
using replicas::GradientSums;
using replicas::ZeroOptions;

// Where a rank keeps optimizer states and parameters while it does not use them.  The host updates
// those that are not on the device.
struct OffloadOptions {
  // Optimizer states, and masters of short types, between their updates.  Device: where what is
  // updated is.
  offload::Where states;
  // With ZeroStage::Parameters, also with one data rank: its pieces of parameters.
  offload::Where parameters;
  std::int64_t elements_at_once = std::int64_t{1} << 22;  // That are updated, or read ahead.
};

struct TrainerOptions {
  mesh::Shape mesh;
  std::string schedule = "1f1b";                     // A registered name, unless `program` is set.
  std::string program;                               // Path of a CSV program.
  std::optional<std::int32_t> stages_per_rank = {};  // Absent: as many as the schedule has.
  std::int32_t microbatches = 1;                     // Per step and replica.
  partition::Method partition = partition::ByParameters{};
  config::OptimizerConfig optimizer;
  config::SchedulerConfig scheduler;
  std::int64_t total_steps = 100;  // For the learning-rate schedule.
  double gradient_clipping = 0.0;  // Largest global 2-norm; 0: none.
  LossScale loss_scale;            // By default, a mean over samples.
  Precision precision;
  GradientSums sums = GradientSums::AsTheyCome;
  ZeroOptions zero;
  OffloadOptions offload;
  stage::Checkpointing checkpointing;
  std::int64_t seed = 1234;
  c10::Device device = at::kCPU;  // Where this rank has its stages.
  // Where it tells what it is at, from its construction on; it outlives the trainer.  Null: nobody
  // is told.
  execute::Progress* progress = nullptr;
  // What else all ranks must have in common, by name: a hash of what they read themselves, say.
  Facts facts;
};

// What says which program they train.
lower::ProgramOptions program_of(const TrainerOptions& options);

struct StepReport {
  std::int64_t step = 0;  // From 1.
  double loss = 0.0;      // Of the whole step, all replicas: see LossScale.
  double lr = 0.0;
  double grad_norm = 0.0;  // Global 2-norm before clipping, each parameter once.
  // With a gradient scale (Precision): what it was, and whether gradients overflowed, so that no
  // parameter was updated.
  std::optional<double> gradient_scale;
  bool skipped = false;
  bool stop = false;  // Some rank asked for it (request_stop): all ranks stop here.
};

class Trainer {
 public:
  // Collective over all ranks of `communicator`, which must outlive the trainer; `loss` is that of
  // one microbatch, as options.loss_scale takes it.
  // Throws: ConfigError or ScheduleError when the options, the model and the world do not fit;
  // CommError when the ranks do not have the same of them.
  Trainer(const TrainerOptions& options, std::vector<nn::LayerSpec> model, nn::Loss loss,
          comm::Communicator& communicator);
  ~Trainer();

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
  // in parts().
  StepReport compute_gradients(const nn::Values& inputs, const nn::Values& targets);
  StepReport compute_gradients(const std::vector<Microbatches>& batches);
  void update(StepReport& report);

  // The loss of a batch like step()'s, all replicas.  Keeps no graph and changes nothing, gradients
  // included.
  double evaluate(const nn::Values& inputs, const nn::Values& targets);
  double evaluate(const Microbatches& batch);

  // The model's outputs for `inputs` as one microbatch, on the last stage's ranks; empty, or
  // undefined, elsewhere.
  nn::Values infer(const nn::Values& inputs);
  at::Tensor infer(const at::Tensor& input);

  // Lets every rank stop after the same step: the next StepReport says so everywhere.
  void request_stop() { stop_requested_ = true; }

  // Sums `tensor` over all ranks of this replica, in place.
  void sum_over_pipe(const at::Tensor& tensor);

  bool is_first_stage() const { return train_->plan().has_first_stage; }
  bool is_last_stage() const { return train_->plan().has_last_stage; }
  const mesh::Mesh& mesh() const { return mesh_; }
  const partition::Partition& partition() const { return partition_; }
  const verify::VerifiedSchedule& schedule() const { return *schedule_; }
  const std::vector<nn::LayerSpec>& model() const { return model_; }
  std::vector<stage::Stage>& stages() { return stages_; }
  const stage::ActivationCount& activations() const { return *activations_; }
  execute::Executor& executor() { return *train_; }

  // With ZeroStage::Parameters: makes parameters() whole, to be read and not changed, until what is
  // returned is destroyed.  Both are collective over the data ranks of a stage.  Else nothing.
  class [[nodiscard]] WholeParameters {
   public:
    explicit WholeParameters(Trainer& trainer);
    // A parameter that was changed is an error of the next step.
    ~WholeParameters();
    WholeParameters(const WholeParameters&) = delete;
    WholeParameters& operator=(const WholeParameters&) = delete;

   private:
    Trainer& trainer_;
  };
  WholeParameters whole_parameters() { return WholeParameters(*this); }

  // What parameters of ZeroStage::Parameters came and went in the last run of a program.
  zero::PagerReport paging() const { return replicated_->paging(); }

  // What this rank updates of parameters(); those of a short type by way of masters().
  const update::Parts& parts() const { return replicated_->parts(); }
  // Who has which parameter of a stage of this rank.
  const partition::Ownership& ownership(std::size_t stage) const {
    return replicated_->ownership(stage);
  }
  const update::MasterWeights& masters() const { return update_->masters(); }
  // Of the files with its states and pieces of parameters; 0 without any.
  std::int64_t offloaded_bytes() const;
  std::int64_t skipped_steps() const { return update_->skipped_steps(); }

  // This rank's trainable parameters, in model order.  One that layers share is there once, on
  // every rank that has one of them, under the name that it has in the first.
  const std::vector<stage::NamedParameter>& parameters() const { return order_->parameters(); }

 private:
  void build_stages();
  void build_groups();
  stage::Making making();
  execute::StepResult run(execute::Executor& executor, const char* name,
                          execute::StepInputs inputs);
  void build_ties();
  execute::Files files_in_programs() const;
  std::vector<nn::TiedParameter> updated_copies(std::size_t stage) const;
  lower::Plan lower_here(const verify::VerifiedSchedule& schedule) const;
  std::unique_ptr<execute::Executor> make_executor(lower::Plan plan,
                                                   std::vector<execute::StageHooks*> hooks);
  std::unique_ptr<execute::Executor> make_executor(const verify::VerifiedSchedule& forward);
  std::vector<execute::StageHooks*> hooks();
  Microbatches cut(const nn::Values& inputs, const nn::Values& targets) const;
  void check(const std::vector<Microbatches>& batches) const;
  std::vector<double> weights(const std::vector<Microbatches>& batches);
  std::vector<double> over_replicas(const std::vector<double>& mine, const char* phase);
  std::vector<double> run(const std::vector<Microbatches>& batches,
                          const std::vector<double>& factors, std::int64_t step);
  void share_buffers();
  double combine(const std::vector<double>& losses, const std::vector<double>& weights,
                 std::int64_t microbatches, StepReport& report);
  void build_optimizer();

  TrainerOptions options_;
  std::vector<nn::LayerSpec> model_;
  nn::Loss loss_;
  comm::Communicator& communicator_;
  execute::Progress own_progress_;
  execute::Progress& progress_;
  mesh::Mesh mesh_;
  partition::Partition partition_;
  std::optional<verify::VerifiedSchedule> schedule_;
  std::shared_ptr<stage::ActivationCount> activations_;
  std::vector<stage::Stage> stages_;
  std::optional<comm::ShardGroup> data_group_;
  comm::Group pipe_group_;
  std::optional<replicas::ReplicatedParameters> replicated_;  // A set for each stage.
  std::vector<std::unique_ptr<execute::TiedParameters>> ties_;
  std::unique_ptr<execute::Executor> train_;
  std::unique_ptr<execute::Executor> evaluate_;
  std::unique_ptr<execute::Executor> infer_;
  std::unique_ptr<update::Update> update_;
  std::unique_ptr<update::Optimizer> optimizer_;
  std::optional<ModelOrder> order_;
  std::int64_t steps_taken_ = 0;  // Skipped ones, too.
  bool stop_requested_ = false;
};

}  // namespace penstock::train
