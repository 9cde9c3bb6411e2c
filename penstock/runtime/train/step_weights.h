// What the losses of a step's microbatches weigh, on the ranks that have them.
//
// A Trainer has one.  Samples are counted where the inputs are, on the ranks with the first stage,
// and weighed where the losses are, on those with the last: the ones tell the others, in a message
// of their own.  Knows no programs.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/runtime/execute/progress.h"
#include "penstock/runtime/train/microbatches.h"
#include "penstock/runtime/train/rank_model.h"
#include "penstock/train/trainer_options.h"

namespace penstock::train {

class StepWeights {
 public:
  // Collective over all ranks.  All that is a reference outlives it.
  StepWeights(const TrainerOptions& options, const Layout& layout, RankModel& rank_model,
              comm::Communicator& communicator, execute::Progress& progress);

  // Weights of all replicas' microbatches, on the ranks that have their losses; else none.
  // Collective over all ranks.
  // Throws: Error for what cannot be counted (microbatches.h), and for a step of another number of
  // batches than on another rank.  `step`, if it is not 0, is where errors say they are.
  std::vector<double> of(const std::vector<Microbatches>& batches, std::int64_t step);

 private:
  std::vector<double> samples_of(const Microbatches& batch, std::size_t batches);
  std::vector<double> of_this_replica(const Microbatches& batch, std::size_t batches);

  const TrainerOptions& options_;
  RankModel& rank_model_;
  comm::Communicator& communicator_;
  execute::Progress& progress_;
  std::int32_t tag_;
  std::vector<Rank> tells_;
  std::vector<std::unique_ptr<comm::Transfer>> told_;  // The last time.
  std::optional<Rank> hears_from_;
};

}  // namespace penstock::train
