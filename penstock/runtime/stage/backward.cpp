#include "penstock/runtime/stage/backward.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <typeinfo>

#include "penstock/core/check.h"
#include "penstock/core/exception_text.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/added_gradients.h"
#include "penstock/runtime/nn/own_backward_node.h"
#include "penstock/runtime/stage/added_products.h"

namespace penstock::stage {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using Item = BackwardGraph::Item;
using Target = BackwardGraph::Target;

constexpr std::int32_t kNowhere = BackwardGraph::kNowhere;

std::span<const Target> targets_of(const BackwardGraph& graph, const Item& item) {
  return {graph.targets.data() + item.first_target, index(item.targets)};
}

// "AddmmBackward0" for a node that torch generates, empty for any other: those keep to their edges
// and have no side effects.
std::string_view generated_name(const Node& node) {
  constexpr std::string_view kNamespace = "N5torch8autograd9generated";
  std::string_view mangled = typeid(node).name();
  if (!mangled.starts_with(kNamespace)) return {};
  mangled.remove_prefix(mangled.find_first_not_of("0123456789", kNamespace.size()));
  mangled.remove_suffix(1);  // The E that ends a nested name.
  return mangled;
}

// Can be run for some of its edges, and again for the others, at no more than the cost of both.
bool divisible(const Node& node) {
  const std::string_view name = generated_name(node);
  if (name.empty()) return dynamic_cast<const nn::OwnBackwardNode*>(&node) != nullptr;
  return name.find("Rnn") == std::string_view::npos;  // All of a fused kernel, or nothing.
}

// Takes in data that has no gradient: looks something up, or has an operand without an edge.  A
// node that keeps the shape of its only other operand may be a mask or a scale on a weight.
bool takes_in_data(const Node& node) {
  const auto* const own = dynamic_cast<const nn::OwnBackwardNode*>(&node);
  if (own != nullptr && own->takes_in_data()) return true;
  const std::string_view name = generated_name(node);
  for (const std::string_view lookup : {"Embedding", "Index", "Gather", "Take"}) {
    if (name.starts_with(lookup)) return true;
  }
  const edge_list& edges = node.next_edges();
  const auto with_edge = std::ranges::count_if(edges, &Edge::is_valid);
  if (with_edge == 0 || with_edge == std::ssize(edges)) return false;
  if (with_edge > 1) return true;
  for (const std::string_view product : {"Mm", "Addmm", "Bmm", "Baddbmm", "Convolution"}) {
    if (name.starts_with(product)) return true;
  }
  const Edge& other = *std::ranges::find_if(edges, &Edge::is_valid);
  return node.input_metadata(0).shape_as_dim_vector() !=
         other.function->input_metadata(other.input_nr).shape_as_dim_vector();
}

bool shares_memory(const at::Tensor& tensor) { return tensor.storage().use_count() > 1; }

// A sparse gradient of an embedding has the rows that came in as they are.
bool is_part_of_more(const at::Tensor& tensor) {
  if (!tensor.defined()) return false;
  if (tensor.layout() == at::kSparse) {
    return shares_memory(tensor._values()) || shares_memory(tensor._indices());
  }
  return tensor.layout() == at::kStrided && shares_memory(tensor);
}

// Runs the hooks of the tensors that are the node's outputs, as the engine calls them.  What they
// keep must not be a view of a buffer into which the next microbatch is received.
void run_tensor_hooks(Node& node, Tensors& gradients) {
  if (node.tensor_pre_hooks().empty() && node.retains_grad_hooks().empty()) return;
  for (at::Tensor& each : gradients) {
    if (is_part_of_more(each)) each = each.clone();
  }
  for (const auto& hook : node.tensor_pre_hooks()) gradients = (*hook)(gradients);
  for (const auto& [output, hook] : node.retains_grad_hooks()) gradients = (*hook)(gradients);
}

// Runs a node as the engine does, hooks ahead of it excepted.  `last_use`: nobody runs it again.
Tensors run(Node& node, Tensors gradients, bool last_use) {
  Tensors kept;
  if (!node.post_hooks().empty()) kept = gradients;
  // A weight makes the first gradient that nobody else holds its own, even a view of a buffer into
  // which the next microbatch is received.  It does not count what is kept for hooks.
  Tensors held;
  const bool is_leaf = node.num_outputs() == 0;
  if (is_leaf && std::ranges::any_of(gradients, is_part_of_more)) held = gradients;
  if (last_use) node.will_release_variables();
  Tensors results = node(std::move(gradients));
  torch::autograd::validate_outputs(node.next_edges(), results, [&](const std::string& what) {
    return str("backward of ", node.name(), ": ", what);
  });
  for (const auto& hook : node.post_hooks()) results = (*hook)(results, kept);
  if (last_use) node.release_variables();
  return results;
}

bool nobody_else_reads(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.layout() == at::kStrided &&
         tensor.is_non_overlapping_and_dense() && tensor.storage().use_count() == 1;
}

void add(at::Tensor& sum, at::Tensor&& gradient) {
  if (!gradient.defined()) return;
  if (!sum.defined()) {
    sum = std::move(gradient);
  } else if (nobody_else_reads(sum)) {
    sum.add_(gradient);
  } else {
    // Torch adds a sparse tensor to a dense one, and not a dense one to a sparse one.
    sum = gradient.layout() == at::kStrided ? gradient + sum : sum + gradient;
  }
}

// Whatever happens is known to have happened there.
template <class Action>
void at_node(const Node& node, const Action& action) {
  try {
    action();
  } catch (...) {
    throw NodeFailure(node, std::current_exception());
  }
}

}  // namespace

