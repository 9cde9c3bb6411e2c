// Parameters that replicas have in common, as Python hands them to a Pipeline.
//
// replica.cpp binds them, pipeline.cpp takes them.  Knows no Python.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/runtime/comm/shard_group.h"
#include "penstock/runtime/parameters/rank_parameters.h"

namespace penstock::bindings {

using Parameters = std::vector<std::pair<std::string, at::Tensor>>;

// Ranks of a communicator as replicas of a module.
struct ReplicaGroup {
  ReplicaGroup(comm::Communicator& c, const std::vector<Rank>& ranks)
      : communicator(c), group(c, ranks) {}

  comm::Communicator& communicator;
  comm::ShardGroup group;
};

// The place that a keyword of Python says; None: where it is anyway.
inline offload::Where in_folder(const std::optional<std::string>& folder) {
  if (!folder) return {};
  return {.place = offload::Place::File, .folder = *folder};
}

struct PythonReplicated {
  explicit PythonReplicated(ReplicaGroup& g) : group(g) {}

  ReplicaGroup& group;
  std::optional<parameters::RankParameters> parameters;
};

}  // namespace penstock::bindings
