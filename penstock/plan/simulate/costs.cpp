#include "penstock/plan/simulate/costs.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

#include "penstock/core/text.h"

namespace penstock::simulate {

using schedule::Action;
using schedule::Op;

namespace {

template <typename Function>
PerStage each(const PerStage& numbers, Function function) {
  std::vector<std::vector<double>> rows = numbers.rows();
  for (auto& row : rows) {
    for (double& number : row) number = function(number);
  }
  return PerStage(std::move(rows));
}

// Calls the function with numbers of both, stage by stage and microbatch by microbatch.  REQUIRES:
// both fit one schedule.
template <typename Function>
PerStage combined(const PerStage& a, const PerStage& b, Function function) {
  const std::size_t stages = std::max(a.rows().size(), b.rows().size());
  const auto row = [](const PerStage& numbers, std::size_t stage) -> const std::vector<double>& {
    return numbers.rows()[numbers.rows().size() == 1 ? 0 : stage];
  };
  std::vector<std::vector<double>> rows(stages);
  for (std::size_t s = 0; s < stages; ++s) {
    rows[s].resize(std::max(row(a, s).size(), row(b, s).size()));
    for (std::size_t m = 0; m < rows[s].size(); ++m) {
      const StageId stage(s);
      const Microbatch microbatch(m);
      rows[s][m] = function(a.at(stage, microbatch), b.at(stage, microbatch));
    }
  }
  return PerStage(std::move(rows));
}

// The times of passes, and what of them is exchanges; `All`: Costs, or const Costs.
template <class All>
auto pass_times(All& costs) {
  std::vector<decltype(&costs.forward)> all = {&costs.forward, &costs.input, &costs.weight,
                                               &costs.forward_exchange, &costs.input_exchange};
  if (costs.backward) all.push_back(&*costs.backward);
  if (costs.backward_exchange) all.push_back(&*costs.backward_exchange);
  return all;
}

// What B takes, and what of it is exchanges, of costs that may leave out either.
PerStage whole_backward(const Costs& costs) {
  if (costs.backward) return *costs.backward;
  const auto least = [](double part, double by) { return std::min(part, by); };
  return combined(combined(costs.input, costs.weight, std::plus<>()),
                  combined(costs.input_exchange, costs.weight, least), std::minus<>());
}
PerStage whole_exchange(const Costs& costs) {
  if (costs.backward_exchange) return *costs.backward_exchange;
  const auto left = [](double part, double by) { return std::max(0.0, part - by); };
  return combined(costs.input_exchange, costs.weight, left);
}

// Sums of parts may differ from the sum of all by so much, as a share.
constexpr double kRounding = 1e-9;

// Exchanges are a part of the time.  REQUIRES: both fit one schedule.
void check_exchange(std::string_view name, const PerStage& exchange, std::string_view of,
                    const PerStage& time, std::vector<std::string>& texts) {
  const auto excess = combined(exchange, time, std::minus<>());
  for (std::size_t s = 0; s < excess.rows().size(); ++s) {
    for (std::size_t m = 0; m < excess.rows()[s].size(); ++m) {
      const StageId stage(s);
      const Microbatch microbatch(m);
      if (excess.rows()[s][m] <= kRounding * time.at(stage, microbatch)) continue;
      texts.push_back(str(name, ": ", shortest(exchange.at(stage, microbatch)),
                          "; it is a part of ", of, ", which is ",
                          shortest(time.at(stage, microbatch))));
      return;
    }
  }
}

void check_number(std::string_view name, double value, std::vector<std::string>& texts) {
  if (verify::is_cost(value)) return;
  texts.push_back(str(name, ": ", shortest(value), "; expected ", verify::kCostRange));
}

void check_bandwidth(std::string_view name, const std::optional<double>& bandwidth,
                     std::vector<std::string>& texts) {
  if (!bandwidth || (verify::is_cost(*bandwidth) && *bandwidth > 0.0)) return;
  texts.push_back(str(name, ": ", shortest(*bandwidth), "; expected a number from 1e-30 to 1e30"));
}

void check_link(const Link& link, std::int32_t ranks, std::vector<std::string>& texts) {
  const std::string name = str("link ", link.from, " to ", link.to);
  const auto inside = [&](Rank rank) { return rank.value >= 0 && rank.value < ranks; };
  if (!inside(link.from) || !inside(link.to)) {
    texts.push_back(str(name, ": the schedule has ranks 0 to ", ranks - 1));
  } else if (link.from == link.to) {
    texts.push_back(str(name, ": a rank needs no link to itself"));
  }
  check_number(name + " latency", link.latency, texts);
  check_bandwidth(name + " bandwidth", link.bandwidth, texts);
}

}  // namespace

double Costs::of(const Action& action) const {
  const Microbatch microbatch = action.microbatch.value_or(Microbatch(0));
  const auto at = [&](const PerStage& costs) { return costs.at(action.stage, microbatch); };
  switch (action.op) {
    case Op::Forward:
      return at(forward);
    case Op::Backward:
      return backward ? at(*backward)
                      : at(input) + at(weight) - std::min(at(input_exchange), at(weight));
    case Op::BackwardInput:
      return at(input);
    case Op::BackwardWeight:
      return at(weight);
    case Op::Unshard:
      return at(gather);
    case Op::ReduceGradients:
      return at(reduce);
    case Op::SendForward:
    case Op::RecvForward:
    case Op::SendBackward:
    case Op::RecvBackward:
    case Op::Reshard:
      return 0.0;
  }
  return 0.0;
}

PassCost Costs::pass(const Action& action) const { return {of(action), exchange_of(action)}; }

double Costs::exchange_of(const Action& action) const {
  const Microbatch microbatch = action.microbatch.value_or(Microbatch(0));
  const auto at = [&](const PerStage& costs) { return costs.at(action.stage, microbatch); };
  if (action.op == Op::Forward) return at(forward_exchange);
  if (action.op == Op::BackwardInput) return at(input_exchange);
  if (action.op != Op::Backward) return 0.0;
  return backward_exchange ? at(*backward_exchange)
                           : std::max(0.0, at(input_exchange) - at(weight));
}

bool Costs::has_exchanges() const {
  const auto is_cost = [](const PerStage& numbers) {
    return std::ranges::any_of(numbers.rows(), [](const std::vector<double>& row) {
      return std::ranges::any_of(row, [](double number) { return number > 0.0; });
    });
  };
  return is_cost(forward_exchange) || is_cost(input_exchange) ||
         (backward_exchange && is_cost(*backward_exchange));
}

PairCost cost_of_pair(const PassCost& forward, const PassCost& backward, double overlap) {
  const double there = std::clamp(backward.time - backward.exchange, 0.0, forward.exchange);
  const double back = std::clamp(forward.time - forward.exchange, 0.0, backward.exchange);
  return {.forward = overlap * (forward.time - there),
          .backward = overlap * (backward.time - back),
          .exchange = overlap * (forward.exchange - there + backward.exchange - back)};
}

Costs without_exchanges(const Costs& costs) {
  if (!costs.has_exchanges()) return costs;
  // Whatever is hidden is in a pair, which takes a share.
  const double share = std::min(1.0, costs.overlap);
  const auto less = [&](const PerStage& times, const PerStage& exchanges) {
    return combined(times, exchanges,
                    [&](double time, double part) { return share * std::max(0.0, time - part); });
  };
  Costs hidden = costs;
  hidden.forward = less(costs.forward, costs.forward_exchange);
  hidden.input = less(costs.input, costs.input_exchange);
  hidden.weight = less(costs.weight, 0.0);
  if (costs.backward || costs.backward_exchange) {
    hidden.backward = less(whole_backward(costs), whole_exchange(costs));
  }
  hidden.forward_exchange = hidden.input_exchange = 0.0;
  hidden.backward_exchange.reset();
  return hidden;
}

std::vector<const PerStage*> numbers_of_order(const Costs& costs) {
  auto all = pass_times(costs);
  all.insert(all.end(), {&costs.message, &costs.activation});
  return all;
}

Costs shared_by_stages(const Costs& of_rank, std::int32_t stages_per_rank) {
  const auto share = [&](double number) { return number / stages_per_rank; };
  Costs costs = of_rank;
  for (PerStage* times : pass_times(costs)) *times = each(*times, share);
  costs.activation = each(of_rank.activation, share);
  return costs;
}

Costs lengthened(const Costs& costs, double factor) {
  const auto longer = [&](double time) { return time * factor; };
  const auto slower = [&](std::optional<double>& bandwidth) {
    if (bandwidth) *bandwidth /= factor;
  };
  Costs all = costs;
  for (PerStage* times : pass_times(all)) *times = each(*times, longer);
  for (PerStage* times : {&all.gather, &all.reduce}) *times = each(*times, longer);
  all.latency *= factor;
  all.optimizer *= factor;
  slower(all.bandwidth);
  for (Link& link : all.links) {
    link.latency *= factor;
    slower(link.bandwidth);
  }
  return all;
}

std::vector<std::string> misfits(const Costs& costs, const schedule::Schedule& schedule) {
  std::vector<std::string> texts;
  const auto check = [&](std::string_view name, const PerStage& numbers) {
    const auto more = verify::misfits(name, numbers, schedule.stages, schedule.microbatches);
    texts.insert(texts.end(), more.begin(), more.end());
  };
  check("forward", costs.forward);
  check("input", costs.input);
  check("weight", costs.weight);
  if (costs.backward) check("backward", *costs.backward);
  check("forward_exchange", costs.forward_exchange);
  check("input_exchange", costs.input_exchange);
  if (costs.backward_exchange) check("backward_exchange", *costs.backward_exchange);
  if (texts.empty()) {
    check_exchange("forward_exchange", costs.forward_exchange, "forward", costs.forward, texts);
    check_exchange("input_exchange", costs.input_exchange, "input", costs.input, texts);
    check_exchange("backward_exchange", whole_exchange(costs), "backward", whole_backward(costs),
                   texts);
  }
  check_number("overlap", costs.overlap, texts);
  check_number("latency", costs.latency, texts);
  check("message", costs.message);
  check_bandwidth("bandwidth", costs.bandwidth, texts);
  for (const Link& link : costs.links) check_link(link, schedule.ranks(), texts);
  check("gather", costs.gather);
  check("reduce", costs.reduce);
  check_number("optimizer", costs.optimizer, texts);
  check("activation", costs.activation);
  if (!(costs.keep >= 0.0 && costs.keep <= 1.0)) {
    texts.push_back(str("keep: ", costs.keep, "; expected a share from 0 to 1"));
  }
  return texts;
}

}  // namespace penstock::simulate
