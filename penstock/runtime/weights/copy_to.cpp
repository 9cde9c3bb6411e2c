// Weights of files in modules of a program's own: by name, all of them, or none.
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/weights/weights.h"

namespace penstock::weights {
namespace {

std::map<std::string, at::Tensor> named(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> all;
  for (const auto& parameter : module.named_parameters()) all[parameter.key()] = parameter.value();
  for (const auto& buffer : module.named_buffers()) {
    if (buffer.value().defined()) all[buffer.key()] = buffer.value();
  }
  return all;
}

std::vector<std::string> keys(const std::map<std::string, at::Tensor>& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

}  // namespace

void copy_to(torch::nn::Module& module, const NamedTensors& tensors, const Renamed& renamed) {
  const std::map<std::string, at::Tensor> own = named(module);
  std::map<std::string, at::Tensor> missing = own;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  std::vector<std::string> problems;
  for (const auto& [stored, tensor] : tensors) {
    const std::string name = renamed ? renamed(stored) : stored;
    if (name.empty()) continue;
    const auto found = own.find(name);
    const std::string called = name == stored ? "" : str(", stored as ", in_quotes(stored));
    if (found == own.end()) {
      problems.push_back(
          str("unexpected: ", in_quotes(name), called, did_you_mean(name, keys(missing))));
    } else if (missing.erase(name) == 0) {
      problems.push_back(penstock::str("twice: ", in_quotes(name), called));
    } else if (found->second.sizes() != tensor.sizes()) {
      problems.push_back(penstock::str("of another shape: ", in_quotes(name), called, " is ",
                                       tensor.sizes(), ", the module has ", found->second.sizes()));
    } else {
      copies.emplace_back(found->second, tensor);
    }
  }
  for (const auto& [name, tensor] : missing) {
    problems.push_back(penstock::str("missing: ", in_quotes(name), ", ", tensor.sizes()));
  }
  if (!problems.empty()) {
    throw CheckpointError("the weights are not those of the module", std::move(problems));
  }
  const at::NoGradGuard no_grad;
  for (const auto& [to, from] : copies) to.copy_(from);
}

void copy_to(torch::nn::Module& module, const std::string& path, const Renamed& renamed) {
  try {
    copy_to(module, read_weights(path), renamed);
  } catch (const CheckpointError& error) {
    const std::string in = quoted_path(path);
    if (error.message().find(in) != std::string::npos) throw;
    throw CheckpointError(str(in, ": ", error.message()), error.notes());
  }
}

}  // namespace penstock::weights
