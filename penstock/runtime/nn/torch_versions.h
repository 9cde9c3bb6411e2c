// What differs between the versions of torch that penstock is built against, 2.11 to 2.14.
//
// The only place for it: a new difference gets a name here.  Included by what makes or holds nodes
// of the autograd graph, in nn/, stage/ and execute/.  Knows nothing of how torch is found
// (cmake/torch.cmake).
#pragma once
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace penstock::nn {

// What holds a node: a std::shared_ptr in torch 2.11 and 2.12, a c10::intrusive_ptr in 2.13
// and 2.14.
using NodePointer = decltype(torch::autograd::Edge::function);

// A new node of type Node, derived from torch::autograd::Node.
template <class Node, class... Arguments>
NodePointer make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>) {
    // torch's own deleter takes long graphs apart without recursion.
    return NodePointer(new Node(std::forward<Arguments>(arguments)...),
                       [](Node* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
  }
}

}  // namespace penstock::nn
