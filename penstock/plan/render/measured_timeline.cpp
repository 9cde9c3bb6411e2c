#include "penstock/plan/render/measured_timeline.h"

#include <algorithm>
#include <optional>

#include "penstock/core/text.h"
#include "penstock/plan/render/compute_places.h"
#include "penstock/plan/render/number.h"
#include "penstock/plan/verify/hops.h"
#include "penstock/plan/verify/live_activations.h"

namespace penstock::render {
namespace {

using measure::Computation;
using verify::VerifiedSchedule;

const verify::PerStage kOne = 1.0;

std::vector<Level> levels_of(const schedule::Schedule& schedule,
                             const std::vector<Computation>& computations) {
  verify::LiveActivations live(schedule.purpose, kOne, /*keep=*/1.0);
  std::vector<Level> levels;
  const auto note = [&](double time) {
    const double before = levels.empty() ? 0.0 : levels.back().memory;
    if (live.memory() != before) levels.push_back({time, live.memory()});
  };
  for (const Computation& computation : computations) {
    live.start(computation.action);
    note(computation.start);
    live.end(computation.action);
    note(computation.end());
  }
  return levels;
}

// Adds the reduction, in the lanes that a simulation has.
void add_reduction(Row& row, const std::optional<measure::Reduction>& reduction) {
  row.lanes.push_back({.name = "gather"});
  row.lanes.push_back({.name = "reduce"});
  if (!reduction) return;
  row.lanes.back().bars.push_back({reduction->action, reduction->start, reduction->end});
}

// Adds a bar for each exchange, as long as it was under way, in the first lane that is free.
void add_exchanges(Row& row, const std::vector<measure::ExchangeTimes>& exchanges) {
  if (row.lanes[0].bars.empty()) return;
  const auto action_at = [&computed = row.lanes[0].bars](double time) {
    const auto behind = std::ranges::upper_bound(computed, time, {}, &Bar::start);
    return (behind == computed.begin() ? behind : std::prev(behind))->action;
  };
  std::vector<Bar> bars;
  for (const measure::ExchangeTimes& exchange : exchanges) {
    bars.push_back({.action = exchange.action ? *exchange.action : action_at(exchange.start),
                    .start = exchange.start,
                    .end = exchange.end,
                    .name = exchange.name});
  }
  std::ranges::stable_sort(bars, {}, &Bar::start);
  const std::size_t first = row.lanes.size();
  for (Bar& bar : bars) {
    std::size_t lane = first;
    while (lane < row.lanes.size() && row.lanes[lane].bars.back().end > bar.start) ++lane;
    if (lane == row.lanes.size()) row.lanes.push_back({.name = "exchanges"});
    row.lanes[lane].bars.push_back(std::move(bar));
  }
}

// Every row has as many lanes, under the names of the longest.
void even_out(std::vector<Row>& rows) {
  const auto longest =
      std::ranges::max_element(rows, {}, [](const Row& row) { return row.lanes.size(); });
  if (longest == rows.end()) return;
  std::vector<Lane> lanes;
  for (const Lane& lane : longest->lanes) lanes.push_back({.name = lane.name});
  for (Row& row : rows) {
    row.lanes.insert(row.lanes.end(), lanes.begin() + std::ssize(row.lanes), lanes.end());
  }
}

std::string wait_text(const measure::MeasuredStep& step) {
  std::vector<std::string> waits;
  for (const auto& rank : step.computations) {
    double wait = 0.0;
    for (const Computation& computation : rank) wait += computation.wait;
    waits.push_back(significant(wait));
  }
  constexpr std::size_t kListedMax = 16;
  if (waits.size() > kListedMax) waits.resize(kListedMax);
  return "waits for inputs by rank: " + join(waits, ", ");
}

}  // namespace

Timeline measured_timeline(const VerifiedSchedule& schedule, const measure::MeasuredStep& step) {
  const verify::Hops hops(schedule.schedule(), schedule.facts().homes);
  ComputePlaces places(schedule.schedule());
  Timeline timeline{.title = str("measured: step ", step.step),
                    .notes = {"makespan " + significant(step.makespan) + " ms", wait_text(step)},
                    .unit = "ms",
                    .end = step.makespan};
  const bool has_reductions =
      std::ranges::any_of(step.reductions, [](const auto& each) { return each.has_value(); });
  for (std::size_t rank = 0; rank < step.computations.size(); ++rank) {
    Row row{.name = str("rank ", rank), .lanes = {{.name = "compute"}}};
    for (const Computation& computation : step.computations[rank]) {
      std::vector<Bar>& bars = row.lanes[0].bars;
      places.set(computation.action,
                 {static_cast<std::int32_t>(rank), 0, static_cast<std::int32_t>(bars.size())});
      bars.push_back({computation.action, computation.start, computation.end()});
    }
    if (has_reductions) add_reduction(row, step.reductions[rank]);
    add_exchanges(row, step.exchanges[rank]);
    row.memory = levels_of(schedule.schedule(), step.computations[rank]);
    timeline.rows.push_back(std::move(row));
  }
  even_out(timeline.rows);
  auto stages = schedule.facts().homes.stages_of_ranks(timeline.rows.size());
  for (std::size_t rank = 0; rank < stages.size(); ++rank) {
    timeline.rows[rank].stages = std::move(stages[rank]);
  }
  for (std::size_t rank = 0; rank < step.computations.size(); ++rank) {
    for (std::size_t i = 0; i < step.computations[rank].size(); ++i) {
      const Computation& computation = step.computations[rank][i];
      const verify::MessageId input = hops.input_of(computation.action);
      if (input == verify::kNoMessage || computation.wait <= 0) continue;
      timeline.rows[rank].lanes[0].bars[i].waited_for = places.at(hops.send_of(input));
    }
  }
  return timeline;
}

}  // namespace penstock::render
