#include "penstock/runtime/stage/backward_graph.h"

#include <c10/util/flat_hash_map.h>

#include <queue>
#include <utility>

namespace penstock::stage {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;

// Finds the nodes, then puts them in order.
class Walk {
 public:
  explicit Walk(const edge_list& roots) : roots_(roots) {}

  BackwardGraph run() {
    for (const Edge& root : roots_) visit(root);
    for (std::size_t i = 0; i < found_.size(); ++i) {
      found_[i].first_edge = static_cast<std::int32_t>(leads_to_.size());
      const Node& node = *found_[i].node;  // visit() moves found_, not the nodes.
      for (const Edge& edge : node.next_edges()) leads_to_.push_back(visit(edge));
    }
    put_in_order();
    graph_.arrivals.resize(index(graph_.slot_count));
    for (const Edge& root : roots_) {
      graph_.roots.push_back(target(root, root.is_valid() ? find(root) : kNowhere));
    }
    for (BackwardGraph::Item& item : graph_.items) add_targets(item);
    return std::move(graph_);
  }

 private:
  static constexpr std::int32_t kNowhere = BackwardGraph::kNowhere;

  struct Found {
    NodePointer node;
    std::int32_t first_edge = 0;  // Index into leads_to_.
    std::int32_t waits_for = 0;   // Edges that lead here and have not been followed.
    std::int32_t place = kNowhere;
  };

  std::int32_t find(const Edge& edge) const { return index_.find(edge.function.get())->second; }

  std::int32_t visit(const Edge& edge) {
    if (!edge.is_valid()) return kNowhere;
    const auto [entry, is_new] =
        index_.emplace(edge.function.get(), static_cast<std::int32_t>(found_.size()));
    if (is_new) found_.push_back({.node = edge.function});
    ++found_[index(entry->second)].waits_for;
    return entry->second;
  }

  void put_in_order() {
    // The engine's order: of the nodes that have all their gradients, the one that was made last.
    std::priority_queue<std::pair<std::uint64_t, std::int32_t>> ready;
    const auto follow = [&](std::int32_t found) {
      if (--found_[index(found)].waits_for == 0) {
        ready.emplace(found_[index(found)].node->sequence_nr(), found);
      }
    };
    graph_.items.reserve(found_.size());
    for (const Edge& root : roots_) {
      if (root.is_valid()) follow(find(root));
    }
    while (!ready.empty()) {
      const Found& found = place(ready.top().second);
      ready.pop();
      for (std::uint32_t e = 0; e < found.node->num_outputs(); ++e) {
        const std::int32_t next = leads_to_[index(found.first_edge) + e];
        if (next != kNowhere) follow(next);
      }
    }
  }

  const Found& place(std::int32_t number) {
    Found& found = found_[index(number)];
    found.place = static_cast<std::int32_t>(graph_.items.size());
    const auto slots = static_cast<std::int32_t>(found.node->num_inputs());
    graph_.items.push_back({.node = found.node,
                            .first_target = found.first_edge,
                            .targets = static_cast<std::int32_t>(found.node->num_outputs()),
                            .first_slot = graph_.slot_count,
                            .slot_count = slots});
    graph_.slot_count += slots;
    return found;
  }

  BackwardGraph::Target target(const Edge& edge, std::int32_t found) {
    if (found == kNowhere) return {};
    const std::int32_t item = found_[index(found)].place;
    const std::int32_t slot =
        graph_.items[index(item)].first_slot + static_cast<std::int32_t>(edge.input_nr);
    ++graph_.arrivals[index(slot)];
    return {item, slot};
  }

  void add_targets(BackwardGraph::Item& item) {
    const std::int32_t first_edge = item.first_target;
    item.first_target = static_cast<std::int32_t>(graph_.targets.size());
    for (std::int32_t e = 0; e < item.targets; ++e) {
      graph_.targets.push_back(
          target(item.node->next_edge(index(e)), leads_to_[index(first_edge + e)]));
    }
  }

  const edge_list& roots_;
  ska::flat_hash_map<const Node*, std::int32_t> index_;
  std::vector<Found> found_;
  std::vector<std::int32_t> leads_to_;  // Items by found node and edge, flat.
  BackwardGraph graph_;
};

}  // namespace

BackwardGraph make_backward_graph(const edge_list& roots) { return Walk(roots).run(); }

}  // namespace penstock::stage
