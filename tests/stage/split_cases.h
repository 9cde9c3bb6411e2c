// A computation with weights, run forward and backward in one piece and in two.
//
// What the split backward must leave equal: gradients of inputs and weights, bit for bit, over
// several microbatches.
#pragma once
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <vector>

#include "penstock/runtime/stage/backward.h"
#include "tests/support/same_bits.h"

namespace penstock::stage {

using testing_support::same_bits;

struct Computation {
  Tensors weights;  // Leaves; those that require a gradient are trained.
  Tensors inputs;   // Tensors that get a gradient if they require one.
  std::function<Tensors(const Tensors& inputs, const Tensors& weights)> forward;
};

inline at::Tensor fresh_leaf(const at::Tensor& tensor) {
  return tensor.detach().clone().requires_grad_(tensor.requires_grad());
}

// Everything that a backward gives, microbatch after microbatch.
struct Gradients {
  Tensors of_inputs;
  Tensors of_weights;
};

class Microbatches {
 public:
  // Runs the forwards.  Inputs and output gradients differ from microbatch to microbatch, not from
  // one object to the next.
  Microbatches(const Computation& computation, std::int64_t count) : computation_(computation) {
    at::manual_seed(17);
    for (std::int64_t m = 0; m < count; ++m) {
      inputs_.emplace_back();
      for (const at::Tensor& input : computation.inputs) {
        const double shift = 0.25 * static_cast<double>(m);
        inputs_.back().push_back(fresh_leaf(input.is_floating_point() ? input + shift : input));
      }
      outputs_.push_back(computation.forward(inputs_.back(), computation.weights));
      seeds_.emplace_back();
      for (const at::Tensor& output : outputs_.back()) {
        seeds_.back().push_back(output.requires_grad() ? at::randn_like(output) : at::Tensor());
      }
    }
  }

  // One output's gradient is missing, as when nothing downstream uses it.
  void drop_seed(std::size_t output) {
    for (Tensors& seeds : seeds_) seeds[output].reset();
  }

  // Runs the backward by torch's engine.
  Gradients run_whole() {
    Gradients all;
    for (std::size_t m = 0; m < inputs_.size(); ++m) {
      Tensors outputs, seeds;
      for (std::size_t i = 0; i < outputs_[m].size(); ++i) {
        if (!seeds_[m][i].defined()) continue;
        outputs.push_back(outputs_[m][i]);
        seeds.push_back(seeds_[m][i]);
      }
      torch::autograd::backward(outputs, seeds);
      for (const at::Tensor& input : inputs_[m]) all.of_inputs.push_back(input.grad());
    }
    return take_weight_gradients(std::move(all));
  }

  // B by B.
  Gradients run_ours() {
    Gradients all;
    for (std::size_t m = 0; m < inputs_.size(); ++m) {
      for (at::Tensor& gradient : backward(outputs_[m], seeds_[m], inputs_[m])) {
        all.of_inputs.push_back(std::move(gradient));
      }
    }
    return take_weight_gradients(std::move(all));
  }

  // All I, then all W.
  Gradients run_split() {
    Gradients all;
    std::vector<DeferredWeights> late;
    for (std::size_t m = 0; m < inputs_.size(); ++m) {
      SplitBackward split = backward_input(outputs_[m], seeds_[m], inputs_[m]);
      outputs_[m].clear();
      for (at::Tensor& gradient : split.input_gradients) all.of_inputs.push_back(gradient);
      late.push_back(std::move(split.weights));
    }
    for (const at::Tensor& weight : computation_.weights) {
      EXPECT_FALSE(weight.grad().defined()) << "I left a weight gradient";
    }
    for (DeferredWeights& weights : late) weights.run();
    return take_weight_gradients(std::move(all));
  }

  const Tensors& inputs(std::size_t m) const { return inputs_[m]; }
  Tensors& outputs(std::size_t m) { return outputs_[m]; }
  const Tensors& seeds(std::size_t m) const { return seeds_[m]; }

 private:
  Gradients take_weight_gradients(Gradients all) const {
    for (const at::Tensor& weight : computation_.weights) {
      all.of_weights.push_back(weight.grad());
      weight.mutable_grad().reset();
    }
    return all;
  }

  const Computation& computation_;
  std::vector<Tensors> inputs_, outputs_, seeds_;  // Tensors by microbatch.
};

inline void expect_equal(const Gradients& split, const Gradients& whole) {
  ASSERT_EQ(split.of_inputs.size(), whole.of_inputs.size());
  for (std::size_t i = 0; i < whole.of_inputs.size(); ++i) {
    EXPECT_TRUE(same_bits(split.of_inputs[i], whole.of_inputs[i])) << "input " << i;
  }
  for (std::size_t i = 0; i < whole.of_weights.size(); ++i) {
    EXPECT_TRUE(same_bits(split.of_weights[i], whole.of_weights[i])) << "weight " << i;
  }
}

// B, and I and W, give what torch's engine gives.
inline void expect_split_equals_whole(const Computation& computation) {
  const Gradients whole = Microbatches(computation, 3).run_whole();
  expect_equal(Microbatches(computation, 3).run_ours(), whole);
  expect_equal(Microbatches(computation, 3).run_split(), whole);
}

}  // namespace penstock::stage
