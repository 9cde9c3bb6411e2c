// What one rank has of the model: its stages, their parameters as their Ownership places them, and
// the groups of ranks that it shares them with.
//
// A Trainer has one.  Its executors run the stages, its update() takes parts() to their next
// values.  Knows no losses, no batches and no optimizer.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/mesh/mesh.h"
#include "penstock/nn/layer.h"
#include "penstock/partition/partition.h"
#include "penstock/runtime/execute/executor.h"
#include "penstock/runtime/execute/stage_hooks.h"
#include "penstock/runtime/nn/owned_memory.h"
#include "penstock/runtime/parameters/rank_parameters.h"
#include "penstock/runtime/parameters/tied_parameters.h"
#include "penstock/runtime/stage/stage.h"
#include "penstock/runtime/train/group_sums.h"
#include "penstock/runtime/train/handshake.h"
#include "penstock/runtime/train/model_order.h"
#include "penstock/runtime/train/sharing_ranks.h"
#include "penstock/train/trainer_options.h"

namespace penstock::train {

// Who runs what: the same on every rank.
struct Layout {
  mesh::Mesh mesh;
  verify::VerifiedSchedule schedule;
  partition::Partition partition;
};

// The layers of a rank of the schedule.
std::set<std::int64_t> layers_of(Rank rank, const verify::VerifiedSchedule& schedule,
                                 const partition::Partition& partition);

class RankModel {
 public:
  // Collective over all ranks.  Makes the layers of this rank's stages, one by one; they are
  // compared between replicas.  What is a reference outlives this, but for `maker`.
  // Throws: ConfigError for layers, ties and options that do not fit, and for memory that another
  // layer has, too; DifferenceError when replicas made different ones.
  RankModel(const TrainerOptions& options, const std::vector<nn::LayerSpec>& layers,
            const Layout& layout, nn::LayerMaker& maker, comm::Communicator& communicator,
            execute::Progress& progress);

  const mesh::Groups& groups() const { return sums_.groups(); }
  GroupSums& sums() { return sums_; }
  // The ranks that share this one's layers.
  SharingRanks& sharing() { return sharing_; }
  std::vector<stage::Stage>& stages() { return stages_; }
  // Whether one of them is the model's first, or its last.
  bool is_first_stage() const { return is_first_stage_; }
  bool is_last_stage() const { return is_last_stage_; }
  const stage::ActivationCount& activations() const { return *activations_; }

  // This rank's trainable parameters, in model order.  One that layers share is there once, on
  // every rank that has one of them, under the name that it has in the first.
  const NamedParameters& parameters() const { return order_->parameters(); }
  // How they are placed, and what this rank updates of them.  A set for each stage.
  parameters::RankParameters& replicated() { return *replicated_; }
  const parameters::RankParameters& replicated() const { return *replicated_; }

  // Makes parameters() whole under ZeroStage::Parameters, until what is returned is destroyed; else
  // does nothing.  Both are collective over the data ranks of a stage.  What all of these ranks set
  // in a parameter meanwhile, to the same values, is what it trains on with.
  class [[nodiscard]] WholeParameters {
   public:
    explicit WholeParameters(parameters::RankParameters& replicated);
    ~WholeParameters();
    WholeParameters(const WholeParameters&) = delete;
    WholeParameters& operator=(const WholeParameters&) = delete;

   private:
    parameters::RankParameters& replicated_;
  };
  WholeParameters whole_parameters() { return WholeParameters(*replicated_); }

  // An executor that runs `plan` over the stages, and sums their gradients over the replicas.
  std::unique_ptr<execute::Executor> training_executor(lower::Plan plan);
  // An executor that trains nothing.
  std::unique_ptr<execute::Executor> forward_executor(lower::Plan plan);
  // Runs the executor's program, in which parameters may come and go; runs of one name read them
  // alike.  Inputs become of the type that the model computes in.
  execute::StepResult run(execute::Executor& executor, const char* name,
                          execute::StepInputs inputs);

  // Collective, after the program: gradients of which ranks that share layers have summands become
  // the sums, and a tied parameter's copies get the sum of theirs.
  void sum_shared_gradients();
  // Collective over the ranks with the same parameters: buffers become those of the first.
  void share_buffers();
  // The squares of gradients' 2-norms.
  struct SquaredNorms {
    std::vector<double> here;     // Squares of parameters(), and of parts of parameters.
    std::vector<double> counted;  // The same in model order; 0: other ranks count it.
    double apart = 0.0;           // The sum of SharingRanks::apart().
  };
  // Collective over the ranks with the same parameters.
  SquaredNorms squared_norms();

 private:
  std::unique_ptr<parameters::GrowingParameters> build_stages(
      const std::vector<nn::LayerSpec>& layers, const Layout& layout, nn::LayerMaker& maker);
  stage::Making making(const std::vector<nn::LayerSpec>& layers, nn::LayerMaker& maker,
                       parameters::GrowingParameters& growing);
  void build_ties(const std::vector<nn::LayerSpec>& layers, const Layout& layout);
  std::vector<nn::TiedParameter> updated_copies(std::size_t stage) const;
  std::unique_ptr<execute::Executor> make_executor(lower::Plan plan,
                                                   std::vector<execute::StageHooks*> hooks);
  std::vector<execute::StageHooks*> hooks();
  execute::Files files_in_programs() const;

  const TrainerOptions& options_;
  comm::Communicator& communicator_;
  execute::Progress& progress_;
  GroupSums sums_;
  SharingRanks sharing_;
  bool is_first_stage_ = false;
  bool is_last_stage_ = false;
  std::shared_ptr<stage::ActivationCount> activations_;
  nn::OwnedMemory owned_;     // Memory that the layers have.
  ValueHashes first_values_;  // Hashes of parameters' values as the layers made them.
  std::vector<stage::Stage> stages_;
  std::optional<parameters::RankParameters> replicated_;
  std::vector<std::unique_ptr<parameters::TiedParameters>> ties_;
  std::optional<ModelOrder> order_;
};

}  // namespace penstock::train
