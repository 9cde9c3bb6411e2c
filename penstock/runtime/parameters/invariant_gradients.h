// A stage's weight gradients, summed over microbatches and replicas in an order that depends on the
// microbatches' numbers alone: the same bits for every number of replicas and every schedule, and
// whichever of the ranks has which microbatches.
//
// Stands in for the GradientReducer where layouts are to agree to the bit.  The price:
// log2(microbatches) partial sums of gradients are kept.  Every replica gets the sums of all at the
// end of the step, and no backward hides that.
// Invariant: after finish(), grad() is the sum_tree.h sum of the microbatches' gradients, divided;
// a parameter that got no gradient from any of them has none.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/runtime/comm/shard_group.h"
#include "penstock/runtime/execute/stage_hooks.h"
#include "penstock/runtime/parameters/divided.h"
#include "penstock/runtime/parameters/sum_tree.h"
#include "penstock/runtime/stage/stage.h"

namespace penstock::parameters {

class InvariantGradients : public execute::StageHooks {
 public:
  // `group` outlives it.  Its ranks have the microbatches 0, 1, ... of a step, each on one of them.
  // `whole_gradients` makes the gradients of a microbatch whole of which this rank has summands;
  // null: there are none.
  InvariantGradients(std::vector<stage::NamedParameter> parameters,
                     comm::Communicator& communicator, const comm::ShardGroup& group,
                     std::function<void()> whole_gradients = nullptr);

  void after_backward(std::int64_t microbatch) override;
  void before_last_backward(double divisor) override { divisor_ = Divisor(divisor); }
  void finish() override;
  void drop_sums() override;  // Called on all ranks of the group.

 private:
  // What the ranks of the group have, by what this one has: a step with as many batches has the
  // same.
  struct Shares {
    std::vector<std::int64_t> mine;  // Numbers, rising.
    std::int64_t microbatches = 0;   // Number of all.
    // Subtrees that the ranks' microbatches become, of one after the other.
    std::vector<Subtree> subtrees;
  };

  void learn_shares();
  std::vector<double> sums(const std::vector<double>& mine);
  void exchange();

  std::vector<stage::NamedParameter> parameters_;
  comm::Communicator& communicator_;
  const comm::ShardGroup& group_;
  std::function<void()> whole_gradients_;
  std::vector<std::int64_t> numbers_;  // Numbers of this rank's microbatches, so far.
  Shares shares_;
  std::vector<Subtrees> gradients_;  // Sums of each parameter.
  Divisor divisor_;
};

}  // namespace penstock::parameters
