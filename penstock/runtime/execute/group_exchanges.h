// Exchanges between the ranks that share layers, as messages between every two of them.
//
// A RankModel gives them to its stages.  Sums are added in halves of the ranks (ordered_sum.h), so
// every rank has the same bits of what all have.  Parts may have different sizes; nothing is
// padded.  Who awaits one within an overlapped pair lets the pair's other pass run first
// (braid.h); the pair is the Progress's, which knows what its rank is at.
// Knows no layers: a name is all that it has of them.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "penstock/comm/communicator.h"
#include "penstock/runtime/comm/shard_group.h"
#include "penstock/runtime/execute/progress.h"
#include "penstock/runtime/stage/exchanges.h"

namespace penstock::execute {

class GroupExchanges : public stage::Exchanges {
 public:
  // Both outlive it.  `group` has no messages of other users with these ranks.
  GroupExchanges(comm::Communicator& communicator, comm::ShardGroup& group, Progress& progress);

  const partition::Share& share() const override { return share_; }
  std::unique_ptr<stage::StartedExchange> start(const stage::AskedExchange& asked,
                                                const at::Tensor& value) override;
  // Waits in place.
  std::int64_t sum(std::int64_t part, const char* name) override;

 private:
  class Started;
  // Messages under way, and what makes the result of what they bring.
  struct Halves {
    std::unique_ptr<comm::Transfer> messages;
    std::function<at::Tensor()> result;
  };
  Halves started(const stage::AskedExchange& asked, const at::Tensor& value);
  template <class ForOther>
  Halves added_up(const at::Tensor& mine, const ForOther& for_other);
  Halves reduced(const at::Tensor& value);
  Halves largest(const at::Tensor& value);
  Halves gathered(const stage::AskedExchange& asked, const at::Tensor& part);
  Halves scattered(const stage::AskedExchange& asked, const at::Tensor& value);
  // Does `action` with the number of every other rank of the group, the next one first.
  template <class Action>
  void for_others(const Action& action) const;

  comm::Communicator& communicator_;
  comm::ShardGroup& group_;
  Progress& progress_;
  partition::Share share_;
  std::int32_t gather_tag_;
  std::int32_t scatter_tag_;
};

}  // namespace penstock::execute
