// Gradients of the weights of torch's linears, added where earlier microbatches left theirs.
//
// The engine's nodes compute such a gradient into memory of its own, and add it behind that.  One
// product that adds does both, with the same bits (nn/host_products.h).  backward.cpp asks before
// it runs a node.  Knows no layers, only the graph.  Source: the formulas of at::addmm()'s and
// at::mm()'s derivatives.
#pragma once
#include "penstock/runtime/stage/backward.h"
#include "penstock/runtime/stage/backward_graph.h"

namespace penstock::stage {

// Adds the gradient of an item's weight and takes the item's edge to that weight away, if it is a
// linear's and nobody would see it: no hook, and no other gradient that meets it.  Gradients of
// `inputs` are not added up.
// REQUIRES: the item is run next, with these gradients, for the last time.
void add_product_of(BackwardGraph& graph, BackwardGraph::Item& item, const Tensors& gradients,
                    const Tensors& inputs);

}  // namespace penstock::stage
