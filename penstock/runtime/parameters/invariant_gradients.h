// A stage's weight gradients, summed over microbatches and replicas in an order that depends on the
// microbatches' numbers alone: the same bits for every number of replicas and every schedule, and
// whichever of the ranks has which microbatches.
//
// Stands in for the GradientReducer where layouts are to agree to the bit, and InvariantShards for
// ShardedGradients.  The price: log2(microbatches) partial sums of gradients are kept, whole, in
// every stage of ZeRO.  (Cut, and sent to their owners with each microbatch, they would be as many
// bytes: an owner had those of all replicas.)  Replicas get the sums of all, or of their slices, at
// the end of the step, and no backward hides that.
// Invariant: after finish(), grad() is the sum_tree.h sum of the microbatches' gradients, divided;
// a parameter that got no gradient from any of them has none.  A slice has the elements of the
// whole.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/runtime/comm/shard_group.h"
#include "penstock/runtime/execute/stage_hooks.h"
#include "penstock/runtime/parameters/divided.h"
#include "penstock/runtime/parameters/parameter_shards.h"
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

 protected:
  // What the ranks of the group have, by what this one has: a step with as many batches has the
  // same.
  struct Shares {
    std::vector<std::int64_t> mine;  // Numbers, rising.
    std::int64_t microbatches = 0;   // Number of all.
    // Subtrees that the ranks' microbatches become, of one after the other.
    std::vector<Subtree> subtrees;
  };

  // Learns the shares of this step.
  const Shares& shares();
  // This rank's sum of a parameter over a subtree; undefined: it has none.
  at::Tensor partial_sum(std::size_t parameter, const Subtree& subtree) const;
  // The whole of sums by subtree, divided.
  at::Tensor divided_total(const Subtrees& sums) const;
  // A parameter's sums are given up.
  void drop_sums_of(std::size_t parameter) { gradients_[parameter].clear(); }
  bool has_backwards() const { return !numbers_.empty(); }
  void end_step() { numbers_.clear(); }

 private:
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

// The same where ranks update slices (ZeRO): each gets the sums of its own.
class InvariantShards : public InvariantGradients {
 public:
  // `shards` outlives it.
  explicit InvariantShards(ParameterShards& shards, comm::Communicator& communicator,
                           std::function<void()> whole_gradients = nullptr);

  void finish() override;

 protected:
  // The gradients of this page's parameters are about to leave.
  virtual void before_sum(const Page& page) { (void)page; }
  ParameterShards& shards() { return shards_; }

 private:
  // A bucket's sums under way.
  struct Sent {
    std::size_t bucket = 0;
    at::Tensor rows;  // [ranks, subtrees x (piece + parameters)]: as ShardedGradients', a subtree
                      // behind the other.
    at::Tensor sum;   // This rank's row.
    std::unique_ptr<comm::Transfer> transfer;
  };
  Sent send(std::size_t bucket);
  void take(const Sent& sent);

  ParameterShards& shards_;
  std::vector<std::size_t> trained_;  // Numbers among those, by parameter.
  std::int32_t tag_ = 0;
};

}  // namespace penstock::parameters
