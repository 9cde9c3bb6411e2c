#include "penstock/plan/choose/shared_cores.h"

#include <algorithm>
#include <map>
#include <vector>

#include "penstock/mesh/mesh.h"

namespace penstock::choose {
namespace {

// Replicas of a pipeline rank on each node.
using Nodes = std::map<std::int32_t, std::int32_t>;

std::vector<Nodes> nodes_of_ranks(const mesh::Shape& shape, std::int32_t ranks_per_node) {
  const mesh::Mesh all = mesh::make_mesh(shape);
  std::vector<Nodes> nodes(static_cast<std::size_t>(shape.size(mesh::Role::Pipe)));
  for (std::int32_t rank = 0; rank < all.world_size(); ++rank) {
    const std::int32_t node = ranks_per_node > 0 ? rank / ranks_per_node : 0;
    ++nodes[static_cast<std::size_t>(all.index(Rank(rank), mesh::Role::Pipe))][node];
  }
  return nodes;
}

struct Change {
  double time = 0.0;
  std::size_t rank = 0;     // Rank of the pipeline.
  std::int32_t begins = 0;  // Actions: 1, or -1 for one that ends.
};

std::vector<Change> changes_of(const simulate::Simulation& simulation) {
  std::vector<Change> changes;
  for (const auto* events : {&simulation.events, &simulation.streams}) {
    for (const simulate::Event& event : *events) {
      if (event.end <= event.start) continue;
      changes.push_back({.time = event.start, .rank = event.rank.index(), .begins = 1});
      changes.push_back({.time = event.end, .rank = event.rank.index(), .begins = -1});
    }
  }
  std::ranges::stable_sort(changes, {}, &Change::time);
  return changes;
}

// How many times longer everything takes, with so many that compute on each node.
double stretch(const Nodes& computing, const Network& network) {
  std::int32_t most = 0;
  for (const auto& [node, count] : computing) most = std::max(most, count);
  if (most <= network.cores_per_node) return 1.0;
  return network.crowding * most / network.cores_per_node;
}

}  // namespace

bool shares_cores(const Layout& layout, const Network& network) {
  if (network.cores_per_node == 0) return false;
  const auto world = static_cast<std::int32_t>(layout.mesh.size());
  const std::int32_t ranks =
      network.ranks_per_node > 0 ? std::min(network.ranks_per_node, world) : world;
  return ranks > network.cores_per_node;
}

double time_on_shared_cores(const simulate::Simulation& simulation, double update,
                            const Layout& layout, const Network& network) {
  const std::vector<Nodes> nodes = nodes_of_ranks(layout.mesh, network.ranks_per_node);
  Nodes computing;
  double now = 0.0;
  double stretched = 0.0;
  for (const Change& change : changes_of(simulation)) {
    stretched += (change.time - now) * stretch(computing, network);
    now = change.time;
    for (const auto& [node, count] : nodes[change.rank]) computing[node] += change.begins * count;
  }
  Nodes all;
  for (const Nodes& of_rank : nodes) {
    for (const auto& [node, count] : of_rank) all[node] += count;
  }
  return stretched + update * stretch(all, network);
}

}  // namespace penstock::choose
