// One replica of a module that somebody else runs: what the replicas do together with its
// parameters, from ZeRO 0 to ZeRO 3.
//
// The Python package's engine has one; forward and backward are torch's own, over modules of any
// kind.  The Trainer does the same for models that are lists of layers, under pipeline schedules,
// and also steps the optimizer.  Knows no modules, no batches and no optimizer.
// Parameters are numbered as they were given; parts and norms go by those that require a gradient.
//
// A step is: begin_forward() and end_forward() around each forward, backward() of each loss, the
// last of them ending the accumulation; then the caller updates parts(), and gather().  The caller
// may run backwards itself, between begin_backward() and end_backward(); sum_gradients() ends the
// accumulation then.  A backward behind the last one begins an accumulation again, whose sums are
// added to those that are there: it costs a second copy of this rank's gradients.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/runtime/comm/shard_group.h"
#include "penstock/runtime/execute/executor.h"
#include "penstock/runtime/parameters/rank_parameters.h"
#include "penstock/runtime/parameters/sums_when_final.h"
#include "penstock/runtime/train/caller_backwards.h"
#include "penstock/runtime/update/gradient_scale.h"

namespace penstock::train {

// What a forward is for.
enum class Forward : std::uint8_t {
  Training,
  Evaluation,
  Outside,  // None: single operators, between a program's forwards and backwards.
};
// What happens to a graph in its backward.
enum class Graph : std::uint8_t { Freed, Retained };

// How gradients become those of a step.
struct ModuleGradients {
  // What losses are multiplied by before a backward; null: by nothing.
  std::shared_ptr<const update::GradientScale> scale;
  double divisor = 1.0;  // Divides sums over the replicas.
};

class ModuleReplica {
 public:
  // Collective over `group`, which, like its `communicator`, outlives it.  Values become those of
  // the first replica.  Parameters of `spread_before` (zero.Init) leave it, a bucket at a time.
  // REQUIRES: each is there once, under a name of its own.
  ModuleReplica(const std::vector<stage::NamedParameter>& parameters,
                const parameters::ReplicaOptions& options, ModuleGradients gradients,
                const std::vector<parameters::ZeroInitParameters*>& spread_before,
                comm::ShardGroup& group, comm::Communicator& communicator);

  // What this rank updates: whole parameters, or slices, each with its gradient.
  const parameters::Parts& parts() const { return replicated_.parts(); }

  // What this rank has of parameters between steps.
  std::vector<parameters::OwnedElements> kept() const { return replicated_.kept().front(); }

  // Parameters that come and go under ZeRO 3; null: none does.
  parameters::ZeroInitParameters* spread() { return replicated_.spread(0); }
  // The number of each parameter in spread(); absent: it stays on every rank.
  const std::vector<std::optional<std::size_t>>& spread_place() const {
    return replicated_.spread_place();
  }

  // Parameters that the caller has given other memory train on with what they are now
  // (RankParameters); begin_forward() of a training does so.  Call it before an update.
  void take_over();

  // Operators in between may bring parameters.
  // Throws: Error for a frozen parameter that requires a gradient by now; so does backward().
  void begin_forward(Forward forward);
  // Throws: Error for what went wrong in them, which they cannot say.
  void end_forward();

  // Adds the gradients of `loss`, a scalar, times `factor` and the gradient scale; the backward
  // that ends an accumulation leaves their sums over the replicas in parts().  They leave while it
  // runs, if its graph is all torch's own: a node of Python's may run a backward in a backward,
  // which adds to gradients that seemed final.
  void backward(const at::Tensor& loss, double factor, execute::Accumulation accumulation,
                Graph graph);

  // The backwards of the caller's own that may add to gradients.
  CallerBackwards& backwards() { return backwards_; }
  // Operators in between may bring parameters.
  void begin_backward();
  void end_backward();
  // Collective: ends the accumulation, unless a backward() has: leaves the sums in parts().
  void sum_gradients();
  bool has_sums() const { return has_sums_; }

  // The call that was under way has failed: nothing brings parameters any more.
  // Throws: Error for what went wrong in an operator, if that is behind it.
  void abandon();

  // Squares of the 2-norms of gradients, by trained parameter; 0: no gradient.  Collective.
  // `words`: as RankParameters has them.
  std::vector<double> squared_norms(std::span<double> words = {});
  // The next accumulation begins.
  void drop_gradients();

  // Collective, after an update of parts(): parameters that are whole here get the slices that
  // other ranks have updated.
  void gather() { replicated_.gather(); }

  parameters::PagerReport paging() const { return replicated_.paging(); }

 private:
  void begin_compute(const char* run);
  void end_run();
  void accumulate_again();
  void finish();

  parameters::RankParameters replicated_;
  ModuleGradients gradients_;
  parameters::SumsWhenFinal hooks_;
  CallerBackwards backwards_;
  bool has_sums_ = false;
  // Sums, by part, of this step's accumulations that have ended.
  std::vector<at::Tensor> sums_before_;
  bool may_nest_ = false;    // The backward that comes.
  bool is_running_ = false;  // True from a forward to its backward.
  bool ends_with_forward_ = false;
};

}  // namespace penstock::train
