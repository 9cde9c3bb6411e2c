#include "penstock/plan/search/search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <ranges>

#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/cost_options.h"
#include "penstock/cli/plan/given_options.h"
#include "penstock/cli/plan/output.h"
#include "penstock/cli/text_table.h"
#include "penstock/core/error.h"
#include "penstock/core/progress_lines.h"
#include "penstock/core/text.h"
#include "penstock/plan/render/number.h"
#include "penstock/plan/schedule/json.h"
#include "penstock/plan/simulate/costs_json.h"

namespace penstock::cli {
namespace {

using render::percent;
using render::significant;
using search::Placement;
using search::Result;
using simulate::LowerBound;
using Clock = std::chrono::steady_clock;

// Options for what sharded weights and replicas add to a schedule; what is searched has neither.
constexpr const char* kStreamCosts[] = {"--gather", "--reduce"};

struct SearchCommand {
  std::optional<std::int32_t> ranks;
  std::optional<std::int32_t> microbatches;
  std::string stages_per_rank = "1,2";
  std::string placement = "loop,v";
  CostOptions costs;
  std::string memory;
  std::string time = "10s";
  std::optional<std::int64_t> rounds;
  std::uint64_t seed = 1;
  std::string output;
  bool json = false;
};

std::int32_t required(const std::optional<std::int32_t>& value, std::string_view option) {
  if (!value) throw ConfigError(str("search: ", option, " is required"));
  return *value;
}

std::vector<std::int32_t> stages_per_rank(const std::string& text) {
  std::vector<std::int32_t> numbers;
  for (const std::string& part : split(text, ',')) {
    const auto number = parse_integer(trim(part));
    if (!number || *number < 1 || *number > 0xFFFF) {
      throw ConfigError(str("search: --stages-per-rank ", in_quotes(text),
                            ": expected whole numbers from 1 on, such as 1,2,4"));
    }
    numbers.push_back(static_cast<std::int32_t>(*number));
  }
  return numbers;
}

std::vector<Placement> placements(const std::string& text) {
  std::vector<std::string> names;
  for (const Placement each : search::kPlacements) names.emplace_back(to_string(each));
  std::vector<Placement> chosen;
  for (const std::string& part : split(text, ',')) {
    const std::string name = lower_case(trim(part));
    const auto found = std::ranges::find(names, name);
    if (found == names.end()) {
      throw ConfigError(str("search: --placement ", in_quotes(text), ": ", in_quotes(name),
                            " is none of ", join(names, ", "), suggest(name, names)));
    }
    chosen.push_back(search::kPlacements[found - names.begin()]);
  }
  return chosen;
}

// "10s", "500ms", "2min"; a number alone is seconds.
std::chrono::nanoseconds time_of(const std::string& text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"ms", 1e-3}, {"min", 60.0}, {"s", 1.0}, {"", 1.0}};
  const std::string trimmed(trim(text));
  const std::size_t digits = std::min(trimmed.find_first_not_of("0123456789."), trimmed.size());
  const auto* const unit = std::ranges::find(kUnits, std::string_view(trimmed).substr(digits),
                                             [](const auto& each) { return each.first; });
  constexpr double kSecondsMax = 1e6;
  if (digits > 0 && unit != std::end(kUnits)) {
    const double seconds = number_of(trimmed.substr(0, digits), "--time") * unit->second;
    if (seconds <= kSecondsMax) {
      return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
    }
  }
  throw ConfigError(str("search: --time ", in_quotes(text),
                        ": expected a time up to 1000000s, such as 500ms, 10s or 2min"));
}

search::Request request_of(const SearchCommand& command) {
  return {.ranks = required(command.ranks, "--ranks"),
          .microbatches = required(command.microbatches, "--microbatches"),
          .stages_per_rank = stages_per_rank(command.stages_per_rank),
          .placements = placements(command.placement),
          .costs = costs_of(command.costs),
          .memory_max = memory_of(command.memory, "search")};
}

std::string text_of(const search::Progress& progress) {
  return str("search: makespan ", significant(progress.makespan), ", at least ",
             significant(progress.lower_bound), ", after ", progress.rounds, " rounds");
}

std::string placement_text(const Result& result) {
  const auto& ranks = result.schedule.facts().homes.of_stages();
  std::vector<std::int32_t> numbers;
  for (const Rank rank : ranks) numbers.push_back(rank.value);
  return join(numbers, " ");
}

std::string result_text(const Result& result) {
  const simulate::Simulation& simulation = result.simulation;
  const bool is_optimal = result.is_optimal();
  std::vector<TextRow> rows = {
      {"makespan", significant(simulation.makespan),
       is_optimal ? "optimal"
       : std::isfinite(result.gap())
           ? str("at most ", percent(result.gap()), " above the fastest that there can be")
           : "no bound is known"},
      {"bound", significant(result.bound.makespan),
       str(result.bound.name, ": ", result.bound.meaning)}};
  if (result.placed_bound.makespan > result.bound.makespan) {
    rows.push_back({"", significant(result.placed_bound.makespan),
                    str("with the stages on these ranks: ", result.placed_bound.name, ": ",
                        result.placed_bound.meaning)});
  }
  rows.push_back(
      {"bubble", percent(simulation.mean_bubble()), "of the makespan, all ranks together"});
  rows.push_back({"peak memory", significant(std::ranges::max(simulation.peak_memory)),
                  str(std::ranges::max(simulation.peak_activations),
                      " activations, on the rank that holds most")});
  return str(title(result.schedule.schedule()), "\n\n", text_table(rows), "\n",
             "rank of each stage: ", placement_text(result), "\n");
}

