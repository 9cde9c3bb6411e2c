// Parameters that the ranks of a data group have in common: what each rank updates of them, who
// sums their gradients, and which of them come and go, from ZeRO 0 to ZeRO 3.
//
// The Trainer, a Pipeline and a ModuleReplica each have one, of all the parameters of their rank.
// Who holds what is an Ownership (partition/ownership.h); here it is carried out.
// Parameters are in sets, by the backwards that their gradients come in: a set for each stage.
// They are numbered as they were given, set by set.  Those that require a gradient, the trained
// ones, are also numbered among themselves, where a tied parameter counts once.  Others are frozen:
// they may come and go, and are not updated.
// Knows no modules, no stages and no optimizer.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/partition/ownership.h"
#include "penstock/runtime/comm/shard_group.h"
#include "penstock/runtime/execute/executor.h"
#include "penstock/runtime/execute/stage_hooks.h"
#include "penstock/runtime/parameters/growing_parameters.h"
#include "penstock/runtime/parameters/pager.h"
#include "penstock/runtime/parameters/parameter_shards.h"
#include "penstock/runtime/parameters/parts.h"
#include "penstock/runtime/parameters/program_changes.h"
#include "penstock/runtime/parameters/zero_init_parameters.h"

namespace penstock::parameters {

// What a rank has of a parameter between steps.
struct OwnedElements {
  stage::NamedParameter parameter;
  at::Tensor values;  // The whole parameter, or this rank's slice, flat.  Set it, then gather().
  std::int64_t first = 0;  // Index among its elements.
  bool is_slice = false;   // False: all ranks have all elements; true: other ranks have the others.
  std::optional<std::size_t> part;  // Its number in parts(), if this rank updates it.
};

class RankParameters {
 public:
  // Takes parameters that were added layer by layer.  `communicator` outlives it.
  RankParameters(std::unique_ptr<GrowingParameters> grown, comm::Communicator& communicator);
  // Takes parameters that are all there.  Collective: values become those of the first replica.
  // Parameters of `spread_before` (zero.Init) leave it, a bucket at a time.
  // REQUIRES: each is there once, under a name of its own.
  RankParameters(const std::vector<ParameterSet>& sets, const ReplicaOptions& options,
                 const std::vector<ZeroInitParameters*>& spread_before, comm::ShardGroup& group,
                 comm::Communicator& communicator);
  ~RankParameters();

  std::size_t sets() const;
  // Whether ranks update slices; else each updates whole parameters.
  bool are_cut() const { return grown_->rules().are_cut(); }

  // What this rank updates of trained parameters: whole ones, or slices, each with its gradient.
  const Parts& parts() const { return parts_; }
  // The parameters of which this rank has elements, and these elements, by set.  A tied parameter
  // has its part in the first set that has it.
  std::vector<std::vector<OwnedElements>> kept() const;
  // What this rank updates of a parameter of a set: itself, its slice, or undefined.
  at::Tensor part_of(std::size_t set, const at::Tensor& parameter) const;

  // What sums the gradients of a set, and brings parameters, also those of other sets.
  execute::StageHooks& hooks(std::size_t set);

  // The parameters of a set that come and go; null: none does.
  ZeroInitParameters* spread(std::size_t set);
  // The number of each parameter in spread(); absent: it stays on every rank.
  const std::vector<std::optional<std::size_t>>& spread_place() const { return spread_place_; }
  // The pager of all sets; null: nothing comes and goes.
  Pager* pager() { return pager_.get(); }
  PagerReport paging() const { return pager_ ? pager_->report() : PagerReport{}; }
  // Bytes of the files with pieces.
  std::int64_t file_bytes() const;

  // What `program` returns, during which parameters may come and go; runs of one name read them
  // alike.
  // Throws: what it throws, after all other ranks were told; as check_frozen().
  execute::StepResult run(const char* name, const std::function<execute::StepResult()>& program);
  // What was under way has failed: nothing brings parameters any more.
  void abandon_run();

  // Throws: Error, naming it, for a frozen parameter that requires a gradient by now.
  void check_frozen() const;

  // What a program makes of the parameters by itself.
  ProgramChanges& changes() { return *changes_; }

  // Squares of the 2-norms of gradients, by trained parameter; 0: no gradient.  Collective.
  // `words`: empty, or one number of each replica, of which this one's is set: then all are.  They
  // go with the sum of the norms if there is one, and else by themselves, meanwhile.
  std::vector<double> squared_norms(std::span<double> words = {});
  void drop_gradients();

  // Collective, after an update of parts(): parameters that are whole here get the slices that
  // other ranks have updated.
  void gather();

  // Collective: parameters that are trained are whole while it lives, to be read; frozen ones stay
  // where they are.
  class [[nodiscard]] WholeTrained {
   public:
    explicit WholeTrained(RankParameters& parameters);
    ~WholeTrained();
    WholeTrained(const WholeTrained&) = delete;
    WholeTrained& operator=(const WholeTrained&) = delete;

   private:
    RankParameters& parameters_;
    std::vector<std::shared_ptr<Page>> pages_;
    std::int64_t age_ = 0;
  };

  // Collective: all parameters are whole until reshard().
  void unshard();
  // Ends unshard().  Parameters that every rank of the group has set to the same values meanwhile
  // train on with them.
  void reshard();

 private:
  struct Set;
  std::unique_ptr<Pager> make_pager() const;
  std::unique_ptr<execute::StageHooks> make_hooks(ParameterShards& shards);
  void place(ParameterShards& shards);

  std::unique_ptr<GrowingParameters> grown_;
  comm::Communicator& communicator_;
  execute::Progress own_progress_;
  execute::Progress& progress_;
  std::unique_ptr<Pager> pager_;
  std::int32_t words_tag_;
  std::vector<Set> sets_;
  std::optional<ProgramChanges> changes_;
  std::vector<std::optional<std::size_t>> spread_place_;
  std::set<std::string> tied_;  // Names of tied parameters that have a part.
  Parts parts_;
};

}  // namespace penstock::parameters
