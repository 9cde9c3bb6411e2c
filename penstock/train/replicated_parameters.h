// Parameters that replicas have in common: what each rank updates of them, who sums their
// gradients, and which of them come and go, from ZeRO 0 to ZeRO 3.
//
// A ModuleReplica has one of its module, a Pipeline one of this rank's stages.  Parameters are in
// sets, by the backwards that their gradients come in, and numbered as they were given, set by set;
// those that require a gradient, the trained ones, also among themselves.  Others are frozen: they
// may come and go, and are not updated.  Knows no modules, no stages and no optimizer.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/comm/shard_group.h"
#include "penstock/execute/stage_hooks.h"
#include "penstock/partition/persistence.h"
#include "penstock/train/parts.h"
#include "penstock/train/spread_module.h"
#include "penstock/train/trainer.h"
#include "penstock/zero/pager.h"

namespace penstock::train {

// Whether, under ZeRO 3, a set's trained parameters come and go; frozen ones do.
enum class Whereabouts : std::uint8_t { ComeAndGo, Stay };

struct ParameterSet {
  std::vector<stage::NamedParameter> parameters;
  Whereabouts whereabouts = Whereabouts::ComeAndGo;
};

class ReplicatedParameters {
 public:
  // Collective over `group`, which, like its `communicator`, outlives it.  Values become those of
  // the first replica.  Parameters of `spread_before` (zero.Init) leave it, a bucket at a time.
  // REQUIRES: each is there once, under a name of its own.
  ReplicatedParameters(const std::vector<ParameterSet>& sets, const ZeroOptions& zero,
                       const std::vector<SpreadModule*>& spread_before, comm::ShardGroup& group,
                       comm::Communicator& communicator);
  ~ReplicatedParameters();

  std::size_t sets() const { return sets_.size(); }

  // What this rank updates of trained parameters: whole ones, or slices, each with its gradient.
  const Parts& parts() const { return parts_; }

  // What sums the gradients of a set, and brings parameters, also those of other sets.
  execute::StageHooks& hooks(std::size_t set);

  // Those of a set that come and go: none but under ZeRO 3 on several ranks.
  SpreadModule* spread(std::size_t set);
  // By parameter, its number there; absent where it stays.
  const std::vector<std::optional<std::size_t>>& spread_place() const { return spread_place_; }
  // Of all sets; null where nothing comes and goes.
  zero::Pager* pager() { return pager_.get(); }
  zero::PagerReport paging() const { return pager_ ? pager_->report() : zero::PagerReport{}; }
  // What was under way has failed: nothing brings parameters any more.
  void abandon_run();

  // Throws: Error, naming it, for a frozen parameter that requires a gradient by now.
  void check_frozen() const;

  // By trained parameter, the square of its gradient's 2-norm; 0 where there is none.  Collective.
  std::vector<double> squared_norms();
  void drop_gradients();

  // Collective, after an update of parts(): parameters that are whole here get the slices that
  // other ranks have updated.
  void gather();

 private:
  class Set;
  bool is_sharded() const { return zero_.stage != ZeroStage::Off && group_.size() > 1; }
  bool goes(const ParameterSet& set, const stage::NamedParameter& parameter);
  void share_first_values(const std::vector<ParameterSet>& sets,
                          const std::vector<SpreadModule*>& spread_before);
  void place(const ParameterSet& given, Set& set);
  void set_open(bool is_open);

  ZeroOptions zero_;
  partition::Persistence persistence_;
  comm::ShardGroup& group_;
  comm::Communicator& communicator_;
  std::unique_ptr<zero::Pager> pager_;
  std::vector<std::unique_ptr<Set>> sets_;
  std::vector<std::optional<std::size_t>> spread_place_;
  std::vector<stage::NamedParameter> trained_, frozen_;
  Parts parts_;
};

}  // namespace penstock::train
