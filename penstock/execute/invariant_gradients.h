// A stage's weight gradients, summed over microbatches and replicas in an order that depends on the
// microbatches' numbers alone: the same bits for every number of replicas and every schedule.
//
// Stands in for the GradientReducer where layouts are to agree to the bit.  The price: gradients of
// log2(microbatches) partial sums are kept, and at the end of the step every replica gets those of
// all, which is not overlapped with the backward.
// Invariant: after finish(), grad() is the sum_tree.h sum of the microbatches' gradients, divided;
// a parameter that got no gradient from any of them has none.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/comm/shard_group.h"
#include "penstock/execute/divided.h"
#include "penstock/execute/stage_hooks.h"
#include "penstock/execute/sum_tree.h"
#include "penstock/stage/stage.h"

namespace penstock::execute {

class InvariantGradients : public StageHooks {
 public:
  // `group` outlives it.  Replica r has the microbatches [r x n, (r + 1) x n), if each has n.
  InvariantGradients(std::vector<stage::NamedParameter> parameters,
                     comm::Communicator& communicator, const comm::ShardGroup& group);

  void after_backward(std::int64_t microbatch) override;
  void before_last_backward(double divisor) override { divisor_ = Divisor(divisor); }
  void finish() override;
  void drop_sums() override;

 private:
  void exchange();

  std::vector<stage::NamedParameter> parameters_;
  comm::Communicator& communicator_;
  const comm::ShardGroup& group_;
  std::int64_t microbatches_ = 0;    // Of this replica, so far.
  std::vector<Subtrees> gradients_;  // By parameter.
  Divisor divisor_;
};

}  // namespace penstock::execute
