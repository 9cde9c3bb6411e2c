#include "penstock/plan/simulate/costs.h"

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
      return backward ? at(*backward) : at(input) + at(weight);
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

Costs shared_by_stages(const Costs& of_rank, std::int32_t stages_per_rank) {
  const auto share = [&](double number) { return number / stages_per_rank; };
  Costs costs = of_rank;
  costs.forward = each(of_rank.forward, share);
  costs.input = each(of_rank.input, share);
  costs.weight = each(of_rank.weight, share);
  if (of_rank.backward) costs.backward = each(*of_rank.backward, share);
  costs.activation = each(of_rank.activation, share);
  return costs;
}

Costs lengthened(const Costs& costs, double factor) {
  const auto longer = [&](double time) { return time * factor; };
  const auto slower = [&](std::optional<double>& bandwidth) {
    if (bandwidth) *bandwidth /= factor;
  };
  Costs all = costs;
  for (PerStage* times : {&all.forward, &all.input, &all.weight, &all.gather, &all.reduce}) {
    *times = each(*times, longer);
  }
  if (all.backward) all.backward = each(*all.backward, longer);
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
