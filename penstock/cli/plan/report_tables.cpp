#include "penstock/cli/plan/report_tables.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "penstock/cli/text_table.h"
#include "penstock/core/counted.h"
#include "penstock/core/text.h"
#include "penstock/plan/render/number.h"

namespace penstock::cli {
namespace {

using measure::Drift;
using render::Table;

std::string name_of(StageId stage, schedule::Op op) {
  return str(schedule::to_string(op), " of stage ", stage);
}

// The drifts farthest from 0 in `member`, farthest first; equal ones in the order given.
Table worst_table(std::string what, std::string note, std::vector<Drift> drifts,
                  double Drift::* member, std::size_t count, const TimeText& text) {
  std::ranges::stable_sort(drifts, std::ranges::greater(),
                           [&](const Drift& drift) { return std::abs(drift.*member); });
  drifts.resize(std::min(drifts.size(), count));
  Table table{.title = str("Largest drifts of ", what, ", in ms"),
              .note = std::move(note),
              .columns = {"action", "rank", "start", "duration"},
              .begins_with_actions = true};
  for (const Drift& drift : drifts) {
    table.rows.push_back({schedule::to_string(drift.action), str(drift.rank),
                          text.signed_text(drift.start), text.signed_text(drift.duration)});
  }
  return table;
}

// Saves are worded by their row.
std::string event_text(const measure::RunEvent& event) {
  using enum measure::RunEventKind;
  const std::string again = event.lost_steps > 0
                                ? str("; ", counted(event.lost_steps, "step"),
                                      event.lost_steps == 1 ? " is" : " are", " done again")
                                : "";
  switch (event.kind) {
    case Started:
      return str("started on ", counted(event.ranks, "rank"), ", ", event.layout,
                 event.device.empty() ? "" : str(", ", event.device), again);
    case Resumed:
      return str(
          "resumed from ", event.folder, again,
          event.passed_over.empty() ? "" : str("; passed over: ", join(event.passed_over, "; ")));
    case Saved:
      return str("saved to ", event.folder, " in ", render::significant(event.seconds), " s");
    case SaveFailed:
      return str("not saved: ", event.reason);
    case Failed:
      return str("failed with exit code ", event.exit_code, ": ", event.reason);
    case Restarting:
      return str(
          "started again with ", event.ranks, event.ranks == 1 ? " rank" : " ranks",
          event.pause_seconds > 0 ? str(" after ", shortest(event.pause_seconds), " s") : "",
          event.attempt > 0 ? str(", attempt ", event.attempt, " without a new checkpoint") : "");
    case CostsChanged:
    case ProgramJudged:
      return event.reason;
    case ProgramChanged:
      return str(event.reason, " (", event.file, ")");
    case Stopped:
      return str("stopped, ", event.reason);
    case Finished:
      return "finished";
  }
  return "";
}

}  // namespace

TimeText::TimeText(double longest) {
  if (longest > 0)
    decimals_ = std::clamp(4 - static_cast<int>(std::floor(std::log10(longest))), 0, 6);
}

std::string TimeText::operator()(double ms) const { return render::fixed(ms, decimals_); }

std::string TimeText::signed_text(double ms) const {
  const std::string text = (*this)(ms);
  const bool is_zero = text.find_first_not_of("0.") == std::string::npos;
  return ms > 0 && !is_zero ? "+" + text : text;
}

Table costs_table(const measure::Fit& fit, const TimeText& text) {
  Table table{.title = "Fitted costs, in ms",
              .note =
                  "Median and quartiles of how long a computation holds its rank; own: without "
                  "messages and the executor's work.",
              .columns = {"", "cost", "lower quartile", "upper quartile", "own", "samples"}};
  const auto add = [&](const std::string& name, const measure::Quartiles& quartiles,
                       const std::string& own) {
    table.rows.push_back({name, text(quartiles.median), text(quartiles.lower),
                          text(quartiles.upper), own, str(quartiles.samples)});
  };
  for (const measure::OpCost& cost : fit.ops) {
    add(name_of(cost.stage, cost.op), cost.hold, text(cost.own));
  }
  if (fit.latency) add("message", *fit.latency, "");
  return table;
}

Table ranks_table(const measure::MeasuredStep& measured, const simulate::Simulation& simulated,
                  const TimeText& text) {
  Table table{.title = "Ranks, in ms",
              .note = "Busy: held by computations. Waits: for inputs from other ranks.",
              .columns = {"", "busy", "simulated", "waits", "simulated", "activations at once"}};
  const bool has_exchanges = measured.has_exchanges();
  if (has_exchanges) {
    table.note += " Exchanges: of busy, with the ranks that share its layers.";
    table.columns.push_back("exchanges");
  }
  for (std::size_t rank = 0; rank < measured.computations.size(); ++rank) {
    double busy = 0.0, waits = 0.0, exchanged = 0.0, simulated_waits = 0.0;
    for (const measure::Computation& computation : measured.computations[rank]) {
      busy += computation.hold;
      waits += computation.wait;
    }
    for (const measure::ExchangeTimes& exchange : measured.exchanges[rank]) {
      exchanged += exchange.held();
    }
    for (const simulate::Wait& wait : simulated.waits) {
      if (wait.rank == Rank(rank)) simulated_waits += wait.time;
    }
    table.rows.push_back({str("rank ", rank), text(busy), text(simulated.busy[rank]), text(waits),
                          text(simulated_waits), str(simulated.peak_activations[rank])});
    if (has_exchanges) table.rows.back().push_back(text(exchanged));
  }
  return table;
}

Table exchanges_table(const measure::MeasuredStep& measured, std::size_t count,
                      const TimeText& text) {
  struct Sum {
    std::size_t rank = 0;
    std::string_view name;
    std::int64_t times = 0;
    double held = 0.0, beside = 0.0;
  };
  std::vector<Sum> longest;
  for (std::size_t rank = 0; rank < measured.exchanges.size(); ++rank) {
    std::map<std::string_view, Sum> sums;
    for (const measure::ExchangeTimes& exchange : measured.exchanges[rank]) {
      Sum& sum =
          sums.try_emplace(exchange.name, Sum{.rank = rank, .name = exchange.name}).first->second;
      ++sum.times;
      sum.held += exchange.held();
      sum.beside += exchange.beside();
    }
    for (const auto& [name, sum] : sums) longest.push_back(sum);
  }
  std::ranges::stable_sort(longest, std::ranges::greater(), &Sum::held);
  longest.resize(std::min(longest.size(), count));
  Table table{.title = "Exchanges that took longest, in ms",
              .note = "Held: the rank began or awaited it. Beside: the rank computed meanwhile.",
              .columns = {"", "times", "held", "beside"}};
  for (const Sum& sum : longest) {
    table.rows.push_back(
        {str("rank ", sum.rank, ": ", sum.name), str(sum.times), text(sum.held), text(sum.beside)});
  }
  return table;
}

Table ops_table(const std::vector<Drift>& drifts, const TimeText& text) {
  Table table{.title = "Drift by op and stage, in ms",
              .note = "Measured minus simulated.",
              .columns = {"", "start of the first", "of the last", "duration, median", "largest"}};
  for (const measure::OpDrift& drift : measure::by_op(drifts)) {
    table.rows.push_back({name_of(drift.stage, drift.op), text.signed_text(drift.start_first),
                          text.signed_text(drift.start_last),
                          text.signed_text(drift.duration_median),
                          text.signed_text(drift.duration_largest)});
  }
  return table;
}

Table worst_durations_table(std::vector<Drift> drifts, std::size_t count, const TimeText& text) {
  return worst_table("duration", "Measured minus simulated.", std::move(drifts), &Drift::duration,
                     count, text);
}

Table worst_starts_table(std::vector<Drift> drifts, std::size_t count, const TimeText& text) {
  return worst_table("start", "Measured minus simulated; what ran before made them.",
                     std::move(drifts), &Drift::start, count, text);
}

Table events_table(std::span<const measure::RunEvent> events) {
  using enum measure::RunEventKind;
  Table table{.title = "What happened",
              .note = "Steps are those that were taken then. Times are UTC.",
              .columns = {"", "step", "time"}};
  std::size_t saves = 0;  // Saves in a row, until now.
  for (const measure::RunEvent& event : events) {
    saves = event.kind == Saved ? saves + 1 : 0;
    std::string text = event_text(event);
    if (saves > 1) {
      table.rows.pop_back();
      text = str("saved ", saves, " times, at last to ", event.folder);
    }
    const std::string step = event.kind == Restarting ? "" : std::to_string(event.step);
    table.rows.push_back({std::move(text), step, event.time});
  }
  return table;
}

std::string to_text(const Table& table) {
  std::vector<TextRow> rows = {table.columns};
  rows.insert(rows.end(), table.rows.begin(), table.rows.end());
  for (TextRow& row : rows) row.emplace_back();  // Makes the last column stand to the right, too.
  return str(table.title, "\n", table.note, "\n", text_table(rows));
}

}  // namespace penstock::cli