NodeFailure::NodeFailure(const Node& node, std::exception_ptr thrown)
    : thrown_(std::move(thrown)), text_(handled_text()), number_(node.sequence_nr()) {
  if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(&node)) {
    leaf_ = leaf->variable;
  }
}

// B, or I and what it leaves for W.
class BackwardPass {
 public:
  using Part = DeferredWeights::Part;

  BackwardPass(const Tensors& outputs, const Tensors& output_gradients, const Tensors& inputs)
      : inputs_(inputs) {
    PENSTOCK_CHECK(outputs.size() == output_gradients.size(), outputs.size(), " outputs, ",
                   output_gradients.size(), " gradients");
    edge_list roots;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const bool takes_one = output_gradients[i].defined() && outputs[i].requires_grad();
      roots.push_back(takes_one ? torch::autograd::impl::gradient_edge(outputs[i]) : Edge());
    }
    seeds_ = output_gradients;
    torch::autograd::validate_outputs(roots, seeds_, [](const std::string& what) {
      return str("gradient of an output: ", what);
    });
    graph() = make_backward_graph(roots);
    input_gradients_.resize(inputs_.size());
  }

  Tensors run_whole() {
    deferred_.parts_.assign(graph().items.size(), Part::Inputs);
    find_inputs();
    run();
    return std::move(input_gradients_);
  }

  SplitBackward run_inputs() {
    deferred_.parts_.assign(graph().items.size(), Part::Weights);
    const bool any = find_inputs();
    if (!any || !mark_what_leads_to([](const Node&) { return false; })) {
      mark_what_leads_to(takes_in_data);
    }
    run();
    return {.input_gradients = std::move(input_gradients_), .weights = std::move(deferred_)};
  }

 private:
  void run() {
    deferred_.gradients_.resize(index(graph().slot_count));
    for (std::size_t i = 0; i < seeds_.size(); ++i) {
      if (graph().roots[i].item != kNowhere) deliver(graph().roots[i], std::move(seeds_[i]));
    }
    for (std::size_t i = 0; i < graph().items.size(); ++i) run(static_cast<std::int32_t>(i));
  }

  BackwardGraph& graph() { return deferred_.graph_; }
  Part& part(std::int32_t item) { return deferred_.parts_[index(item)]; }
  bool of_weights(const Target& target) {
    return target.item != kNowhere && part(target.item) == Part::Weights;
  }
  void deliver(const Target& target, at::Tensor&& gradient) {
    add(deferred_.gradients_[index(target.slot)], std::move(gradient));
  }

  // The places of the inputs that take a gradient and are used.
  bool find_inputs() {
    bool any = false;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (!inputs_[i].defined() || !inputs_[i].requires_grad()) continue;
      const Node* leaf = torch::autograd::impl::gradient_edge(inputs_[i]).function.get();
      for (std::size_t item = 0; item < graph().items.size(); ++item) {
        if (graph().items[item].node.get() != leaf) continue;
        deferred_.parts_[item] = Part::Input;
        leaves_.emplace_back(item, i);
        any = true;
      }
    }
    return any;
  }

  template <class Ends>
  bool mark_what_leads_to(const Ends& ends) {
    bool any = false;
    // Items are in the order of the backward: from the end, targets are marked before their item.
    for (std::size_t item = graph().items.size(); item-- > 0;) {
      Part& here = deferred_.parts_[item];
      if (here == Part::Input) continue;
      const Node& node = *graph().items[item].node;
      const auto targets = targets_of(graph(), graph().items[item]);
      const bool on = ends(node) || std::ranges::any_of(targets, [&](const Target& target) {
                        return target.item != kNowhere && !of_weights(target);
                      });
      if (!on) continue;
      any = true;
      here = std::ranges::none_of(targets, [&](const Target& t) { return of_weights(t); })
                 ? Part::Inputs
             : divisible(node) ? Part::Both
                               : Part::Whole;
    }
    return any;
  }

  Tensors take(const Item& item) {
    const auto first = deferred_.gradients_.begin() + item.first_slot;
    return {std::make_move_iterator(first), std::make_move_iterator(first + item.slot_count)};
  }

  void run(std::int32_t number) {
    if (part(number) == Part::Weights) return;
    at_node(*graph().items[index(number)].node, [&] { run_node(number); });
  }

  void run_node(std::int32_t number) {
    Item& item = graph().items[index(number)];
    Tensors gradients = take(item);
    run_tensor_hooks(*item.node, gradients);
    switch (part(number)) {
      case Part::Input:
        for (const auto& [leaf, input] : leaves_) {
          if (leaf == index(number)) input_gradients_[input] = gradients[0];
        }
        break;
      case Part::Inputs:
      case Part::Whole:
        run_hooks(*item.node, gradients);
        if (part(number) == Part::Inputs) add_product_of(graph(), item, gradients, inputs_);
        hand_on(number, stage::run(*item.node, std::move(gradients), /*last_use=*/true));
        break;
      case Part::Both:
        run_hooks(*item.node, gradients);
        run_towards_inputs(number, gradients);
        return;
      case Part::Weights:
        return;
    }
    item.node.reset();
  }

  static void run_hooks(Node& node, Tensors& gradients) {
    for (const auto& hook : node.pre_hooks()) gradients = (*hook)(gradients);
  }

  // Leaves the node with its edges to weights, and the gradients that came in for W.
  void run_towards_inputs(std::int32_t number, const Tensors& gradients) {
    const Item& item = graph().items[index(number)];
    edge_list& edges = item.node->next_edges();
    const auto targets = targets_of(graph(), item);
    edge_list to_weights(edges.size());
    bool any = false;
    for (std::size_t e = 0; e < edges.size(); ++e) {
      // A node computes gradients for valid edges alone: W's work is not done here.
      if (of_weights(targets[e])) std::swap(edges[e], to_weights[e]);
      any = any || edges[e].is_valid();
    }
    if (any) hand_on(number, stage::run(*item.node, gradients, /*last_use=*/false));
    edges = std::move(to_weights);
    std::ranges::copy(gradients, deferred_.gradients_.begin() + item.first_slot);
  }

  void hand_on(std::int32_t number, Tensors&& results) {
    const auto targets = targets_of(graph(), graph().items[index(number)]);
    for (std::size_t e = 0; e < targets.size(); ++e) {
      if (targets[e].item == kNowhere || of_weights(targets[e])) continue;
      deliver(targets[e], std::move(results[e]));
    }
    if (part(number) == Part::Whole) deferred_.held_.emplace_back(number, std::move(results));
  }

  const Tensors& inputs_;
  Tensors seeds_;
  std::vector<std::pair<std::size_t, std::size_t>> leaves_;  // Item, input.
  Tensors input_gradients_;
  DeferredWeights deferred_;
};

