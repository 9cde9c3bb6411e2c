// The graph node behind with_own_backward(): computes what its edges ask for, and nothing else.
//
// stage/ recognises it when it splits a backward.
#pragma once
#include <torch/csrc/autograd/function.h>

#include "penstock/runtime/nn/own_backward.h"

namespace penstock::nn {

class OwnBackwardNode : public torch::autograd::Node {
 public:
  OwnBackwardNode(OwnBackward backward, std::size_t inputs, torch::autograd::edge_list edges)
      : Node(std::move(edges)), backward_(std::move(backward)), inputs_(inputs) {}
  std::string name() const override { return "OwnBackward"; }
  void release_variables() override { backward_ = {}; }
  // Whether it looks something up for data that has no gradient.
  bool takes_in_data() const { return inputs_ == 0; }

 private:
  Tensors apply(Tensors&& output_gradients) override;

  OwnBackward backward_;
  std::size_t inputs_;  // The edges: to the inputs, then to the weights.
};

}  // namespace penstock::nn
