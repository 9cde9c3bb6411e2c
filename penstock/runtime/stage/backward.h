// A microbatch's backward on its autograd graph: in one piece, or in two halves, the gradients of
// the inputs now and those of the weights when there is time.
//
// Stage runs backward() as B, backward_input() as I and what that leaves as W.  Knows no layers,
// microbatches and messages.
//
// All of them run the nodes of the graph one after another on the calling thread.  They keep the
// order of torch's engine and its rules (hooks, sums, checks of shapes).  So gradients have the
// bits of torch::autograd::backward().  They do without what the engine needs for graphs that span
// threads and devices, which is most of what a small backward costs.
//
// I runs the nodes that lead to an input.  A node that also leads to weights (of a Linear, say)
// computes the gradient of its input only, and keeps the gradient that came in; W runs those nodes
// once more, towards their weights, and then what lies between them and the weights: transposes,
// casts, weight norm.  W is one pass, so what several nodes add to a shared weight is added as a
// full backward adds it.
//
// If no input takes a gradient (token ids in a first stage), I stops at the first nodes that take
// in data.  It tells them by their kind; a wrong guess moves work between I and W and changes no
// number.
//
// A node that is not torch's own, such as a custom autograd function, runs once, whole, in I:
// nobody knows what else its backward does.  W only hands on what it gave.  A layer that wants its
// weight gradients put off says so with nn::with_own_backward().
//
// Invariants: 1. Gradient hooks fire as in a full backward, those of weights in W, all others in I;
// only a hook behind a node that both halves run fires in both.  2. After I, a DeferredWeights
// holds no more of the graph than the nodes that W runs, with what they saved.
// Thread safety: a graph is used by one thread.  On a GPU, kernels go to the current stream.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "penstock/runtime/stage/backward_graph.h"

namespace penstock::stage {

using Tensors = std::vector<at::Tensor>;

// What a node of the graph, or a hook at it, has thrown.
class NodeFailure : public std::exception {
 public:
  // REQUIRES: `thrown` is being handled.
  NodeFailure(const torch::autograd::Node& node, std::exception_ptr thrown);
  // What that says.
  const char* what() const noexcept override { return text_.c_str(); }

  const std::exception_ptr& thrown() const { return thrown_; }
  // Torch's, of nodes that a forward has made.
  std::uint64_t number() const { return number_; }
  // The weight or input whose gradient it adds up; else undefined.
  const at::Tensor& leaf() const { return leaf_; }

 private:
  std::exception_ptr thrown_;
  std::string text_;
  std::uint64_t number_;
  at::Tensor leaf_;
};

// What I leaves for W.
class DeferredWeights {
 public:
  DeferredWeights() = default;
  DeferredWeights(DeferredWeights&&) = default;
  DeferredWeights& operator=(DeferredWeights&&) = default;

  // W: adds the gradients of the weights to their grad().  Once.
  // Throws: as backward_input().
  void run();

 private:
  friend class BackwardPass;

  // What becomes of an item of the graph.
  enum class Part : std::uint8_t {
    Input,   // A stage input: its gradient is I's result.
    Inputs,  // Leads to inputs only: run by I.
    Both,    // Leads to inputs and weights: run by both, each time for the one or the other.
    Whole,   // Leads to both, but is not divisible: run by I.
    Weights  // Leads to weights only, or is one: run by W.
  };

  BackwardGraph graph_;
  std::vector<Part> parts_;                             // Parts by item.
  Tensors gradients_;                                   // Gradients that W needs, by slot.
  std::vector<std::pair<std::int32_t, Tensors>> held_;  // Results of items that are Whole.
};

struct SplitBackward {
  Tensors input_gradients;  // Gradients by input; undefined for one that takes none or is not used.
  DeferredWeights weights;
};

// B: adds the gradients of the weights to their grad() and returns those of the inputs, by input;
// undefined for an input that takes none or is not used.  Otherwise as backward_input().
Tensors backward(const Tensors& outputs, const Tensors& output_gradients, const Tensors& inputs);

// I.  `output_gradients` has one entry per output, undefined for an output that takes none.  Uses
// the graph up: the outputs have no backward any more.
// Throws: c10::Error when a gradient does not have the shape of its output; NodeFailure for
// whatever a node throws.  The graph is then of no use.
SplitBackward backward_input(const Tensors& outputs, const Tensors& output_gradients,
                             const Tensors& inputs);

}  // namespace penstock::stage