std::string bound_object(const LowerBound& bound) {
  return str("{\"name\": ", json_quote(bound.name), ", \"makespan\": ", shortest(bound.makespan),
             "}");
}

std::string result_json(const Result& result) {
  const auto& schedule = result.schedule.schedule();
  const simulate::Simulation& simulation = result.simulation;
  const auto list = [](const auto& numbers) {
    std::vector<std::string> texts;
    for (const auto& number : numbers) texts.push_back(shortest(static_cast<double>(number)));
    return join(texts, ", ");
  };
  std::vector<std::int32_t> ranks;
  for (const Rank rank : result.schedule.facts().homes.of_stages()) ranks.push_back(rank.value);
  return str(
      "{\n  \"makespan\": ", shortest(simulation.makespan),
      ",\n  \"lower_bound\": ", shortest(result.bound.makespan),
      ",\n  \"gap\": ", std::isfinite(result.gap()) ? shortest(result.gap()) : "null",
      ",\n  \"optimal\": ", result.is_optimal() ? "true" : "false",
      ",\n  \"bound\": ", bound_object(result.bound),
      ",\n  \"placed_bound\": ", bound_object(result.placed_bound),
      ",\n  \"bubble\": ", shortest(simulation.mean_bubble()),
      ",\n  \"span_bubble\": ", shortest(simulation.span_bubble()), ",\n  \"peak_memory\": [",
      list(simulation.peak_memory), "],\n  \"peak_activations\": [",
      list(simulation.peak_activations), "],\n  \"ranks\": ", schedule.ranks(),
      ",\n  \"stages\": ", schedule.stages, ",\n  \"microbatches\": ", schedule.microbatches,
      ",\n  \"stages_per_rank\": ", result.stages_per_rank, ",\n  \"placement\": [", list(ranks),
      "],\n  \"rounds\": ", result.rounds, ",\n  \"simulated\": ", result.simulated, "\n}\n");
}

// JSON keeps the costs, CSV is what torch reads.
std::string file_text(const Result& result, const std::string& path) {
  if (!path.ends_with(".json")) return schedule::to_csv(result.schedule.schedule());
  return schedule::to_json(result.schedule.schedule(), to_json(result.costs));
}

int run_search(const SearchCommand& command, const CLI::App& app) {
  for (const char* const name : kStreamCosts) {
    if (std::ranges::count(given_options(app, kCostsGroup), name) == 0) continue;
    throw ConfigError(str("search: ", name, ": nothing is gathered or reduced in a search"));
  }
  const Clock::time_point end = Clock::now() + time_of(command.time);
  ProgressLines lines;
  search::Budget budget{.seed = command.seed, .progress = [&](const search::Progress& progress) {
                          lines.at(text_of(progress));
                        }};
  if (command.rounds) {
    budget.rounds = *command.rounds;
  } else {
    budget.stop = [end] { return Clock::now() >= end; };
  }
  const Result result = search::search(request_of(command), budget);
  if (!command.output.empty()) write_output(file_text(result, command.output), command.output);
  if (command.output != "-")
    write_output(command.json ? result_json(result) : result_text(result), "");
  return static_cast<int>(ExitCode::Ok);
}

void declare_what(CLI::App& app, SearchCommand& command) {
  const auto size = [&](const char* name, auto& value, const char* help) {
    return app.add_option(name, value, help)->group(kSizesGroup);
  };
  size("--ranks", command.ranks, "pipeline ranks")->type_name("P");
  size("--microbatches", command.microbatches, "microbatches per step")->type_name("M");
  size("--stages-per-rank", command.stages_per_rank, "numbers of stages on a rank to try")
      ->type_name("V,V")
      ->capture_default_str();
  size("--placement", command.placement,
       "where stages may be: round the ranks (loop), to and fro (v), anywhere (any)")
      ->type_name("WHERE")
      ->capture_default_str();
  size("--memory", command.memory,
       "what a rank's activations may take: in the unit of --activation, or as\n"
       "bytes such as 12GB (default: any)")
      ->type_name("X");
}

void declare_how(CLI::App& app, SearchCommand& command) {
  app.add_option("--time", command.time, "how long to search, if nothing better is possible sooner")
      ->type_name("TIME")
      ->capture_default_str();
  app.add_option("--rounds", command.rounds,
                 "search for so many rounds instead: the answer is the same on any machine")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", command.seed, "of all that is random")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("-o,--output", command.output, "write the schedule to FILE: CSV, or .json")
      ->type_name("FILE");
  app.add_flag("--json", command.json, "print the result as JSON");
}

}  // namespace

Command declare_search_command(CLI::App& app) {
  const auto command = std::make_shared<SearchCommand>();
  declare_what(app, *command);
  declare_costs(app, command->costs);
  declare_how(app, *command);
  app.footer(
      "Costs are those of a rank's stages together, and an activation is a microbatch's on all of\n"
      "them, as in schedule compare; where a cost is a list by stage, all are of single stages.\n"
      "Exit codes: 0 found, 1 no schedule has so little memory, 2 bad input.\n"
      "Examples:\n"
      "  penstock search --ranks 4 --microbatches 8 --latency 0.05 --memory 4 -o best.csv\n"
      "  penstock search --ranks 4 --microbatches 16 --stages-per-rank 2 --placement v,any \\\n"
      "    --forward 0.3,1,1,1,1,1,1,1.7 --time 30s --json");
  return [command, self = &app] { return run_search(*command, *self); };
}

}  // namespace penstock::cli
