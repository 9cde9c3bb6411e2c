// What backwards add to the gradients of parameters: each addition is multiplied by a factor.
//
// A ModuleReplica has one, for the backwards that somebody else runs, such as loss.backward() in a
// user's script; the factor of its own ones is 1.  What torch.autograd.grad() returns is added to
// nothing, and stays as it is.  Knows no graphs.
// Thread safety: the thread that runs a backward asks for the factor.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "penstock/stage/stage.h"

namespace torch::autograd {
struct Node;
}

namespace penstock::execute {

class AddedGradients {
 public:
  // `factor` is called for every addition.  What it throws ends the backward.  One that was made
  // before of the same parameter has no effect on it any more.
  AddedGradients(const std::vector<stage::NamedParameter>& parameters,
                 const std::function<double()>& factor);
  ~AddedGradients();
  AddedGradients(const AddedGradients&) = delete;
  AddedGradients& operator=(const AddedGradients&) = delete;

 private:
  // Which the parameters do not keep alive.
  std::vector<c10::intrusive_ptr<torch::autograd::Node>> nodes_;
};

}  // namespace penstock::execute
