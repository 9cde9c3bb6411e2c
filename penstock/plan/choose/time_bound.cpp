#include "penstock/plan/choose/time_bound.h"

#include <algorithm>
#include <limits>
#include <span>

#include "penstock/schedule/generators/generators.h"

namespace penstock::choose {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::int32_t kDistinct = 3;

// What a stage costs, whatever the order.  Exchanges that pairs may hide count in `forward` alone:
// the first microbatch's forwards have no backward beside them.
struct StageLeast {
  double work = 0.0;         // All microbatches.
  double forward = kNever;   // The shortest of one.
  double gradient = kNever;  // The shortest B or I.
  double to_next = 0.0;      // An activation on its way.
  double to_previous = 0.0;  // A gradient on its way.
};

class TimeBound {
 public:
  TimeBound(const StepInputs& inputs, std::int32_t microbatches, const InFlight& program)
      : homes_(inputs.homes),
        costs_(costs_of(inputs)),
        distinct_(inputs.layout.microbatches),
        microbatches_(microbatches),
        backwards_(program.backwards),
        has_pairs_(program.has_pairs),
        stages_(homes_.size()) {
    for (std::size_t s = 0; s < stages_.size(); ++s) stages_[s] = least_of(StageId(s));
  }

  double time() const {
    std::vector<double> heads(ranks(), kNever), works(ranks()), tails(ranks(), kNever);
    double head = 0.0, drain = 0.0;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const double sum = costs_.reduce.at(StageId(s), Microbatch(0));
      drain = s == 0 ? sum : stages_[s].to_previous + stages_[s - 1].gradient + drain;
      const double tail = backwards_ == Backwards::Whole ? std::max(sum, drain) : sum;
      const std::size_t rank = homes_[s].index();
      heads[rank] = std::min(heads[rank], head);
      tails[rank] = std::min(tails[rank], tail);
      works[rank] += stages_[s].work;
      head += stages_[s].forward + stages_[s].to_next;
    }
    double most = 0.0;
    for (std::size_t rank = 0; rank < works.size(); ++rank) {
      most = std::max(most, heads[rank] + works[rank] + tails[rank]);
    }
    return most + costs_.optimizer;
  }

 private:
  std::size_t ranks() const { return std::ranges::max(homes_).index() + 1; }

  // How many microbatches cost as much as this one.
  double count(std::int32_t microbatch) const {
    const bool is_between = distinct_ == kDistinct && microbatch == 1;
    return is_between ? microbatches_ - 2 : 1;
  }

  StageLeast least_of(StageId stage) const {
    StageLeast least;
    for (std::int32_t m = 0; m < distinct_; ++m) {
      const auto of = [&](const simulate::PerStage& costs) {
        return costs.at(stage, Microbatch(m));
      };
      const double forward = of(costs_.forward);
      const double hidden = has_pairs_ ? of(costs_.forward_exchange) : 0.0;
      const double whole =
          of(*costs_.backward) - (has_pairs_ ? of(costs_.backward_exchange.value_or(0.0)) : 0.0);
      const double input = of(costs_.input) - (has_pairs_ ? of(costs_.input_exchange) : 0.0);
      const double halves = input + of(costs_.weight);
      const auto either = [&](double of_whole, double of_halves) {
        if (backwards_ == Backwards::Both) return std::min(of_whole, of_halves);
        return backwards_ == Backwards::Whole ? of_whole : of_halves;
      };
      least.work += count(m) * (forward - hidden + either(whole, halves));
      least.forward = std::min(least.forward, forward);
      least.gradient = std::min(least.gradient, either(whole, input));
    }
    const double bytes = costs_.message.at(stage, Microbatch(0));
    if (stage.index() + 1 < homes_.size()) {
      least.to_next = hop(homes_[stage.index()], homes_[stage.index() + 1], bytes);
    }
    if (stage.index() > 0) {
      const double of_previous = costs_.message.at(StageId(stage.value - 1), Microbatch(0));
      least.to_previous = hop(homes_[stage.index()], homes_[stage.index() - 1], of_previous);
    }
    return least;
  }

  double hop(Rank from, Rank to, double bytes) const {
    if (from == to) return 0.0;
    const auto link = std::ranges::find_if(costs_.links, [&](const simulate::Link& each) {
      return each.from == from && each.to == to;
    });
    const bool is_own = link != costs_.links.end();
    const auto bandwidth = is_own ? link->bandwidth : costs_.bandwidth;
    return (is_own ? link->latency : costs_.latency) + (bandwidth ? bytes / *bandwidth : 0.0);
  }

  std::span<const Rank> homes_;
  simulate::Costs costs_;
  std::int32_t distinct_;
  std::int32_t microbatches_;
  Backwards backwards_;
  bool has_pairs_;
  std::vector<StageLeast> stages_;
};

}  // namespace

double least_time(const Layout& layout, const partition::Partition& partition,
                  const std::vector<LayerTimes>& times) {
  const auto sum = [&](std::int64_t first, std::int64_t end, const auto& of) {
    double all = 0.0;
    for (std::int64_t i = first; i < end; ++i) all += of(times[static_cast<std::size_t>(i)]);
    return all;
  };
  const bool again = layout.recompute_interval > 0;
  // Pairs may hide exchanges.
  const bool has_pairs =
      std::ranges::find(schedule::registry(), layout.schedule, &schedule::Generator::name)
          ->has_pairs;
  const auto work = [&](const LayerTimes& each) {
    const double backward = std::min(each.backward, each.input + each.weight);
    const double all = each.forward + backward + (again ? each.computing_again() : 0.0);
    if (!has_pairs) return all;
    const double hidden = std::max(each.backward_exchange, each.input_exchange);
    const double hidden_again = again ? each.backward_exchange_again - each.backward_exchange : 0.0;
    return all - each.forward_exchange - hidden - std::max(0.0, hidden_again);
  };
  const auto layers = static_cast<std::int64_t>(times.size());
  const StageId last(layout.pipe() - 1);
  const double before =
      sum(0, partition.first_layer(last), [](const LayerTimes& each) { return each.forward; });
  // Where each rank has one stage, the stage's own work; else at least an equal share of all work.
  const double microbatches = layout.microbatches;
  if (layout.stages_per_rank == 1) {
    return before +
           microbatches * sum(partition.first_layer(last), partition.end_layer(last), work);
  }
  return std::max(before, microbatches * sum(0, layers, work) / layout.pipe());
}

std::int32_t distinct_microbatches(std::int32_t microbatches) {
  return std::min(microbatches, kDistinct);
}

double least_time(const StepInputs& inputs, std::int32_t microbatches, const InFlight& program) {
  return TimeBound(inputs, microbatches, program).time();
}

}  // namespace penstock::choose
