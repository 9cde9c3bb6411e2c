#include "penstock/plan/search/reroute.h"

#include <algorithm>
#include <memory>

#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/cost_options.h"
#include "penstock/cli/plan/given_options.h"
#include "penstock/cli/plan/output.h"
#include "penstock/cli/plan/schedule_choice.h"
#include "penstock/cli/text_table.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/render/number.h"
#include "penstock/plan/schedule/json.h"
#include "penstock/plan/search/clock.h"
#include "penstock/plan/simulate/costs_json.h"

namespace penstock::cli {
namespace {

using render::percent;
using render::significant;
using search::LostRanks;
using search::RemainingRun;
using simulate::Simulation;

// Options for what sharded weights and replicas add to a schedule; what is compared has neither.
constexpr const char* kStreamCosts[] = {"--gather", "--reduce"};

struct RerouteCommand {
  std::string word;
  ScheduleChoice choice;
  std::int32_t replicas = 0;
  std::vector<std::int32_t> lost;
  CostOptions costs;
  std::string memory;
  std::string output;
  bool json = false;
};

// One way to run all microbatches of a step.
struct Way {
  std::string name;
  std::int32_t ranks = 0;  // Ranks that work.
  std::string microbatches;
  const Simulation& simulation;

  double peak_memory() const { return std::ranges::max(simulation.peak_memory); }
  // Share of these ranks' time.
  double bubble() const { return simulation.mean_bubble(); }
};

// The order alone: what is compared has no messages, gathers or reductions.
schedule::Schedule order_of(schedule::Schedule schedule) {
  for (schedule::Program& program : schedule.programs) {
    std::erase_if(program, [](const auto& action) { return !schedule::is_compute(action.op); });
  }
  return schedule;
}

std::string replicas_text(std::int32_t replicas, std::int32_t microbatches) {
  return str(replicas, " x ", microbatches);
}

struct RerouteComparison {
  LostRanks loss;
  Simulation undisturbed;
  RemainingRun rerouted;
  std::optional<search::Resharded> resharded;

