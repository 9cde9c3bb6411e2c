#include "penstock/render/simulated_timeline.h"

#include <algorithm>
#include <numeric>

#include "penstock/core/check.h"
#include "penstock/core/text.h"
#include "penstock/render/number.h"
#include "penstock/verify/table.h"

namespace penstock::render {
namespace {

using schedule::Action;
using schedule::Op;
using schedule::Schedule;
using simulate::Costs;
using simulate::Event;
using simulate::Simulation;
using verify::VerifiedSchedule;

std::string counted(std::int32_t count, std::string_view noun) {
  return str(count, ' ', noun, count == 1 ? "" : "s");
}

// "1f1b, 4 ranks, 8 microbatches"; with the stages where they are not one per rank.
std::string title_of(const Schedule& schedule) {
  std::string title = str(schedule.name, ", ", counted(schedule.ranks(), "rank"));
  if (schedule.stages != schedule.ranks()) title += ", " + counted(schedule.stages, "stage");
  const bool is_one = schedule.microbatches == 1;
  return title + str(", ", schedule.microbatches, is_one ? " microbatch" : " microbatches");
}

std::string bubble_text(const Simulation& simulation) {
  const double busy = std::accumulate(simulation.busy.begin(), simulation.busy.end(), 0.0);
  const double all = simulation.makespan * static_cast<double>(simulation.busy.size());
  return fixed(all > 0 ? 100 * (1 - busy / all) : 0, 1) + '%';
}

// "4, 3, 2, 1", or the range where there are many ranks.
std::string peaks_text(const std::vector<std::int32_t>& peaks) {
  constexpr std::size_t kListedMax = 16;
  if (peaks.size() <= kListedMax) return join(peaks, ", ");
  const auto [low, high] = std::ranges::minmax(peaks);
  return str(low, " to ", high);
}

std::vector<std::string> notes_of(const VerifiedSchedule& verified, const Simulation& simulation) {
  return {"makespan " + significant(simulation.makespan), "bubble " + bubble_text(simulation),
          "peak activations by rank: " + peaks_text(verified.facts().peak_activations)};
}

// What an action does to its rank's memory: taken as it starts, given back as it ends.
double memory_of(const Action& action, const Costs& costs) {
  const double activation = costs.activation.at(action.stage, *action.microbatch);
  switch (action.op) {
    case Op::Forward:
      return activation;
    case Op::Backward:
      return -activation;
    case Op::BackwardInput:
      return activation * (costs.keep - 1.0);
    case Op::BackwardWeight:
      return -activation * costs.keep;
    case Op::SendForward:
    case Op::RecvForward:
    case Op::SendBackward:
    case Op::RecvBackward:
    case Op::Unshard:
    case Op::Reshard:
    case Op::ReduceGradients:
      return 0.0;
  }
  return 0.0;
}

std::vector<Level> levels_of(const std::vector<Bar>& bars, const Costs& costs) {
  std::vector<Level> levels;
  double memory = 0.0;
  for (const Bar& bar : bars) {
    const double change = memory_of(bar.action, costs);
    if (change == 0.0) continue;
    memory += change;
    levels.push_back({change > 0 ? bar.start : bar.end, memory});
  }
  return levels;
}

// Finds the bar of an action.
class Bars {
 public:
  explicit Bars(const Schedule& schedule)
      : stages_(static_cast<std::size_t>(schedule.stages)),
        microbatches_(static_cast<std::size_t>(schedule.microbatches)),
        places_(schedule::kOps * stages_ * microbatches_) {}

  // Under the value that it makes, by which others ask for it.
  void set(const Action& action, const BarPlace& place) {
    places_[cell(verify::value_of(action))] = place;
  }
  const BarPlace& at(const Action& value) const { return places_[cell(value)]; }

 private:
  std::size_t cell(const Action& value) const {
    const std::size_t row = static_cast<std::size_t>(value.op) * stages_ + value.stage.index();
    return row * microbatches_ + value.microbatch->index();
  }

  std::size_t stages_;
  std::size_t microbatches_;
  std::vector<BarPlace> places_;
};

class Builder {
 public:
  Builder(const VerifiedSchedule& verified, const Simulation& simulation)
      : schedule_(verified.schedule()), bars_(schedule_) {
    timeline_.title = title_of(schedule_);
    timeline_.notes = notes_of(verified, simulation);
    timeline_.end = simulation.makespan;
    for (std::int32_t rank = 0; rank < schedule_.ranks(); ++rank) {
      timeline_.rows.push_back({.name = str("rank ", rank), .lanes = {{.name = "compute"}}});
    }
    for (std::int32_t stage = 0; stage < schedule_.stages; ++stage) {
      timeline_.rows[verified.rank_of(StageId(stage)).index()].stages.emplace_back(stage);
    }
    for (const Event& event : simulation.events) add(event);
  }

  void find_waits() {
    for (Row& row : timeline_.rows) {
      std::vector<Bar>& bars = row.lanes[0].bars;
      double free_at = 0.0;
      for (std::size_t i = 0; i < bars.size(); ++i) {
        if (bars[i].start > free_at) find_wait(bars, i);
        free_at = bars[i].end;
      }
    }
  }

  void find_levels(const Costs& costs) {
    if (schedule_.purpose == schedule::Purpose::Forward) return;
    for (Row& row : timeline_.rows) row.memory = levels_of(row.lanes[0].bars, costs);
  }

  Timeline take() { return std::move(timeline_); }

 private:
  void add(const Event& event) {
    std::vector<Bar>& bars = timeline_.rows[event.rank.index()].lanes[0].bars;
    bars_.set(event.action,
              {.row = event.rank.value, .bar = static_cast<std::int32_t>(bars.size())});
    bars.push_back({event.action, event.start, event.end});
  }

  const Bar& bar_at(const BarPlace& place) const {
    const Row& row = timeline_.rows[static_cast<std::size_t>(place.row)];
    return row.lanes[0].bars[static_cast<std::size_t>(place.bar)];
  }

  // Of what bars[i] and the other half of its pair need from elsewhere, what came last.
  void find_wait(std::vector<Bar>& bars, std::size_t i) {
    const std::size_t end = bars[i].action.overlaps_next ? i + 2 : i + 1;
    for (std::size_t k = i; k < end; ++k) {
      const auto arrival = verify::needs_of(bars[k].action, schedule_.stages).arrival;
      if (!arrival) continue;
      const BarPlace& place = bars_.at(*arrival);
      if (!bars[i].waited_for || bar_at(*bars[i].waited_for).end < bar_at(place).end) {
        bars[i].waited_for = place;
      }
    }
  }

  const Schedule& schedule_;
  Bars bars_;
  Timeline timeline_;
};

}  // namespace

Timeline simulated_timeline(const VerifiedSchedule& schedule, const Simulation& simulation,
                            const Costs& costs) {
  PENSTOCK_CHECK(simulation.busy.size() == schedule.schedule().programs.size(),
                 simulation.busy.size(), " ranks simulated of ", title(schedule.schedule()));
  Builder builder(schedule, simulation);
  builder.find_waits();
  builder.find_levels(costs);
  return builder.take();
}

}  // namespace penstock::render
