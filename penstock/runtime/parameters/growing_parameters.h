// The parameters of a rank while they are added, layer by layer: each goes to where its Ownership
// says before the next layer is made, so that no rank ever has all of them whole.
//
// RankModel adds to one; RankParameters are made of it when all are there, and keep it.
// Knows no gradients, no programs and no optimizer.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/partition/ownership.h"
#include "penstock/plan/partition/gradient_buckets.h"
#include "penstock/plan/partition/persistence.h"
#include "penstock/runtime/comm/shard_group.h"
#include "penstock/runtime/execute/progress.h"
#include "penstock/runtime/offload/place.h"
#include "penstock/runtime/parameters/parameter_shards.h"
#include "penstock/runtime/parameters/zero_init_parameters.h"
#include "penstock/runtime/parameters/zero_options.h"

namespace penstock::parameters {

struct ParameterSet {
  std::vector<stage::NamedParameter> parameters;
  partition::MayLeave may_leave = partition::MayLeave::Yes;
};

struct ReplicaOptions {
  ZeroOptions zero;
  offload::Where pieces = {};               // Place of the pieces of what comes and goes.
  c10::Device device = at::kCPU;            // Device on which this rank computes.
  std::optional<at::ScalarType> sums = {};  // Type of short parameters' summed gradients.
  GradientSums order = GradientSums::AsTheyCome;
  // Buckets whose sums are under way at once.
  std::size_t sums_under_way_max = partition::kSumsUnderWay;
  execute::Progress* progress = nullptr;  // Hears what is waited for; null: nobody does.
  // GradientSums::Invariant: makes gradients of a set whole, of which ranks that share layers have
  // summands, behind each microbatch; null: there are none.
  std::function<void(std::size_t set)> whole_gradients = {};
};

class GrowingParameters {
 public:
  // `group` outlives it.
  GrowingParameters(const ReplicaOptions& options, comm::ShardGroup& group);
  GrowingParameters(const GrowingParameters&) = delete;
  GrowingParameters& operator=(const GrowingParameters&) = delete;

  // What add() adds from now on is the next set, until end_set().
  void begin_set(partition::MayLeave may_leave = partition::MayLeave::Yes);
  // `copies`: how many ranks that share layers have these elements.
  // REQUIRES: parameters alike on every rank of the group, in one order, and with the same values.
  void add(const stage::NamedParameter& parameter, Ties ties = Ties::Unshared,
           std::int64_t copies = 1);
  void end_set();

  const ReplicaOptions& options() const { return options_; }
  const partition::SharingRules& rules() const { return rules_; }
  comm::ShardGroup& group() const { return group_; }
  // A set each.
  const std::vector<std::unique_ptr<ParameterShards>>& sets() const { return sets_; }

 private:
  ReplicaOptions options_;
  comm::ShardGroup& group_;
  partition::SharingRules rules_;
  partition::Persistence persistence_;
  TiedPages tied_pages_;
  partition::MayLeave may_leave_ = partition::MayLeave::Yes;
  std::vector<std::unique_ptr<ParameterShards>> sets_;
};

// Adds parameters that are all there.  Collective: values become those of the first replica.
// Parameters of `spread_before` (zero.Init) leave it, a bucket at a time.
// REQUIRES: each is there once, under a name of its own.
std::unique_ptr<GrowingParameters> grow(const std::vector<ParameterSet>& sets,
                                        const ReplicaOptions& options,
                                        const std::vector<ZeroInitParameters*>& spread_before,
                                        comm::ShardGroup& group, comm::Communicator& communicator);

}  // namespace penstock::parameters
