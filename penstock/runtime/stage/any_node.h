// A look at the autograd graph behind some tensors.
//
// For what must know whose nodes a backward will run.  Changes nothing.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <span>
#include <string_view>
#include <typeinfo>
#include <vector>

namespace penstock::stage {

using Nodes = ska::flat_hash_set<torch::autograd::Node*>;

// Whether `is` holds for a node of it, each of which is asked at most once; those in `seen`, and
// what lies behind them alone, are not.
template <class Is>
bool any_node(std::span<const at::Tensor> outputs, const Is& is, Nodes seen = {}) {
  using torch::autograd::Node;
  std::vector<Node*> found;
  const auto visit = [&](Node* node) {
    if (node != nullptr && seen.insert(node).second) found.push_back(node);
  };
  for (const at::Tensor& output : outputs) {
    if (output.defined()) visit(output.grad_fn().get());
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (is(*found[i])) return true;
    for (const auto& edge : found[i]->next_edges()) visit(edge.function.get());
  }
  return false;
}

// Whether a backward from there runs Python, which may run another backward within it.
inline bool runs_python(std::span<const at::Tensor> outputs) {
  return any_node(outputs, [](torch::autograd::Node& node) {
    // Known by name: the type is that of another library.
    return std::string_view(typeid(node).name()) == "N5torch8autograd6PyNodeE";
  });
}

}  // namespace penstock::stage
