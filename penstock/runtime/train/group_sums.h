// The groups of a rank (mesh/groups.h), connected, and what a step sums over them.
//
// A RankModel has one.  Knows neither stages nor parameters.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/core/mesh/groups.h"
#include "penstock/runtime/comm/shard_group.h"
#include "penstock/runtime/execute/progress.h"

namespace penstock::train {

class GroupSums {
 public:
  // Collective over all ranks.  What is a reference outlives this.
  GroupSums(mesh::Groups groups, comm::Communicator& communicator, execute::Progress& progress);

  const mesh::Groups& groups() const { return groups_; }
  comm::ShardGroup& same_parameters() { return same_parameters_; }

  // Sums `tensor`, in place, over ranks that make up the model (Groups::other_parameters).
  // REQUIRES: ranks with the same parameters have the same of it.
  void over_model(const at::Tensor& tensor);
  // The same of what ranks that share layers have the same of, too: one of them counts.
  void once_over_model(const at::Tensor& tensor);
  // Whether this rank is that one.
  bool counts_here() const { return groups_.shared_weights.here == 0; }
  // The sums of what the ranks with the same parameters have at each place of `mine`; `phase` says
  // what is waited for.
  std::vector<double> over_copies(const std::vector<double>& mine, const char* phase);
  // What the rank of each replica has that is here in its own, one replica after the other.
  std::vector<double> over_replicas(const std::vector<double>& mine, const char* phase);

 private:
  std::vector<double> sums(const std::vector<double>& mine, comm::Group group, const char* phase);

  comm::Communicator& communicator_;
  execute::Progress& progress_;
  mesh::Groups groups_;
  comm::ShardGroup same_parameters_;
  comm::Group other_parameters_;
  comm::Group other_samples_;
};

}  // namespace penstock::train