  std::vector<Way> ways() const {
    const schedule::Schedule& schedule = loss.schedule.schedule();
    std::vector<Way> ways = {
        {"undisturbed", schedule.ranks() * loss.replicas,
         replicas_text(loss.replicas, schedule.microbatches), undisturbed},
        {"rerouted", rerouted.schedule.schedule().ranks(),
         replicas_text(loss.replicas, schedule.microbatches), rerouted.simulation}};
    if (resharded) {
      ways.push_back({"resharded", schedule.ranks() * resharded->replicas,
                      replicas_text(resharded->replicas, resharded->microbatches),
                      resharded->remaining.simulation});
    }
    return ways;
  }
};

// The words that say which way is faster; "" where there is one.
std::string faster_text(const RerouteComparison& comparison) {
  if (!comparison.resharded) {
    return "resharded: the ranks that are left are too few for a pipeline\n";
  }
  const double rerouted = comparison.rerouted.simulation.makespan;
  const double resharded = comparison.resharded->remaining.simulation.makespan;
  const double least = std::min(rerouted, resharded);
  const double share = least > 0.0 ? std::max(rerouted, resharded) / least - 1.0 : 0.0;
  if (share <= search::kRounding) return "rerouting and resharding take equally long\n";
  return rerouted < resharded
             ? str("rerouting is faster: resharding takes ", percent(share), " more\n")
             : str("resharding is faster: rerouting takes ", percent(share), " more\n");
}

std::string lost_text(const LostRanks& loss) {
  const mesh::Mesh mesh = search::mesh_of(loss);
  std::vector<std::string> texts;
  for (const Rank rank : loss.lost) {
    texts.push_back(str("rank ", rank, " (place ", mesh.index(rank, mesh::Role::Pipe),
                        " of the pipe, replica ", mesh.index(rank, mesh::Role::OtherSamples), ")"));
  }
  return join(texts, ", ");
}

std::string text_of(const RerouteComparison& comparison) {
  const LostRanks& loss = comparison.loss;
  const double undisturbed = comparison.undisturbed.makespan;
  std::vector<TextRow> rows = {
      {"step", "ranks", "microbatches", "makespan", "longer", "bubble", "peak memory", ""}};
  for (const Way& way : comparison.ways()) {
    const double share = undisturbed > 0.0 ? way.simulation.makespan / undisturbed - 1.0 : 0.0;
    rows.push_back({way.name, std::to_string(way.ranks), way.microbatches,
                    significant(way.simulation.makespan), percent(share), percent(way.bubble()),
                    significant(way.peak_memory()), ""});
  }
  return str(title(loss.schedule.schedule()), " x ", loss.replicas,
             " replicas, lost: ", lost_text(loss), "\n\n", text_table(rows), "\n",
             faster_text(comparison), "ranks of the rerouted program, by their old numbers: ",
             join(search::left_of(loss), " "), "\n");
}

std::string way_json(const Way& way) {
  return str("    {\"name\": ", json_quote(way.name), ", \"ranks\": ", way.ranks,
             ", \"makespan\": ", shortest(way.simulation.makespan),
             ", \"bubble\": ", shortest(way.bubble()),
             ", \"peak_memory\": ", shortest(way.peak_memory()), "}");
}

std::string json_of(const RerouteComparison& comparison) {
  const LostRanks& loss = comparison.loss;
  std::vector<std::string> ways;
  for (const Way& way : comparison.ways()) ways.push_back(way_json(way));
  const auto& resharded = comparison.resharded;
  return str("{\n  \"name\": ", json_quote(loss.schedule.schedule().name),
             ",\n  \"replicas\": ", loss.replicas, ",\n  \"lost\": [", join(loss.lost, ", "),
             "],\n  \"left\": [", join(search::left_of(loss), ", "), "],\n  \"steps\": [\n",
             join(ways, ",\n"),
             "\n  ],\n  \"resharded_replicas\": ", resharded ? str(resharded->replicas) : "null",
             ",\n  \"resharded_microbatches\": ", resharded ? str(resharded->microbatches) : "null",
             "\n}\n");
}

int run_reroute(const RerouteCommand& command, const CLI::App& app) {
  for (const char* const name : kStreamCosts) {
    if (std::ranges::count(given_options(app, kCostsGroup), name) == 0) continue;
    throw ConfigError(str("schedule reroute: ", name,
                          ": steps are compared without what is gathered or reduced"));
  }
  if (!command.output.empty() && !command.output.ends_with(".json")) {
    throw ConfigError(str("schedule reroute: -o ", in_quotes(command.output),
                          ": expected a name that ends in .json: CSV cannot say that several "
                          "ranks have one stage"));
  }
  schedule::Document chosen = chosen_schedule(command.word, command.choice, "schedule reroute");
  const auto schedule = verify::VerifiedSchedule::from(order_of(std::move(chosen.schedule)));
  LostRanks loss{.schedule = schedule,
                 .replicas = command.replicas,
                 .costs = costs_of(command.costs, chosen.costs),
                 .memory_max = memory_of(command.memory, "schedule reroute")};
  for (const std::int32_t rank : command.lost) loss.lost.emplace_back(rank);
  RemainingRun rerouted = search::reroute(loss);
  const RerouteComparison comparison{
      .loss = loss,
      .undisturbed = simulate::simulate(schedule, loss.costs, simulate::Detail::Totals),
      .rerouted = std::move(rerouted),
      .resharded = search::reshard(loss)};
  if (!command.output.empty()) {
    const RemainingRun& remaining = comparison.rerouted;
    const std::string costs = to_json(remaining.costs);
    write_output(schedule::to_json(remaining.schedule.schedule(), costs == "{}" ? "" : costs),
                 command.output);
  }
  write_output(command.json ? json_of(comparison) : text_of(comparison), "");
  return static_cast<int>(ExitCode::Ok);
}

}  // namespace

Command declare_reroute_command(CLI::App& app) {
  const auto command = std::make_shared<RerouteCommand>();
  app.add_option("schedule", command->word,
                 "what each replica runs: a file, or the name of a schedule with sizes")
      ->required()
      ->type_name("FILE|NAME");
  app.add_option("--replicas", command->replicas, "replicas of the pipeline, before the loss")
      ->required()
      ->type_name("D");
  app.add_option("--lost", command->lost,
                 "ranks that are gone: place of the pipe x D + replica, as a run numbers them")
      ->required()
      ->type_name("RANK,RANK")
      ->delimiter(',');
  declare_sizes(app, command->choice.sizes);
  declare_costs(app, command->costs);
  app.add_option("--memory", command->memory,
                 "what a rank's activations may take: in the unit of --activation, or as\n"
                 "bytes such as 12GB (default: as much as the fullest rank has before)")
      ->type_name("X");
  app.add_option("-o,--output", command->output, "write the rerouted program to FILE.json")
      ->type_name("FILE");
  app.add_flag("--json", command->json, "print the result as JSON");
  app.footer(
      "The microbatches of a lost rank pass its stages on the other replicas' ranks that have the\n"
      "same stages.  Beside that: whole pipelines of the ranks that are left, with all "
      "microbatches.\n"
      "Both are the fastest order that is found in the same memory; moving weights is not in it.\n"
      "Exit codes: 0 rerouted, 1 a stage is on no rank that is left, or the memory is too small,\n"
      "2 bad input.\n"
      "Examples:\n"
      "  penstock schedule reroute 1f1b --ranks 4 --microbatches 8 --replicas 2 --lost 5 -o "
      "r.json\n"
      "  penstock schedule r.json --format html -o r.html");
  return [command, self = &app] { return run_reroute(*command, *self); };
}

}  // namespace penstock::cli
