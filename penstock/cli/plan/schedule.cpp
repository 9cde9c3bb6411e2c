#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/cost_options.h"
#include "penstock/cli/plan/given_options.h"
#include "penstock/cli/plan/output.h"
#include "penstock/cli/plan/schedule_choice.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/render/simulated_timeline.h"
#include "penstock/plan/render/timeline_page.h"
#include "penstock/plan/render/timeline_svg.h"
#include "penstock/plan/render/timeline_trace.h"
#include "penstock/plan/schedule/deepspeed/conversion.h"
#include "penstock/plan/schedule/generators/torch.h"
#include "penstock/plan/schedule/json.h"
#include "penstock/plan/schedule/passes/passes.h"
#include "penstock/plan/simulate/costs_json.h"
#include "penstock/simulate/simulate.h"

namespace penstock::cli {
namespace {

namespace deepspeed = schedule::deepspeed;

struct ScheduleCommand {
  std::string word;  // A name or a file.
  ScheduleChoice choice;
  CostOptions costs;
  std::string dialect = "penstock";
  std::string format = "grid";
  std::string output;
};

std::size_t count_computations(const schedule::Schedule& schedule) {
  std::size_t count = 0;
  for (const schedule::Program& program : schedule.programs) {
    count += static_cast<std::size_t>(std::ranges::count_if(
        program, [](const schedule::Action& action) { return is_compute(action.op); }));
  }
  return count;
}

std::string drawing_of(const schedule::Schedule& schedule, const simulate::Costs& costs,
                       const std::string& format) {
  // Said before minutes of work.
  if (format != "svg") render::check_page_size(count_computations(schedule));
  const auto verified = verify::VerifiedSchedule::from(schedule);
  const auto simulation = simulate::simulate(verified, costs);
  const auto timeline = render::simulated_timeline(verified, simulation);
  if (format == "svg") return render::timeline_svg(timeline);
  if (format == "trace") return render::chrome_trace(render::trace_of(timeline));
  return render::timeline_page(timeline.title, {&timeline, 1});
}

std::string json_of(const schedule::Schedule& schedule, const simulate::Costs& costs) {
  const std::string text = to_json(costs);
  return schedule::to_json(schedule, text == "{}" ? "" : text);
}

std::string text_of(const schedule::Document& chosen, const ScheduleCommand& command) {
  const schedule::Schedule& schedule = chosen.schedule;
  if (command.format == "csv") return schedule::to_csv(schedule);
  if (command.format == "grid") return schedule::grid(schedule);
  const simulate::Costs costs = costs_of(command.costs, chosen.costs);
  if (command.format == "json") return json_of(schedule, costs);
  return drawing_of(schedule, costs, command.format);
}

// torch's own table of a schedule that torch has; else each action in its first slot.
std::string timetable_text(const ScheduleCommand& command) {
  const SizeOptions& sizes = command.choice.sizes;
  if (sizes.any() && command.choice.lowered.empty() && schedule::torch_has(command.word)) {
    const schedule::Generator& generator = schedule::find_generator(command.word);
    return to_csv(schedule::torch_timetable(command.word, sizes_of(sizes, generator, "schedule")));
  }
  const auto verified = verify::VerifiedSchedule::from(
      chosen_schedule(command.word, command.choice, "schedule").schedule);
  if (is_lowered(verified.schedule())) {
    throw ConfigError(
        str("schedule: --format timetable has no messages, ", verified.schedule().name, " has"),
        {"take the order of its computations, and no --lowered"});
  }
  return to_csv(schedule::align(schedule::pack(verified.schedule())));
}

// Only a simulation has costs, and JSON, which keeps them for one.
void check_costs(const ScheduleCommand& command, const CLI::App& app) {
  const bool is_text =
      command.format == "grid" || command.format == "csv" || command.format == "timetable";
  if (command.dialect == "deepspeed") {
    refuse_options(app, kCostsGroup, "instructions have no costs");
  } else if (is_text) {
    refuse_options(app, kCostsGroup, str("--format ", command.format, " shows no costs"));
  }
}

// DeepSpeed's own schedules by their names, any other by what it is made of.
std::string deepspeed_text(const ScheduleCommand& command) {
  if (command.format != "grid" || !command.choice.lowered.empty()) {
    throw ConfigError("schedule: --dialect deepspeed has one form, with its messages",
                      {"leave --format and --lowered out"});
  }
  const SizeOptions& sizes = command.choice.sizes;
  if (!sizes.any()) {
    return deepspeed::to_text(
        deepspeed::to_stepped(chosen_schedule(command.word, command.choice, "schedule").schedule));
  }
  if (!sizes.ranks || !sizes.microbatches) {
    throw ConfigError("schedule: --ranks and --microbatches are required");
  }
  return deepspeed::to_text(
      deepspeed::make_stepped(command.word, {.ranks = *sizes.ranks,
                                             .stages_per_rank = sizes.stages_per_rank.value_or(1),
                                             .microbatches = *sizes.microbatches,
                                             .microbatch_group = sizes.microbatch_group}));
}

void print_table(const ScheduleCommand& command, const CLI::App& app) {
  std::vector<std::string> given = given_options(app);
  std::erase(given, "--output");
  if (!given.empty()) {
    throw ConfigError(str("schedule: NAME is required with ", join(given, ", ")),
                      {"without options, the table of schedules is printed"});
  }
  write_output(schedule::registry_table(), command.output);
}

int run_schedule(const ScheduleCommand& command, const CLI::App& app) {
  check_costs(command, app);
  if (command.word.empty()) {
    print_table(command, app);
  } else if (command.dialect == "deepspeed") {
    write_output(deepspeed_text(command), command.output);
  } else if (command.format == "timetable") {
    write_output(timetable_text(command), command.output);
  } else {
    const schedule::Document chosen = chosen_schedule(command.word, command.choice, "schedule");
    write_output(text_of(chosen, command), command.output);
  }
  return static_cast<int>(ExitCode::Ok);
}

void declare_output(CLI::App& app, ScheduleCommand& command) {
  app.add_option("--format", command.format,
                 "grid, csv, json; csv with idle slots (timetable); of its simulation a picture\n"
                 "(svg), a page to zoom into (html), or a trace for chrome://tracing (trace)")
      ->capture_default_str()
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"grid", "csv", "json", "timetable", "svg", "html", "trace"}));
  app.add_option("--dialect", command.dialect, "whose instructions: penstock or deepspeed")
      ->capture_default_str()
      ->type_name("WHOSE")
      ->check(CLI::IsMember({"penstock", "deepspeed"}));
  app.add_option("-o,--output", command.output, "write to FILE")->type_name("FILE");
}

}  // namespace

