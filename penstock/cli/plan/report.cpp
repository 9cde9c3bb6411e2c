#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>

#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/output.h"
#include "penstock/cli/plan/report_tables.h"
#include "penstock/cli/plan/run_files.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/measure/drift.h"
#include "penstock/plan/measure/fit.h"
#include "penstock/plan/measure/run_history.h"
#include "penstock/plan/render/measured_timeline.h"
#include "penstock/plan/render/number.h"
#include "penstock/plan/render/run_marks.h"
#include "penstock/plan/render/simulated_timeline.h"
#include "penstock/plan/simulate/costs_json.h"

namespace penstock::cli {
namespace {

using measure::MeasuredStep;
using measure::Recording;
using simulate::Simulation;

struct ReportCommand {
  std::string run;
  std::optional<std::int64_t> step;  // Absent: the one with the median makespan.
  std::int32_t replica = 0;
  std::string page;  // Empty: report.html in the run directory.
  std::string costs;
  bool matches_step = false;  // The costs: to simulate the median step's makespan.
};

// All that is known, before it is worded.
struct Report {
  std::string run;
  std::vector<std::int64_t> recorded;
  std::vector<std::int64_t> fitted;  // The steps that the costs are from.
  std::int32_t replicas = 1;
  std::int32_t replica = 0;
  bool is_one_clock = true;
  MeasuredStep shown;
  measure::Quartiles makespan;  // Makespan of the replica's fitted steps.
  measure::Fit fit;
  Simulation simulated;
  double simulated_lower = 0.0;  // Makespans, with all costs at their lower and upper quartiles.
  double simulated_upper = 0.0;
};

std::string steps_text(const std::vector<std::int64_t>& steps) {
  if (steps.size() == 1) return str("step ", steps.front());
  return str("steps ", steps.front(), " to ", steps.back());
}

void check_choice(const ReportCommand& command, const Recording& recording,
                  const std::vector<std::int64_t>& steps) {
  if (steps.empty()) {
    throw ConfigError(str("no step of ", in_quotes(command.run), " was recorded by all its ranks"));
  }
  if (command.step && !std::ranges::binary_search(steps, *command.step)) {
    throw ConfigError(
        str("--step ", *command.step, ": not recorded; there are ", steps_text(steps)));
  }
  const std::int32_t replicas = measure::replicas(recording);
  if (command.replica < 0 || command.replica >= replicas) {
    throw ConfigError(str("--replica ", command.replica, ": the run has ",
                          replicas == 1 ? "one replica, 0" : str("replicas 0 to ", replicas - 1)));
  }
}

// The first step pays for connections and warm caches.
std::vector<std::int64_t> without_the_first(std::vector<std::int64_t> steps) {
  if (steps.size() > 1) steps.erase(steps.begin());
  return steps;
}

// The number of the median step; of an even number of steps, the faster of the two in the middle.
std::int64_t median_step(std::vector<MeasuredStep> steps) {
  std::ranges::stable_sort(steps, {}, &MeasuredStep::makespan);
  return steps[(steps.size() - 1) / 2].step;
}

Report report_of(const ReportCommand& command, const RecordedRun& files) {
  const Recording& recording = files.recording;
  Report report{.run = command.run,
                .recorded = measure::steps_of(recording),
                .replicas = measure::replicas(recording),
                .replica = command.replica};
  check_choice(command, recording, report.recorded);
  report.fitted = without_the_first(report.recorded);
  report.is_one_clock = measure::is_one_clock(recording, command.replica);
  std::vector<MeasuredStep> all;
  std::vector<MeasuredStep> of_replica;
  std::vector<double> makespans;
  for (const std::int64_t step : report.fitted) {
    for (std::int32_t replica = 0; replica < report.replicas; ++replica) {
      all.push_back(measure::measured_step(recording, files.schedule, step, replica));
      if (replica != command.replica) continue;
      of_replica.push_back(all.back());
      makespans.push_back(all.back().makespan);
    }
  }
  report.makespan = measure::quartiles(makespans);
  const std::int64_t step = command.step.value_or(median_step(of_replica));
  report.shown = measure::measured_step(recording, files.schedule, step, command.replica);
  report.fit = measure::fit(all, files.schedule);
  report.simulated = simulate::simulate(files.schedule, report.fit.costs);
  const auto makespan_at = [&](double measure::Quartiles::* level) {
    const measure::Fit at_level = measure::fit(all, files.schedule, level);
    return simulate::simulate(files.schedule, at_level.costs, simulate::Detail::Totals).makespan;
  };
  report.simulated_lower = makespan_at(&measure::Quartiles::lower);
  report.simulated_upper = makespan_at(&measure::Quartiles::upper);
  return report;
}

// The share by which the simulated makespan is off: "+1.5%".
std::string drift_text(double simulated, double measured) {
  const double share = simulated / measured - 1;
  return (share > 0 ? "+" : "") + render::percent(share);
}

// What a reader has to know to judge the numbers, a sentence each.
std::vector<std::string> remarks(const Report& report) {
  std::vector<std::string> remarks;
  if (!report.fit.latency) {
    remarks.emplace_back(
        "No rank waited for a message that its peer sent by the same clock: the latency is taken "
        "as 0.");
  }
  if (report.fit.has_guessed_halves) {
    remarks.emplace_back("On some stage I and W did not run: each is taken as half of B.");
  }
  if (!report.is_one_clock) {
    remarks.emplace_back(
        "The ranks are on several hosts: starts are by each host's own clock, from its first event "
        "of the step, and messages between hosts have no measured time.");
  }
  if (report.recorded.size() == 1) {
    remarks.emplace_back(
        "Only one step was recorded, and a first one is slow: record some more "
        "(run.timeline_steps).");
  }
  return remarks;
}

std::string head_text(const Report& report, const verify::VerifiedSchedule& schedule,
                      const TimeText& text) {
  const double simulated = report.simulated.makespan;
  std::string head = str(
      report.run, ": ", title(schedule.schedule()),
      report.replicas > 1 ? str(", replica ", report.replica, " of ", report.replicas) : "",
      "\nrecorded ", steps_text(report.recorded), ", costs from ", steps_text(report.fitted),
      ", shown step ", report.shown.step, "; times in ms\n\n", "makespan, step ", report.shown.step,
      "  ", text(report.shown.makespan), "\n", "makespan, median  ", text(report.makespan.median),
      "  quartiles ", text(report.makespan.lower), " to ", text(report.makespan.upper), "\n",
      "simulated         ", text(simulated), "  ", drift_text(simulated, report.makespan.median),
      " against the median; with all costs at "
      "their quartiles ",
      text(report.simulated_lower), " to ", text(report.simulated_upper), "\n");
  for (const std::string& remark : remarks(report)) head += remark + "\n";
  return head;
}

std::vector<render::Table> tables_of(const Report& report, std::size_t worst,
                                     const TimeText& text) {
  const auto drifts = measure::drifts(report.shown, report.simulated);
  std::vector<render::Table> tables = {costs_table(report.fit, text),
                                       ranks_table(report.shown, report.simulated, text)};
  if (report.shown.has_exchanges()) tables.push_back(exchanges_table(report.shown, worst, text));
  tables.push_back(ops_table(drifts, text));
  tables.push_back(worst_durations_table(drifts, worst, text));
  tables.push_back(worst_starts_table(drifts, worst, text));
  return tables;
}

// One replica reduces nothing: no lane for what takes no time.
render::Timeline without_idle_lanes(render::Timeline timeline) {
  for (const render::Row& row : timeline.rows) {
    for (const render::Lane& lane : std::span(row.lanes).subspan(1)) {
      const auto takes_time = [](const render::Bar& bar) { return bar.end > bar.start; };
      if (std::ranges::any_of(lane.bars, takes_time)) return timeline;
    }
  }
  for (render::Row& row : timeline.rows) row.lanes.resize(1);
  std::erase_if(timeline.critical_path, [](const auto& place) { return place.lane > 0; });
  return timeline;
}

// The picture of the losses; none of a run that has lost them.
std::vector<render::Figure> figures_of(const RunFiles& files, const measure::RunHistory& history) {
  if (files.curve.train.empty()) return {};
  render::LossCurve curve = files.curve;
  curve.marks = render::run_marks(history);
  if (!history.parts.empty()) curve.title = measure::end_text(history);
  return {{.title = "Losses, and what happened to the run",
           .note = "Saves are ticks at the axis. Numbers are ends of the run, listed below.",
           .svg = render::loss_svg(curve)}};
}

// A line each, below each other.
std::string course_text(const RunFiles& files, const measure::RunHistory& history) {
  std::string text;
  for (const std::string& line : measure::lines_of(history)) text += line + "\n";
  if (files.events.unknown > 0) {
    text += str("events of kinds that this version does not know: ", files.events.unknown, "\n");
  }
  if (files.events.unreadable > 0) {
    text += str("lines of events that cannot be read: ", files.events.unreadable,
                ", the first one at ", files.events.why_unreadable, "\n");
  }
  return text;
}

std::string page_of(const Report& report, const verify::VerifiedSchedule& schedule,
                    const TimeText& text, const RunFiles& files,
                    const measure::RunHistory& history) {
  constexpr std::size_t kWorst = 20;
  render::Timeline simulated =
      without_idle_lanes(render::simulated_timeline(schedule, report.simulated));
  simulated.title = "simulated, with the fitted costs";
  simulated.unit = "ms";
  simulated.notes.front() += str(
      " ms, ", drift_text(report.simulated.makespan, report.shown.makespan), " against this step");
  render::Timeline measured = render::measured_timeline(schedule, report.shown);
  for (const std::string& remark : remarks(report)) measured.notes.push_back(remark);
  const render::Timeline both[] = {std::move(measured), std::move(simulated)};
  std::vector<render::Table> tables = tables_of(report, kWorst, text);
  const auto& events = files.events.events;
  if (!events.empty()) tables.insert(tables.begin(), events_table(events));
  return render::timeline_page(str(report.run, ": ", title(schedule.schedule())), both, tables,
                               figures_of(files, history));
}

std::string costs_text(const Report& report, const verify::VerifiedSchedule& schedule,
                       bool matches_step) {
  const double factor = matches_step ? report.makespan.median / report.simulated.makespan : 1.0;
  return str(
      "// Fitted by penstock report to ", steps_text(report.fitted), " of ", in_quotes(report.run),
      ", ", title(schedule.schedule()), ".\n", "// Times in ms, sizes in bytes.",
      report.fit.has_guessed_halves ? "  Where I and W did not run, each is half of B." : "", "\n",
      matches_step ? str("// Times are multiplied by ", shortest(factor),
                         ": the simulated step takes as long as the median one then.\n")
                   : "",
      to_json(simulate::lengthened(report.fit.costs, factor)), "\n");
}

std::string page_path(const ReportCommand& command) {
  if (!command.page.empty()) return command.page;
  return (std::filesystem::path(command.run) / "report.html").string();
}

// Reports a run whose steps were not recorded: its losses, and what happened to it.
void report_course(const ReportCommand& command, const RunFiles& files) {
  if (!files.has_course() || command.step || command.replica != 0 || !command.costs.empty()) {
    refuse_unrecorded(command.run);
  }
  const measure::RunHistory history = measure::history_of(files.events.events);
  std::vector<render::Figure> figures = figures_of(files, history);
  if (figures.empty()) figures.push_back({.title = "No step was taken", .note = "", .svg = ""});
  std::vector<render::Table> tables;
  if (!files.events.events.empty()) tables.push_back(events_table(files.events.events));
  const std::string page = page_path(command);
  write_files(
      std::vector<OutputFile>{{render::timeline_page(command.run, {}, tables, figures), page}});
  write_output(str(command.run, ": no step was recorded, as --set run.timeline_steps=5 does\n",
                   course_text(files, history), "\npage: ", page, "\n"),
               "");
}

void report_steps(const ReportCommand& command, const RunFiles& files) {
  constexpr std::size_t kWorst = 8;
  const verify::VerifiedSchedule& schedule = files.recorded->schedule;
  const measure::RunHistory history = measure::history_of(files.events.events);
  const Report report = report_of(command, *files.recorded);
  const TimeText text(std::max(report.shown.makespan, report.simulated.makespan));
  const std::string page = page_path(command);
  std::vector<OutputFile> outputs = {{page_of(report, schedule, text, files, history), page}};
  if (!command.costs.empty()) {
    outputs.push_back({costs_text(report, schedule, command.matches_step), command.costs});
  }
  write_files(outputs);
  std::string summary = head_text(report, schedule, text);
  const std::string course = course_text(files, history);
  if (!course.empty()) summary += "\n" + course;
  for (const render::Table& table : tables_of(report, kWorst, text)) {
    summary += "\n" + to_text(table);
  }
  write_output(summary + str("\npage: ", page, "\n"), "");
}

int run_report(const ReportCommand& command) {
  if (command.page == "-" || command.costs == "-") {
    throw ConfigError("the standard output has the summary: name a file instead of -");
  }
  const RunFiles files = read_run(command.run);
  files.recorded ? report_steps(command, files) : report_course(command, files);
  return static_cast<int>(ExitCode::Ok);
}

}  // namespace

Command declare_report_command(CLI::App& app) {
  const auto command = std::make_shared<ReportCommand>();
  app.add_option("run", command->run, "the directory of a run")->required()->type_name("RUN");
  app.add_option("--step", command->step, "the step to show; else the one of median makespan")
      ->type_name("N");
  app.add_option("--replica", command->replica, "the replica to show, from 0")->type_name("D");
  app.add_option("-o,--output", command->page, "where the page goes; else RUN/report.html")
      ->type_name("FILE.html");
  CLI::Option* costs = app.add_option("--costs", command->costs,
                                      "write the fitted costs there, for penstock simulate")
                           ->type_name("FILE.json");
  app.add_flag("--match-step", command->matches_step,
               "multiply these costs, so that the simulated step takes as long as the median one")
      ->needs(costs);
  app.footer(
      "Of a run without recorded steps it shows the losses, and what happened to the run.\n"
      "Steps are recorded by penstock train --set run.timeline_steps=5.\n"
      "Exit codes: 0 reported, 2 bad input.\n"
      "Example:\n"
      "  penstock report runs/gpt-20260102-030405 --costs measured.json\n"
      "  penstock simulate zbv --ranks 2 --microbatches 8 --costs measured.json");
  return [command] { return run_report(*command); };
}

}  // namespace penstock::cli
