#include "penstock/plan/verify/table.h"

#include <algorithm>

#include "penstock/core/check.h"

namespace penstock::verify {

using schedule::Action;
using schedule::Op;

static_assert(static_cast<std::size_t>(Op::ReduceGradients) + 1 == schedule::kOps);

Table::Table(const schedule::Schedule& schedule)
    : microbatches_(static_cast<std::size_t>(schedule.microbatches)),
      pairs_(static_cast<std::size_t>(schedule.stages) * microbatches_),
      positions_(kPairOps * pairs_ + kStageOps * static_cast<std::size_t>(schedule.stages),
                 kNowhere) {
  std::size_t actions = 0;
  for (const schedule::Program& program : schedule.programs) {
    begin_of_rank_.push_back(static_cast<std::uint32_t>(actions));
    actions += program.size();
  }
  PENSTOCK_CHECK(actions < kNowhere, actions, " actions");
  begin_of_rank_.push_back(static_cast<std::uint32_t>(actions));
}

Place Table::place(std::uint32_t position) const {
  const auto behind = std::ranges::upper_bound(begin_of_rank_, position);
  const auto rank = static_cast<std::size_t>(behind - begin_of_rank_.begin()) - 1;
  return {.rank = Rank(rank), .step = static_cast<std::int32_t>(position - begin_of_rank_[rank])};
}

void Table::set_reduction_of_one(const Action& action, const Place& place) {
  if (reductions_of_one_.empty()) reductions_of_one_.assign(pairs_, kNowhere);
  reductions_of_one_[pair(action)] = position(place);
}

}  // namespace penstock::verify
