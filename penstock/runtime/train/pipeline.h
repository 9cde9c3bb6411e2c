// A program over stages that somebody else made: the body of a training loop without an optimizer.
//
// The Python package runs its schedules with it; the Trainer is for models that are lists of
// layers, and also cuts batches and steps an optimizer.  Gradients stay where autograd adds them,
// and each replica has those of its own microbatches, unless the pipeline is given
// RankParameters, which sum them.  Knows no microbatch sizes.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/nn/layer.h"
#include "penstock/partition/partition.h"
#include "penstock/runtime/execute/executor.h"
#include "penstock/runtime/execute/stage_hooks.h"
#include "penstock/runtime/parameters/rank_parameters.h"
#include "penstock/runtime/stage/stage.h"
#include "penstock/runtime/train/handshake.h"
#include "penstock/runtime/train/tied_stages.h"
#include "penstock/verify/verify.h"

namespace penstock::train {

// One of this rank's stages, as a single layer.
struct PipelineStage {
  StageId stage;
  std::shared_ptr<nn::Layer> layer;
  std::shared_ptr<execute::StageHooks> hooks;  // Null: there is nothing to share.
  c10::Device device = at::kCPU;               // The layer's device, one for all layers of a rank.
  // Whether the backward that comes may run another one within it; absent: it does not.
  std::function<bool()> may_nest;
};

class Pipeline {
 public:
  // Collective over all ranks of `communicator`, which must outlive it: a mesh of the program's
  // ranks x `replicas`.  An order of compute gets its messages here.  `facts` are what else the
  // ranks must have in common (handshake.h).  `ties` are the parameters that this rank's stages
  // share with others of its replica.  `replicated` outlives the pipeline and takes the place of
  // hooks; null: stages keep theirs.  It has one set for each stage of this rank, in rising
  // order, and a last set for parameters that stages share.  Their gradients are the sums over
  // replicas when a run is over, and the parameters may come and go in a run.
  // Throws: ScheduleError for a program that does not verify; ConfigError when it is for another
  // number of ranks, `stages` are not those that it has on this one, or ties do not fit; CommError
  // when the ranks do not have the same program.
  Pipeline(schedule::Schedule program, std::vector<PipelineStage> stages, std::vector<Tie> ties,
           const Facts& facts, comm::Communicator& communicator, std::int32_t replicas = 1,
           parameters::RankParameters* replicated = nullptr);
  ~Pipeline();

  // Runs the program; one that only runs the model trains nothing.
  // Throws: as Executor::run(); Error for a frozen parameter that requires a gradient by now.
  execute::StepResult run(const execute::StepInputs& inputs);
  // Runs the model with every stage where the program has it, keeps no graph and changes nothing.
  // `microbatches`: as many as the program has, if absent; the same on all ranks of a replica.
  execute::StepResult evaluate(const execute::StepInputs& inputs,
                               std::optional<std::int32_t> microbatches = {});

  // The executor that trains: something may stand in for its actions.
  execute::Executor& executor() { return *train_; }

  const verify::VerifiedSchedule& schedule() const { return schedule_; }
  const stage::ActivationCount& activations() const { return *activations_; }

 private:
  void check_stages() const;
  template <class Run>
  execute::StepResult running(const char* name, const Run& run);
  void sum_shared(double divisor);
  std::unique_ptr<execute::Executor> make_executor(const verify::VerifiedSchedule& schedule,
                                                   bool with_hooks);

  comm::Communicator& communicator_;
  parameters::RankParameters* replicated_;  // Null: hooks of the stages do what replicas do.
  verify::VerifiedSchedule schedule_;
  std::vector<PipelineStage> given_;
  mesh::Mesh mesh_;
  partition::Partition partition_;  // A layer to each stage.
  std::shared_ptr<stage::ActivationCount> activations_;
  std::vector<stage::Stage> stages_;
  std::optional<TiedStages> ties_;
  execute::Progress progress_;
  std::unique_ptr<execute::Executor> train_;
  // Made with the first evaluation, and again for another number of microbatches.
  std::unique_ptr<execute::Executor> evaluate_;
};

}  // namespace penstock::train
