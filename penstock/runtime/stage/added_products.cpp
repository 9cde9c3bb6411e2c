#include "penstock/runtime/stage/added_products.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <algorithm>
#include <cstddef>
#include <typeinfo>

#include "penstock/runtime/nn/added_gradients.h"
#include "penstock/runtime/nn/host_products.h"

namespace penstock::stage {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::generated::AddmmBackward0;
using torch::autograd::generated::MmBackward0;
using torch::autograd::generated::TBackward0;
using Item = BackwardGraph::Item;

bool has_hooks(Node& node) {
  return !node.pre_hooks().empty() || !node.post_hooks().empty() ||
         !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty();
}

template <class Kind>
const Kind* as(const Node& node) {
  return typeid(node) == typeid(Kind) ? static_cast<const Kind*>(&node) : nullptr;
}

// A product of rows and a matrix: what it kept of the rows, and its edge to the matrix.
struct Product {
  const SavedVariable* rows = nullptr;  // Null: the node is none, or scales it.
  std::size_t edge = 0;
};

Product product_of(const Node& node) {
  if (const auto* mm = as<MmBackward0>(node)) return {&mm->self_, 1};
  const auto* addmm = as<AddmmBackward0>(node);
  if (addmm == nullptr || !addmm->alpha.equal(1)) return {};
  return {&addmm->mat1_, 2};
}

// The item behind an edge, if nothing else leads to that.
Item* only_item(BackwardGraph& graph, const Item& item, std::size_t edge) {
  const BackwardGraph::Target& target = graph.targets[index(item.first_target) + edge];
  if (target.item == BackwardGraph::kNowhere || graph.arrivals[index(target.slot)] != 1) {
    return nullptr;
  }
  return &graph.items[index(target.item)];
}

// The leaf whose transpose is behind the edge; undefined if that is something else.
at::Tensor transposed_leaf(BackwardGraph& graph, const Item& item, std::size_t edge) {
  Item* const transpose = only_item(graph, item, edge);
  if (transpose == nullptr || as<TBackward0>(*transpose->node) == nullptr ||
      has_hooks(*transpose->node)) {
    return {};
  }
  Item* const leaf = only_item(graph, *transpose, 0);
  if (leaf == nullptr) return {};
  const auto* const accumulates = as<AccumulateGrad>(*leaf->node);
  return accumulates == nullptr ? at::Tensor() : accumulates->variable;
}

}  // namespace

void add_product_of(BackwardGraph& graph, Item& item, const Tensors& gradients,
                    const Tensors& inputs) {
  const Product product = product_of(*item.node);
  if (product.rows == nullptr || !gradients[0].defined() || !item.node->post_hooks().empty() ||
      product.rows->has_hooks() || !item.node->next_edge(product.edge).is_valid()) {
    return;
  }
  const at::Tensor weight = transposed_leaf(graph, item, product.edge);
  if (!weight.defined() || !weight.is_contiguous()) return;
  if (std::ranges::any_of(inputs, [&](const at::Tensor& x) { return x.is_same(weight); })) return;
  at::Tensor sum = nn::earlier_gradient(weight);
  if (!sum.defined()) return;
  const at::Tensor rows = product.rows->unpack(), of_columns = gradients[0].t();
  if (!nn::torch_adds_whole(of_columns, rows)) return;
  sum.addmm_(of_columns, rows);
  nn::tell_of_added(weight);
  item.node->next_edges()[product.edge] = Edge();
}

}  // namespace penstock::stage
