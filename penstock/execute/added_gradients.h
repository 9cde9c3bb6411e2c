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

#include "penstock/nn/torch_versions.h"
#include "penstock/stage/stage.h"

namespace torch::autograd {
struct FunctionPreHook;
}  // namespace torch::autograd

namespace penstock::execute {

class AddedGradients {
 public:
  // `factor` is called for every addition.  What it throws ends the backward.
  AddedGradients(const std::vector<stage::NamedParameter>& parameters,
                 std::function<double()> factor);
  ~AddedGradients();
  AddedGradients(const AddedGradients&) = delete;
  AddedGradients& operator=(const AddedGradients&) = delete;

 private:
  struct Hooked {
    nn::NodePointer node;  // Which the parameter does not keep alive.
    const torch::autograd::FunctionPreHook* hook = nullptr;
  };

  std::vector<Hooked> hooked_;
};

}  // namespace penstock::execute
