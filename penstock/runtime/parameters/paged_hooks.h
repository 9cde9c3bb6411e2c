// The hooks of a stage under ZeRO 3: what it computes may bring pages, its gradients are summed
// into shards, and a program's UNSHARD and RESHARD bring and drop all its pages.
//
// One pager serves all stages of a rank.  Knows no stage but by its parameters.
#pragma once
#include <utility>

#include "penstock/runtime/parameters/pager.h"
#include "penstock/runtime/parameters/parameter_shards.h"

namespace penstock::parameters {

// `Sums`: what sums the gradients, ShardedGradients or InvariantShards.
template <class Sums>
class PagedHooks : public Sums {
 public:
  // `pager`, which has the pages of `shards`, outlives it, like the shards.  `more`: what else Sums
  // takes.
  template <class... More>
  PagedHooks(Pager& pager, ParameterShards& shards, More&&... more)
      : Sums(shards, std::forward<More>(more)...), pager_(pager) {}

  void unshard() override { this->shards().unshard(); }
  void reshard() override { this->shards().reshard(); }
  void before_compute() override { pager_.begin_compute(); }
  void after_compute() override { pager_.end_compute(); }
  bool is_weight(const at::Tensor& tensor) const override { return pager_.has(tensor); }

 protected:
  void before_sum(const Page& page) override { pager_.say(Word::Kind::Sum, page); }

 private:
  Pager& pager_;
};

}  // namespace penstock::parameters
