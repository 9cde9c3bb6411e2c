#include "penstock/runtime/execute/group_exchanges.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>

#include <utility>
#include <vector>

#include "penstock/core/check.h"
#include "penstock/core/exception_text.h"
#include "penstock/runtime/comm/ordered_sum.h"

namespace penstock::execute {
namespace {

using exchange::Action;

Rank member(const comm::ShardGroup& group, std::int32_t place) {
  return group.ranks()[static_cast<std::size_t>(place)];
}

// Up to this many bytes come to a rank when a value goes whole.
constexpr std::int64_t kBytesOfWhole = std::int64_t{1} << 17;

// Whether what is narrowed along that dimension has no gaps.
bool is_outermost(const std::vector<std::int64_t>& sizes, std::int64_t dimension) {
  for (std::int64_t d = 0; d < dimension; ++d) {
    if (sizes[static_cast<std::size_t>(d)] != 1) return false;
  }
  return true;
}

}  // namespace

GroupExchanges::GroupExchanges(comm::Communicator& communicator, comm::ShardGroup& group,
                               Progress& progress)
    : communicator_(communicator),
      group_(group),
      progress_(progress),
      share_{.index = group.place(), .of = group.size()},
      gather_tag_(group.reserve_tags(2)),
      scatter_tag_(gather_tag_ + 1) {}

template <class Action>
void GroupExchanges::for_others(const Action& action) const {
  for (std::int32_t i = 1; i < group_.size(); ++i) action((group_.place() + i) % group_.size());
}

at::Tensor GroupExchanges::run(const stage::AskedExchange& asked, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const ExchangeMark mark(progress_, asked.name);
  try {
    switch (asked.action) {
      case Action::AllReduce:
        return reduced(value);
      case Action::AllReduceMax:
        return largest(value);
      case Action::AllGather:
        return gathered(asked, value);
      case Action::ReduceScatter:
        return scattered(asked, value);
      case Action::Keep:
      case Action::TakePart:
        break;
    }
  } catch (...) {
    rethrow_from(asked.name);
  }
  PENSTOCK_CHECK(false, asked.name, " sends nothing");
  return {};
}

std::int64_t GroupExchanges::sum(std::int64_t part, const char* name) {
  const ExchangeMark mark(progress_, name);
  const at::Tensor sum = at::full({1}, part, at::kLong);
  communicator_.all_reduce(sum, group_.group())->wait();
  return sum.item<std::int64_t>();
}

// The sum of this rank's summand and those that others send; each of them is sent what it adds up.
template <class ForOther>
at::Tensor GroupExchanges::added_up(const at::Tensor& mine, const ForOther& for_other) {
  std::vector<at::Tensor> summands(group_.ranks().size(), mine);
  for_others([&](std::int32_t other) {
    summands[static_cast<std::size_t>(other)] = at::empty_like(mine);
  });
  at::Tensor sum = at::empty_like(mine);
  comm::OrderedSum transfers(summands, sum, comm::SumOrder::InHalves);
  for_others([&](std::int32_t other) {
    transfers.add(communicator_.receive(summands[static_cast<std::size_t>(other)],
                                        member(group_, other), scatter_tag_));
  });
  for_others([&](std::int32_t other) {
    transfers.add(communicator_.send(for_other(other), member(group_, other), scatter_tag_));
  });
  transfers.wait();
  return sum;
}

// Messages are the device's, where it has some: a collective would go through host memory.  What is
// small goes whole to all; else each rank adds up a part.
at::Tensor GroupExchanges::reduced(const at::Tensor& value) {
  const at::Tensor mine = value.contiguous();
  const std::int64_t elements = mine.numel();
  if (static_cast<std::int64_t>(mine.nbytes()) * (share_.of - 1) > kBytesOfWhole) {
    const stage::AskedExchange parts{.action = Action::ReduceScatter, .whole = elements};
    return gathered(parts, scattered(parts, mine.view(-1))).view(value.sizes());
  }
  return added_up(mine, [&](std::int32_t) { return mine; });
}

// Every rank's, side by side.
at::Tensor GroupExchanges::largest(const at::Tensor& value) {
  std::vector<std::int64_t> sizes = value.sizes().vec();
  sizes.insert(sizes.begin(), group_.size());
  const at::Tensor rows = at::empty(sizes, value.options());
  rows[group_.place()].copy_(value);
  group_.all_gather(rows, gather_tag_)->wait();
  return rows.amax(0);
}

at::Tensor GroupExchanges::gathered(const stage::AskedExchange& asked, const at::Tensor& part) {
  std::vector<std::int64_t> sizes = part.sizes().vec();
  sizes[static_cast<std::size_t>(asked.dimension)] = asked.whole;
  at::Tensor whole = at::empty(sizes, part.options());
  const auto place_of = [&](std::int32_t member) {
    const Interval here = partition::part_of(asked.whole, {.index = member, .of = share_.of});
    return whole.narrow(asked.dimension, here.first, here.count);
  };
  const bool in_place = is_outermost(sizes, asked.dimension);
  std::vector<at::Tensor> parts(group_.ranks().size());
  comm::Transfers transfers;
  for_others([&](std::int32_t other) {
    const at::Tensor place = place_of(other);
    at::Tensor& to = parts[static_cast<std::size_t>(other)];
    to = in_place ? place : at::empty(place.sizes(), place.options());
    transfers.add(communicator_.receive(to, member(group_, other), gather_tag_));
  });
  const at::Tensor mine = part.contiguous();
  for_others([&](std::int32_t other) {
    transfers.add(communicator_.send(mine, member(group_, other), gather_tag_));
  });
  place_of(group_.place()).copy_(mine);
  transfers.wait();
  if (in_place) return whole;
  for_others(
      [&](std::int32_t other) { place_of(other).copy_(parts[static_cast<std::size_t>(other)]); });
  return whole;
}

at::Tensor GroupExchanges::scattered(const stage::AskedExchange& asked, const at::Tensor& value) {
  const auto part_of = [&](std::int32_t member) {
    const Interval here = partition::part_of(asked.whole, {.index = member, .of = share_.of});
    return value.narrow(asked.dimension, here.first, here.count).contiguous();
  };
  const at::Tensor mine = part_of(group_.place());
  return added_up(mine, part_of);
}

}  // namespace penstock::execute
