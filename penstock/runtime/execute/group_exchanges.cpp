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
#include "penstock/runtime/execute/braid.h"
#include "penstock/runtime/execute/step_clock.h"

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

// The time of an exchange, where somebody records.
std::int64_t mark_of(const Progress& progress) {
  return progress.exchanges == nullptr ? 0 : progress.clock->mark();
}

std::int32_t running(const Progress& progress) {
  return progress.instruction.load(std::memory_order_relaxed);
}

// Notes an exchange that is over, where somebody records.
void note(const Progress& progress, ExchangeTimes times) {
  if (progress.exchanges == nullptr) return;
  times.end_ns = progress.clock->mark();
  progress.exchanges->push_back(times);
}

// Says of what fails which exchange it was.
template <class Part>
auto named(const char* name, const Part& part) {
  try {
    return part();
  } catch (...) {
    rethrow_from(name);
  }
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

class GroupExchanges::Started : public stage::StartedExchange {
 public:
  // It began at `start_ns`.
  Started(Progress& progress, const stage::AskedExchange& asked, std::int64_t start_ns,
          Halves halves)
      : progress_(progress),
        times_{.name = asked.name,
               .start_ns = start_ns,
               .begun_ns = mark_of(progress),
               .instruction = running(progress)},
        braid_(asked.waits == stage::Waits::Aside ? progress.braid : nullptr),
        halves_(std::move(halves)) {
    if (braid_ != nullptr) braid_->note_start();
  }

  at::Tensor await() override {
    if (braid_ != nullptr) braid_->step_aside();
    const at::NoGradGuard no_grad;
    const ExchangeMark mark(progress_, times_.name, ExchangeMark::Half::Await);
    times_.awaited_ns = mark_of(progress_);
    at::Tensor result = named(times_.name, [&] {
      halves_.messages->wait();
      return halves_.result();
    });
    note(progress_, times_);
    return result;
  }

 private:
  Progress& progress_;
  ExchangeTimes times_;
  Braid* braid_;  // Null: it is awaited in place.
  Halves halves_;
};

std::unique_ptr<stage::StartedExchange> GroupExchanges::start(const stage::AskedExchange& asked,
                                                              const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const ExchangeMark mark(progress_, asked.name);
  const std::int64_t start_ns = mark_of(progress_);
  return named(asked.name, [&] {
    Halves halves = started(asked, value);
    halves.messages->begin();
    return std::make_unique<Started>(progress_, asked, start_ns, std::move(halves));
  });
}

GroupExchanges::Halves GroupExchanges::started(const stage::AskedExchange& asked,
                                               const at::Tensor& value) {
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
  PENSTOCK_CHECK(false, asked.name, " sends nothing");
  return {};
}

std::int64_t GroupExchanges::sum(std::int64_t part, const char* name) {
  const ExchangeMark mark(progress_, name);
  const std::int64_t start_ns = mark_of(progress_);
  const at::Tensor sum = at::full({1}, part, at::kLong);
  communicator_.all_reduce(sum, group_.group())->wait();
  note(progress_, {.name = name,
                   .start_ns = start_ns,
                   .begun_ns = start_ns,
                   .awaited_ns = start_ns,
                   .instruction = running(progress_)});
  return sum.item<std::int64_t>();
}

// The sum of this rank's summand and those that others send; each of them is sent what it adds up.
template <class ForOther>
GroupExchanges::Halves GroupExchanges::added_up(const at::Tensor& mine, const ForOther& for_other) {
  std::vector<at::Tensor> summands(group_.ranks().size(), mine);
  for_others([&](std::int32_t other) {
    summands[static_cast<std::size_t>(other)] = at::empty_like(mine);
  });
  const at::Tensor sum = at::empty_like(mine);
  auto transfers = std::make_unique<comm::OrderedSum>(summands, sum, comm::SumOrder::InHalves);
  for_others([&](std::int32_t other) {
    transfers->add(communicator_.receive(summands[static_cast<std::size_t>(other)],
                                         member(group_, other), scatter_tag_));
  });
  for_others([&](std::int32_t other) {
    transfers->add(communicator_.send(for_other(other), member(group_, other), scatter_tag_));
  });
  return {.messages = std::move(transfers), .result = [sum] { return sum; }};
}

// Messages are the device's, where it has some: a collective would go through host memory.  What is
// small goes whole to all; else each rank adds up a part, and the parts go to all at the end.
GroupExchanges::Halves GroupExchanges::reduced(const at::Tensor& value) {
  const at::Tensor mine = value.contiguous();
  const std::int64_t elements = mine.numel();
  if (static_cast<std::int64_t>(mine.nbytes()) * (share_.of - 1) <= kBytesOfWhole) {
    return added_up(mine, [&](std::int32_t) { return mine; });
  }
  const stage::AskedExchange parts{.action = Action::ReduceScatter, .whole = elements};
  Halves halves = scattered(parts, mine.view(-1));
  halves.result = [this, parts, sizes = value.sizes().vec(), of_part = std::move(halves.result)] {
    const Halves second = gathered(parts, of_part());
    second.messages->wait();
    return second.result().view(sizes);
  };
  return halves;
}

// Every rank's, side by side.
GroupExchanges::Halves GroupExchanges::largest(const at::Tensor& value) {
  std::vector<std::int64_t> sizes = value.sizes().vec();
  sizes.insert(sizes.begin(), group_.size());
  const at::Tensor rows = at::empty(sizes, value.options());
  rows[group_.place()].copy_(value);
  return {.messages = group_.all_gather(rows, gather_tag_),
          .result = [rows] { return rows.amax(0); }};
}

GroupExchanges::Halves GroupExchanges::gathered(const stage::AskedExchange& asked,
                                                const at::Tensor& part) {
  std::vector<std::int64_t> sizes = part.sizes().vec();
  sizes[static_cast<std::size_t>(asked.dimension)] = asked.whole;
  const at::Tensor whole = at::empty(sizes, part.options());
  const auto place_of = [whole, asked, of = share_.of](std::int32_t member) {
    const Interval here = partition::part_of(asked.whole, {.index = member, .of = of});
    return whole.narrow(asked.dimension, here.first, here.count);
  };
  const bool in_place = is_outermost(sizes, asked.dimension);
  std::vector<at::Tensor> parts(group_.ranks().size());
  auto transfers = std::make_unique<comm::Transfers>();
  for_others([&](std::int32_t other) {
    const at::Tensor place = place_of(other);
    at::Tensor& to = parts[static_cast<std::size_t>(other)];
    to = in_place ? place : at::empty(place.sizes(), place.options());
    transfers->add(communicator_.receive(to, member(group_, other), gather_tag_));
  });
  const at::Tensor mine = part.contiguous();
  for_others([&](std::int32_t other) {
    transfers->add(communicator_.send(mine, member(group_, other), gather_tag_));
  });
  place_of(group_.place()).copy_(mine);
  if (in_place) return {.messages = std::move(transfers), .result = [whole] { return whole; }};
  return {.messages = std::move(transfers), .result = [this, whole, place_of, parts] {
            for_others([&](std::int32_t other) {
              place_of(other).copy_(parts[static_cast<std::size_t>(other)]);
            });
            return whole;
          }};
}

GroupExchanges::Halves GroupExchanges::scattered(const stage::AskedExchange& asked,
                                                 const at::Tensor& value) {
  const auto part_of = [&](std::int32_t member) {
    const Interval here = partition::part_of(asked.whole, {.index = member, .of = share_.of});
    return value.narrow(asked.dimension, here.first, here.count).contiguous();
  };
  const at::Tensor mine = part_of(group_.place());
  return added_up(mine, part_of);
}

}  // namespace penstock::execute
