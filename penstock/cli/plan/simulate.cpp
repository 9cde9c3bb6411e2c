#include "penstock/simulate/simulate.h"

#include <algorithm>
#include <memory>

#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/cost_options.h"
#include "penstock/cli/plan/diagnostics_json.h"
#include "penstock/cli/plan/output.h"
#include "penstock/cli/plan/schedule_choice.h"
#include "penstock/cli/text_table.h"
#include "penstock/core/error.h"
#include "penstock/core/program_output.h"
#include "penstock/core/text.h"
#include "penstock/plan/render/number.h"
#include "penstock/plan/simulate/lower_bounds.h"

namespace penstock::cli {
namespace {

using render::percent;
using render::significant;
using simulate::LowerBound;
using simulate::Simulation;

struct SimulateCommand {
  std::string word;
  ScheduleChoice choice;
  CostOptions costs;
  std::string channels = "tagged";
  bool json = false;
};

std::string head_text(const Simulation& simulation, const std::vector<LowerBound>& bounds) {
  const LowerBound& bound = highest(bounds);
  const double gap = bound.makespan > 0 ? simulation.makespan / bound.makespan - 1 : 0;
  return text_table(
      {{"makespan", significant(simulation.makespan),
        str("at least ", significant(bound.makespan), " (", bound.name, "): ", percent(gap),
            " above")},
       {"bubble", percent(simulation.mean_bubble()), "of the makespan, all ranks together"},
       {"", percent(simulation.span_bubble()), "of the longest span"}});
}

std::string ranks_text(const Simulation& simulation) {
  const bool is_sharded = std::ranges::any_of(simulation.unshard_peak, [](int n) { return n > 0; });
  std::vector<TextRow> rows = {
      {"rank", "busy", "span", "bubble", "peak activations", "peak memory", ""}};
  const bool exchanges = std::ranges::any_of(simulation.exchange, [](double t) { return t > 0; });
  if (is_sharded) rows[0].insert(rows[0].end() - 1, "peak unsharded");
  if (exchanges) rows[0].insert(rows[0].begin() + 2, "of it exchanges");
  for (std::size_t r = 0; r < simulation.busy.size(); ++r) {
    rows.push_back({std::to_string(r), significant(simulation.busy[r]),
                    significant(simulation.span[r]), percent(simulation.bubble(Rank(r))),
                    std::to_string(simulation.peak_activations[r]),
                    significant(simulation.peak_memory[r]), ""});
    if (is_sharded) {
      rows.back().insert(rows.back().end() - 1, std::to_string(simulation.unshard_peak[r]));
    }
    if (exchanges) rows.back().insert(rows.back().begin() + 2, significant(simulation.exchange[r]));
  }
  return text_table(rows);
}

std::string waits_text(const Simulation& simulation) {
  constexpr std::size_t kShown = 8;
  std::vector<simulate::Wait> waits = simulation.waits;
  std::ranges::stable_sort(waits, std::ranges::greater(), &simulate::Wait::time);
  waits.resize(std::min(waits.size(), kShown));
  std::vector<TextRow> rows;
  for (const simulate::Wait& wait : waits) {
    rows.push_back({str("rank ", wait.rank), significant(wait.time),
                    str("in ", wait.count, wait.count == 1 ? " wait" : " waits", " for ",
                        to_string(wait.op), " of rank ", wait.peer)});
  }
  return rows.empty() ? "" : "\nlongest waits\n" + text_table(rows);
}

std::string bounds_text(const std::vector<LowerBound>& bounds) {
  std::vector<TextRow> rows;
  for (const LowerBound& bound : bounds) {
    rows.push_back(
        {std::string(bound.name), significant(bound.makespan), std::string(bound.meaning)});
  }
  return "\nno order of this work in this memory is faster than\n" + text_table(rows);
}

std::string rank_json(const Simulation& simulation, std::size_t r) {
  return str("    {\"busy\": ", shortest(simulation.busy[r]),
             ", \"exchange\": ", shortest(simulation.exchange[r]),
             ", \"span\": ", shortest(simulation.span[r]),
             ", \"peak_activations\": ", simulation.peak_activations[r],
             ", \"peak_memory\": ", shortest(simulation.peak_memory[r]),
             ", \"unshard_peak\": ", simulation.unshard_peak[r], "}");
}

std::string bound_json(const LowerBound& bound) {
  return str("    {\"name\": ", json_quote(bound.name),
             ", \"makespan\": ", shortest(bound.makespan), "}");
}

std::string json_text(const schedule::Schedule& schedule, const Simulation& simulation,
                      const std::vector<LowerBound>& bounds) {
  std::vector<std::string> ranks;
  for (std::size_t r = 0; r < simulation.busy.size(); ++r) {
    ranks.push_back(rank_json(simulation, r));
  }
  std::vector<std::string> bound_items;
  for (const LowerBound& bound : bounds) bound_items.push_back(bound_json(bound));
  return str("{\n  \"name\": ", json_quote(schedule.name), ",\n  \"stages\": ", schedule.stages,
             ",\n  \"microbatches\": ", schedule.microbatches,
             ",\n  \"makespan\": ", shortest(simulation.makespan),
             ",\n  \"bubble\": ", shortest(simulation.mean_bubble()),
             ",\n  \"span_bubble\": ", shortest(simulation.span_bubble()),
             ",\n  \"lower_bound\": ", shortest(highest(bounds).makespan),
             ",\n  \"lower_bounds\": [\n", join(bound_items, ",\n"), "\n  ],\n  \"ranks\": [\n",
             join(ranks, ",\n"), "\n  ]\n}\n");
}

// Only what the channels do to a program that is otherwise right.
bool is_about_channels(const verify::Diagnostic& diagnostic) {
  return diagnostic.code == verify::Code::Deadlock || diagnostic.code == verify::Code::Misorder;
}

int report(const verify::Refusal& refusal, bool json) {
  const auto& diagnostics = refusal.diagnostics();
  if (!std::ranges::all_of(diagnostics, is_about_channels)) throw refusal;
  const verify::Code code = diagnostics.front().code;
  write_message(str("penstock: ", kind(code), " [", to_string(code), "]: ", refusal.what()));
  if (json) write_output("{" + diagnostics_json(diagnostics) + "}\n", "");
  return static_cast<int>(ExitCode::Failure);
}

int run_simulate(const SimulateCommand& command) {
  schedule::Document chosen = chosen_schedule(command.word, command.choice, "simulate");
  const simulate::Costs costs = costs_of(command.costs, chosen.costs);
  try {
    const auto verified = verify::VerifiedSchedule::from(
        std::move(chosen.schedule), {.channels = channels_of(command.channels)});
    const Simulation simulation = simulate::simulate(verified, costs, simulate::Detail::Totals);
    const std::vector<LowerBound> bounds = simulate::lower_bounds(verified, costs);
    write_output(command.json
                     ? json_text(verified.schedule(), simulation, bounds)
                     : str(title(verified.schedule()), "\n\n", head_text(simulation, bounds), "\n",
                           ranks_text(simulation), waits_text(simulation), bounds_text(bounds)),
                 "");
    return static_cast<int>(ExitCode::Ok);
  } catch (const verify::Refusal& refusal) {
    return report(refusal, command.json);
  }
}

}  // namespace

Command declare_simulate_command(CLI::App& app) {
  const auto command = std::make_shared<SimulateCommand>();
  app.add_option("schedule", command->word,
                 "a file (- is the standard input), or the name of a schedule with sizes")
      ->required()
      ->type_name("FILE|NAME");
  declare_sizes(app, command->choice.sizes);
  declare_file_format(app, command->choice.file_format);
  declare_lowered(app, command->choice.lowered);
  declare_costs(app, command->costs);
  declare_channels(app, command->channels);
  app.add_flag("--json", command->json, "print the result as JSON");
  app.footer(
      "X is a number, or a number per stage: 1.5 or 1,1,2.  Times share one unit, whichever.\n"
      "Exit codes: 0 simulated, 1 the program deadlocks or misorders under the channels, 2 bad "
      "input.\n"
      "Examples:\n"
      "  penstock simulate zbv --ranks 4 --microbatches 8 --forward 0.5 --input 0.5 --weight 0.5\n"
      "  penstock simulate mine.csv --costs measured.json --json");
  return [command] { return run_simulate(*command); };
}

}  // namespace penstock::cli