void DeferredWeights::run() {
  const torch::NoGradGuard no_grad;
  const nn::AddsGradients adds;
  auto held = held_.begin();
  for (std::size_t i = 0; i < graph_.items.size(); ++i) {
    if (parts_[i] == Part::Input || parts_[i] == Part::Inputs) continue;
    Item& item = graph_.items[i];
    Tensors results;
    if (parts_[i] == Part::Whole) {
      results = std::move((held++)->second);
    } else {
      const auto first = gradients_.begin() + item.first_slot;
      Tensors gradients(std::make_move_iterator(first),
                        std::make_move_iterator(first + item.slot_count));
      at_node(*item.node, [&] {
        if (parts_[i] == Part::Weights) {
          run_tensor_hooks(*item.node, gradients);
          for (const auto& hook : item.node->pre_hooks()) gradients = (*hook)(gradients);
        }
        add_product_of(graph_, item, gradients, /*inputs=*/{});
        results = stage::run(*item.node, std::move(gradients), /*last_use=*/true);
      });
      item.node.reset();
    }
    const auto targets = targets_of(graph_, item);
    for (std::size_t e = 0; e < targets.size(); ++e) {
      if (targets[e].item == kNowhere || parts_[index(targets[e].item)] != Part::Weights) continue;
      add(gradients_[index(targets[e].slot)], std::move(results[e]));
    }
  }
  *this = {};
}

Tensors backward(const Tensors& outputs, const Tensors& output_gradients, const Tensors& inputs) {
  const torch::NoGradGuard no_grad;
  const nn::AddsGradients adds;
  return BackwardPass(outputs, output_gradients, inputs).run_whole();
}

SplitBackward backward_input(const Tensors& outputs, const Tensors& output_gradients,
                             const Tensors& inputs) {
  const torch::NoGradGuard no_grad;
  const nn::AddsGradients adds;
  return BackwardPass(outputs, output_gradients, inputs).run_inputs();
}

}  // namespace penstock::stage