Command declare_schedule_command(CLI::App& app) {
  const auto command = std::make_shared<ScheduleCommand>();
  app.add_option("name", command->word, "which schedule, see below; or a file")
      ->type_name("NAME|FILE");
  declare_sizes(app, command->choice.sizes);
  declare_lowered(app, command->choice.lowered);
  declare_output(app, *command);
  declare_costs(app, command->costs);
  CLI::App* const compare = app.add_subcommand("compare", "all schedules that fit, side by side");
  CLI::App* const diff = app.add_subcommand("diff", "how two schedules differ");
  CLI::App* const reroute =
      app.add_subcommand("reroute", "go on without a rank, through its peers of other replicas");
  const std::vector<std::pair<const CLI::App*, Command>> inner = {
      {compare, declare_compare_command(*compare)},
      {diff, declare_diff_command(*diff)},
      {reroute, declare_reroute_command(*reroute)}};
  app.footer(known_schedules() +
             "\nWithout NAME: what each of them needs and what it costs.  Names in any case; "
             "PyTorch's\nand DeepSpeed's class names are known, too.\n"
             "Examples:\n"
             "  penstock schedule zbv --ranks 8 --microbatches 32 --format html -o zbv.html\n"
             "  penstock schedule Schedule1F1B --ranks 4 --microbatches 8 --lowered torch "
             "--format csv\n"
             "  penstock schedule train --ranks 2 --microbatches 4 --dialect deepspeed");
  const CLI::App* const self = &app;
  return [=] {
    for (const auto& [each, run] : inner) {
      if (!each->parsed()) continue;
      refuse_options(*self, "", str("what ", each->get_name(), " takes comes behind it"));
      return run();
    }
    return run_schedule(*command, *self);
  };
}

}  // namespace penstock::cli
