// Numbers the forms of a step's inputs, so that every rank knows which microbatches are alike as
// the step begins.
//
// The rank of the first stage, or each of its ranks, numbers the forms of the step's inputs; the
// numbers go from rank to rank, a small message a step, ahead of the first activation.  The call
// that the step belongs to (comm/calls.h) goes with them: an evaluation's activations must not be
// taken for those of a training step.  A stage returns values of the same form for inputs of the
// same form.  So a hop announces a form once, and its receiver knows whether it has heard of it
// (mailbox.h).
// Invariant: a number means one form until generation() changes.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/lower/plan.h"
#include "penstock/runtime/execute/progress.h"
#include "penstock/runtime/nn/form.h"

namespace penstock::execute {

class FormNumbers {
 public:
  // Limit on forms; more are forgotten together, so that memory does not grow with ever new
  // lengths.
  static constexpr std::size_t kFormsMax = 512;

  FormNumbers(const lower::Plan& plan, comm::Communicator& communicator, Progress& progress);

  // A step begins; `inputs` are its microbatches, looked at on the rank of the first stage.
  void begin(const std::vector<nn::Values>& inputs);
  // Waits for the numbers to come, once a step, and passes them on.
  // Throws: CommError where they are those of another call than this rank's.
  void learn();
  // REQUIRES: learn() in this step.
  std::int64_t of(Microbatch microbatch) const { return numbers()[microbatch.index()]; }
  Microbatch first_with(std::int64_t number) const;
  std::int64_t generation() const { return words()[0]; }
  // Waits until the ranks after this one have been told.
  void finish();

 private:
  static constexpr std::int64_t kNameWords = 4;  // Words with the first bytes of a call's name.
  const std::int64_t* words() const { return numbers_.const_data_ptr<std::int64_t>(); }
  const std::int64_t* numbers() const { return words() + 1 + kNameWords; }
  void check_call() const;
  void number(const std::vector<nn::Values>& inputs);
  void pass_on();

  const lower::Plan& plan_;
  comm::Communicator& communicator_;
  Progress& progress_;
  std::vector<nn::Form> forms_;  // Forms by number, on the rank of the first stage.
  at::Tensor numbers_;  // Generation, the name of the call, then a number for each microbatch.
  bool known_ = false;  // Known in this step.
  std::unique_ptr<comm::Transfer> incoming_;
  std::vector<std::unique_ptr<comm::Transfer>> outgoing_;
};

}  // namespace penstock::execute
