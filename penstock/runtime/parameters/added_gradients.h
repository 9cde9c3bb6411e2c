// What backwards add to the gradients of parameters: somebody is asked before each addition.
//
// A ModuleReplica has one, for the backwards that somebody else runs, such as loss.backward() in a
// user's script.  What torch.autograd.grad() returns is added to nothing, and nobody is asked.
// Changes no gradient, and knows no graphs.
// Thread safety: the thread that runs a backward asks.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "penstock/runtime/nn/torch_versions.h"
#include "penstock/runtime/stage/stage.h"

namespace torch::autograd {
struct FunctionPreHook;
}  // namespace torch::autograd

namespace penstock::parameters {

class AddedGradients {
 public:
  // `check` is called for every addition.  What it throws ends the backward.
  AddedGradients(const std::vector<stage::NamedParameter>& parameters, std::function<void()> check);
  ~AddedGradients();
  AddedGradients(const AddedGradients&) = delete;
  AddedGradients& operator=(const AddedGradients&) = delete;

  // Whether the backward that this thread runs may add to one of them: torch.autograd.grad() does
  // not.
  bool may_come() const;

 private:
  struct Hooked {
    nn::NodePointer node;  // Kept here, because the parameter does not keep it alive.
    const torch::autograd::FunctionPreHook* hook = nullptr;
  };

  std::vector<Hooked> hooked_;
};

}  // namespace penstock::parameters
