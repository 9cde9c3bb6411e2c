// The autograd graph behind some tensors as a list, in the order in which the engine would run it.
//
// backward.cpp makes one per microbatch and walks it twice.  Knows no gradients.
// Invariant: an item comes after every item that leads to it.  Running items in list order adds
// what meets at a node in the order in which torch::autograd::backward() adds it: the engine, too,
// takes the youngest node that is ready.
#pragma once
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "penstock/runtime/nn/torch_versions.h"

namespace penstock::stage {

using nn::NodePointer;

// A place in one of the lists below.
inline std::size_t index(std::int32_t number) { return static_cast<std::size_t>(number); }

struct BackwardGraph {
  static constexpr std::int32_t kNowhere = -1;

  struct Item {
    NodePointer node;
    std::int32_t first_target = 0;  // Index into `targets`: one for each of the node's edges.
    std::int32_t targets = 0;
    std::int32_t first_slot = 0;  // First slot of its incoming gradients; see Target::slot.
    std::int32_t slot_count = 0;
  };
  // The end of an edge: an item, and a number among all gradients that come in anywhere.
  struct Target {
    std::int32_t item = kNowhere;
    std::int32_t slot = kNowhere;
  };

  std::vector<Item> items;
  std::vector<Target> targets;
  std::vector<Target> roots;           // Entries of the tensors' gradients, in their order.
  std::vector<std::int32_t> arrivals;  // Gradients that come to each slot.
  std::int32_t slot_count = 0;
};

// The graph that is reached from `roots`; an edge that is not valid leads nowhere.
BackwardGraph make_backward_graph(const torch::autograd::edge_list& roots);

}  // namespace penstock::stage
