// Parameters that stages made elsewhere have in common: one value, one gradient.
//
// A Pipeline makes one when it is made, from what each rank says of its own stages; which other
// stages share a parameter is found out then.  Knows no layers.  A parameter keeps its own storage,
// so that an optimizer of each stage may update it.
// Invariant: after sum(), a shared parameter's gradient has grown by the same bits on all ranks: by
// those of all stages, in their order (parameters/tied_parameters.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/core/ids.h"
#include "penstock/runtime/nn/model.h"
#include "penstock/runtime/parameters/tied_parameters.h"

namespace penstock::train {

struct Tie {
  std::string name;  // Stages that use it have the parameter in common.
  StageId stage;
  at::Tensor parameter;  // Trainable.
};

class TiedStages {
 public:
  // Collective over all ranks.  All stages get the value that the first one has.
  // Throws: ConfigError, on every rank, for a name that only one stage uses, or one stage twice,
  // and for parameters of different shapes or types.
  TiedStages(const std::vector<Tie>& ties, comm::Communicator& communicator);

  // Throws: Error, naming it, for a parameter of another type, shape or device by now.
  void check_forms() const;
  // Puts aside the gradients that are there before a step, whose own are then summed and added.
  void begin();
  // Collective over all ranks.
  void sum();

 private:
  struct Shared {
    at::Tensor parameter;
    at::Tensor before;       // Its gradient, during a step.
    nn::TiedParameter step;  // The same storage, for the step's gradient.
  };
  std::vector<Shared> shared_;
  std::vector<std::unique_ptr<parameters::TiedParameters>> groups_;
};

}  // namespace penstock::train
