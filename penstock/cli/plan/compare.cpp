#include <algorithm>
#include <memory>
#include <tuple>

#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/cost_options.h"
#include "penstock/cli/plan/given_options.h"
#include "penstock/cli/plan/output.h"
#include "penstock/cli/plan/schedule_choice.h"
#include "penstock/cli/text_table.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/render/number.h"
#include "penstock/plan/simulate/lower_bounds.h"
#include "penstock/simulate/simulate.h"

namespace penstock::cli {
namespace {

using render::percent;
using render::significant;
using schedule::Generator;
using schedule::Sizes;
using simulate::Costs;

constexpr std::string_view kName = "schedule compare";

// Options for what sharded weights and replicas add to a schedule; what is compared has neither.
constexpr const char* kStreamCosts[] = {"--gather", "--reduce"};

struct CompareCommand {
  SizeOptions sizes;
  CostOptions costs;
  bool json = false;
};

struct Entry {
  std::string name;
  std::int32_t stages_per_rank = 1;
  double makespan = 0.0;
  double bubble = 0.0;
  double span_bubble = 0.0;
  std::int32_t peak_activations = 0;  // Activations of the rank that holds most.
  double peak_memory = 0.0;
  double lower_bound = 0.0;

  double gap() const { return lower_bound > 0 ? makespan / lower_bound - 1 : 0; }
};

Entry entry_of(const verify::VerifiedSchedule& verified, std::int32_t stages_per_rank,
               const Costs& of_rank) {
  const Costs costs = simulate::shared_by_stages(of_rank, stages_per_rank);
  const auto simulation = simulate::simulate(verified, costs, simulate::Detail::Totals);
  Entry entry{.name = verified.schedule().name,
              .stages_per_rank = stages_per_rank,
              .makespan = simulation.makespan,
              .bubble = simulation.mean_bubble(),
              .span_bubble = simulation.span_bubble(),
              .peak_activations = std::ranges::max(simulation.peak_activations),
              .peak_memory = std::ranges::max(simulation.peak_memory)};
  for (const auto& bound : simulate::lower_bounds(verified, costs)) {
    entry.lower_bound = std::max(entry.lower_bound, bound.makespan);
  }
  return entry;
}

struct Misfit {
  std::string_view name;
  std::string reason;
};

struct Comparison {
  std::vector<Entry> entries;  // The fastest first.
  std::vector<Misfit> misfits;
};

// The numbers of stages per rank to try: the one that was asked for, or the schedule's own and,
// where it takes several, some more.
std::vector<std::int32_t> stages_per_rank(const CompareCommand& command,
                                          const Generator& generator) {
  if (command.sizes.stages_per_rank) return {*command.sizes.stages_per_rank};
  std::vector<std::int32_t> numbers = {generator.stages_per_rank};
  Sizes sizes = sizes_of(command.sizes, generator, kName);
  sizes.stages_per_rank = 2 * generator.stages_per_rank;
  if (generator.objection(sizes).empty()) numbers.push_back(sizes.stages_per_rank);
  return numbers;
}

Comparison compare(const CompareCommand& command, const Costs& costs) {
  Comparison comparison;
  for (const Generator& generator : schedule::registry()) {
    for (const std::int32_t stages : stages_per_rank(command, generator)) {
      Sizes sizes = sizes_of(command.sizes, generator, kName);
      sizes.stages_per_rank = stages;
      const std::string objection = generator.objection(sizes);
      if (!objection.empty()) {
        comparison.misfits.push_back({generator.name, objection});
        continue;
      }
      const auto verified =
          verify::VerifiedSchedule::from(schedule::make_schedule(generator.name, sizes));
      if (verified.schedule().purpose != schedule::Purpose::Train) continue;
      comparison.entries.push_back(entry_of(verified, stages, costs));
    }
  }
  std::ranges::sort(comparison.entries, {}, [](const Entry& entry) {
    return std::tuple(entry.makespan, entry.peak_memory, entry.name);
  });
  return comparison;
}

std::string to_text(const Comparison& comparison) {
  std::vector<TextRow> rows = {{"schedule", "stages per rank", "makespan", "above the bound",
                                "bubble", "span bubble", "peak activations", "peak memory", ""}};
  for (const Entry& entry : comparison.entries) {
    rows.push_back({entry.name, std::to_string(entry.stages_per_rank), significant(entry.makespan),
                    percent(entry.gap()), percent(entry.bubble), percent(entry.span_bubble),
                    std::to_string(entry.peak_activations), significant(entry.peak_memory), ""});
  }
  std::string text = text_table(rows);
  if (comparison.misfits.empty()) return text;
  text += "\nthese sizes do not fit\n";
  std::vector<TextRow> misfits;
  for (const Misfit& misfit : comparison.misfits) {
    misfits.push_back({std::string(misfit.name), misfit.reason});
  }
  return text + text_table(misfits);
}

std::string to_json(const Entry& entry) {
  return str(
      "    {\"name\": ", json_quote(entry.name), ", \"stages_per_rank\": ", entry.stages_per_rank,
      ", \"makespan\": ", shortest(entry.makespan),
      ", \"lower_bound\": ", shortest(entry.lower_bound), ", \"bubble\": ", shortest(entry.bubble),
      ", \"span_bubble\": ", shortest(entry.span_bubble),
      ", \"peak_activations\": ", entry.peak_activations,
      ", \"peak_memory\": ", shortest(entry.peak_memory), "}");
}

std::string to_json(const Comparison& comparison) {
  std::vector<std::string> entries;
  for (const Entry& entry : comparison.entries) entries.push_back(to_json(entry));
  std::vector<std::string> misfits;
  for (const Misfit& misfit : comparison.misfits) {
    misfits.push_back(str("    {\"name\": ", json_quote(misfit.name),
                          ", \"reason\": ", json_quote(misfit.reason), "}"));
  }
  return str("{\n  \"schedules\": [\n", join(entries, ",\n"), "\n  ],\n  \"misfits\": [\n",
             join(misfits, ",\n"), "\n  ]\n}\n");
}

void check_costs(const CLI::App& app) {
  const std::vector<std::string> given = given_options(app, kCostsGroup);
  for (const char* const name : kStreamCosts) {
    if (std::ranges::find(given, name) == given.end()) continue;
    throw ConfigError(str(kName, ": ", name, ": nothing is gathered or reduced in a comparison"));
  }
}

int run_compare(const CompareCommand& command, const CLI::App& app) {
  check_costs(app);
  const Comparison comparison = compare(command, costs_of(command.costs));
  write_output(command.json ? to_json(comparison) : to_text(comparison), "");
  return static_cast<int>(ExitCode::Ok);
}

}  // namespace

Command declare_compare_command(CLI::App& app) {
  const auto command = std::make_shared<CompareCommand>();
  declare_sizes(app, command->sizes);
  declare_costs(app, command->costs);
  app.add_flag("--json", command->json, "print the result as JSON");
  app.footer(
      "All schedules that train and take these sizes, the fastest first.  Costs here are those of "
      "a\n"
      "rank's stages together, and an activation is a microbatch's on all of them: with V stages\n"
      "per rank, each has a V-th.  So all schedules do the same work.  The bubble is a share of "
      "the\n"
      "makespan, the span bubble of the longest time from a rank's first action to its last.\n"
      "Gathers and reductions are left out.\n"
      "Example:\n"
      "  penstock schedule compare --ranks 4 --microbatches 8 --latency 0.05");
  return [command, self = &app] { return run_compare(*command, *self); };
}

}  // namespace penstock::cli
