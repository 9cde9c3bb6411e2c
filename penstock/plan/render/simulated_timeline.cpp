#include "penstock/plan/render/simulated_timeline.h"

#include <algorithm>
#include <set>

#include "penstock/core/check.h"
#include "penstock/core/counted.h"
#include "penstock/core/text.h"
#include "penstock/plan/render/compute_places.h"
#include "penstock/plan/render/number.h"

namespace penstock::render {
namespace {

using schedule::Action;
using schedule::Op;
using schedule::Schedule;
using simulate::Event;
using simulate::Simulation;
using verify::VerifiedSchedule;

constexpr std::int32_t kComputeLane = 0;
constexpr std::int32_t kGatherLane = 1;
constexpr std::int32_t kReduceLane = 2;

// "1f1b, 4 ranks, 8 microbatches"; with the stages where they are not one per rank.
std::string title_of(const Schedule& schedule) {
  std::string title = str(schedule.name, ", ", counted(schedule.ranks(), "rank"));
  if (schedule.stages != schedule.ranks()) title += ", " + counted(schedule.stages, "stage");
  if (schedule.replicas > 1) title += str(" of ", schedule.replicas, " replicas");
  return title + str(", ", counted(schedule.microbatches, "microbatch", "microbatches"));
}

// "4, 3, 2, 1", or the range where there are many ranks.
std::string peaks_text(const std::vector<std::int32_t>& peaks) {
  constexpr std::size_t kListedMax = 16;
  if (peaks.size() <= kListedMax) return join(peaks, ", ");
  const auto [low, high] = std::ranges::minmax(peaks);
  return str(low, " to ", high);
}

std::vector<std::string> notes_of(const Simulation& simulation) {
  return {"makespan " + significant(simulation.makespan),
          "bubble " + percent(simulation.mean_bubble()),
          "peak activations by rank: " + peaks_text(simulation.peak_activations)};
}

std::vector<Level> levels_of(const std::vector<simulate::MemoryPoint>& points) {
  std::vector<Level> levels;
  levels.reserve(points.size());
  for (const auto& point : points) levels.push_back({point.time, point.memory});
  return levels;
}

class Builder {
 public:
  Builder(const VerifiedSchedule& verified, const Simulation& simulation)
      : simulation_(simulation), computes_(verified.schedule()) {
    const Schedule& schedule = verified.schedule();
    timeline_ = {
        .title = title_of(schedule), .notes = notes_of(simulation), .end = simulation.makespan};
    for (std::int32_t rank = 0; rank < schedule.ranks(); ++rank) {
      Row row{.name = str("rank ", rank), .lanes = {{.name = "compute"}}};
      if (!simulation.streams.empty()) {
        row.lanes.push_back({.name = "gather"});
        row.lanes.push_back({.name = "reduce"});
      }
      timeline_.rows.push_back(std::move(row));
    }
    add_stages(schedule);
  }

  void add_stages(const Schedule& schedule) {
    for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
      std::set<StageId> stages;
      for (const Action& action : schedule.programs[rank]) stages.insert(action.stage);
      timeline_.rows[rank].stages.assign(stages.begin(), stages.end());
    }
  }

  Timeline build() {
    for (const Event& event : simulation_.events) {
      computes_.set(event.action, add(event, kComputeLane));
    }
    for (const Event& event : simulation_.streams) {
      add(event, event.action.op == Op::Unshard ? kGatherLane : kReduceLane);
    }
    find_waits();
    for (std::size_t r = 0; r < timeline_.rows.size(); ++r) {
      if (simulation_.peak_memory[r] > 0)
        timeline_.rows[r].memory = levels_of(simulation_.memory[r]);
    }
    for (const Event& event : simulation_.critical_path) {
      if (const auto place = place_of(event)) timeline_.critical_path.push_back(*place);
    }
    return std::move(timeline_);
  }

 private:
  std::vector<Bar>& lane(std::int32_t row, std::int32_t lane) {
    return timeline_.rows[static_cast<std::size_t>(row)].lanes[static_cast<std::size_t>(lane)].bars;
  }

  BarPlace add(const Event& event, std::int32_t lane_number) {
    std::vector<Bar>& bars = lane(event.rank.value, lane_number);
    bars.push_back({event.action, event.start, event.end});
    return {.row = event.rank.value,
            .lane = lane_number,
            .bar = static_cast<std::int32_t>(bars.size() - 1)};
  }

  void find_waits() {
    std::vector<std::size_t> next(timeline_.rows.size(), 0);
    for (const Event& event : simulation_.events) {
      Bar& bar = lane(event.rank.value, kComputeLane)[next[event.rank.index()]++];
      if (!event.awaited) continue;
      bar.waited_for = event.awaited->op == Op::Unshard
                           ? gather_before(event.rank, event.awaited->stage, event.start)
                           : computes_.at(*event.awaited);
    }
  }

  // The stage's last gather that is over by `time`.
  BarPlace gather_before(Rank rank, StageId stage, double time) {
    const std::vector<Bar>& gathers = lane(rank.value, kGatherLane);
    auto bar = std::ranges::upper_bound(gathers, time, {}, &Bar::end);
    while (bar != gathers.begin() && std::prev(bar)->action.stage != stage) --bar;
    PENSTOCK_CHECK(bar != gathers.begin(), "stage ", stage, " is not gathered by ", time);
    return {.row = rank.value,
            .lane = kGatherLane,
            .bar = static_cast<std::int32_t>(std::prev(bar) - gathers.begin())};
  }

  // Nothing for a message: it has no lane.
  std::optional<BarPlace> place_of(const Event& event) {
    if (schedule::is_compute(event.action.op)) return computes_.at(event.action);
    if (schedule::is_send(event.action.op)) return {};
    const std::int32_t number = event.action.op == Op::Unshard ? kGatherLane : kReduceLane;
    const std::vector<Bar>& bars = lane(event.rank.value, number);
    const auto bar = std::ranges::lower_bound(bars, event.start, {}, &Bar::start);
    return BarPlace{.row = event.rank.value,
                    .lane = number,
                    .bar = static_cast<std::int32_t>(bar - bars.begin())};
  }

  const Simulation& simulation_;
  ComputePlaces computes_;
  Timeline timeline_;
};

}  // namespace

Timeline simulated_timeline(const VerifiedSchedule& schedule, const Simulation& simulation) {
  PENSTOCK_CHECK(simulation.busy.size() == schedule.schedule().programs.size(),
                 simulation.busy.size(), " ranks simulated of ", title(schedule.schedule()));
  return Builder(schedule, simulation).build();
}

}  // namespace penstock::render
