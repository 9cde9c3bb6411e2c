// What a program's UNSHARD, RESHARD and REDUCE_GRAD mean for one stage.
//
// The executor calls it at those actions; whoever divides weights or gradients over the data ranks
// implements it.  Of this base every call does nothing: weights are whole on every rank, and there
// is nothing to sum.
// Where gradients are summed over several runs of a program, only the last run asks for sums over
// ranks: before_last_backward(), reduce() and finish() are its alone.
// Thread safety: called by the thread that runs the program, in its order.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "penstock/core/ids.h"

namespace penstock::execute {

class StageHooks {
 public:
  StageHooks() = default;
  virtual ~StageHooks() = default;
  StageHooks(const StageHooks&) = delete;
  StageHooks& operator=(const StageHooks&) = delete;

  // The weights are used from here on, until reshard().
  virtual void unshard() {}
  virtual void reshard() {}

  // The stage's layers run in between: an F, B, I or W.  In a braided pair (braid.h) both begin
  // before one ends, and the other one then begins once more.
  virtual void before_compute() {}
  virtual void after_compute() {}

  // Whether a value that the stage hands on is one of its weights, or a view of some.  These may be
  // gone when the value is needed, so a copy is handed on.
  virtual bool is_weight(const at::Tensor& value) const {
    (void)value;
    return false;
  }

  // An I of this microbatch, counted over all replicas, is over.
  virtual void after_backward_input(std::int64_t microbatch) { (void)microbatch; }
  // A B or W of this microbatch, counted likewise, has added to the gradients.
  virtual void after_backward(std::int64_t microbatch) { (void)microbatch; }

  // The next B or W is the stage's last of this step: its gradients are final.  Where they are
  // summed, they are divided by `divisor`; no backward has been told of it.
  virtual void before_last_backward(double divisor) { (void)divisor; }
  // REDUCE_GRAD, of one microbatch or of all.  That of the last microbatch comes after
  // before_last_backward() and its B or W.
  virtual void reduce(std::optional<Microbatch> microbatch) { (void)microbatch; }

  // The program is over: waits for whatever is under way.
  virtual void finish() {}

  // Gives up what backwards have added so far, beside the parameters' grad(), and what a program
  // that has failed has left under way.
  virtual void drop_sums() {}
};

}  // namespace penstock::execute
