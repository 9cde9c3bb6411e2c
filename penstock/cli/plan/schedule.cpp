#include <fstream>
#include <iostream>
#include <memory>
#include <optional>

#include "penstock/cli/plan/commands.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/render/simulated_timeline.h"
#include "penstock/render/timeline_page.h"
#include "penstock/render/timeline_svg.h"
#include "penstock/render/timeline_trace.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/simulate/simulate.h"

namespace penstock::cli {
namespace {

struct ScheduleCommand {
  std::string name;
  std::optional<std::int32_t> ranks;
  std::optional<std::int32_t> stages_per_rank;  // Absent: as the schedule likes it.
  std::optional<std::int32_t> microbatches;
  std::optional<std::int32_t> microbatch_group;
  std::string format = "grid";
  std::string output;
};

std::string text_of(const verify::VerifiedSchedule& verified, const std::string& format) {
  if (format == "csv") return schedule::to_csv(verified.schedule());
  if (format == "json") return schedule::to_json(verified.schedule());
  if (format == "grid") return schedule::grid(verified.schedule());
  const auto timeline = render::simulated_timeline(verified, simulate::simulate(verified));
  if (format == "svg") return render::timeline_svg(timeline);
  if (format == "trace") return render::chrome_trace(render::trace_of(timeline));
  return render::timeline_page(timeline.title, {&timeline, 1});
}

void write(const std::string& text, const std::string& path) {
  if (path.empty()) {
    std::cout << text << std::flush;
    return;
  }
  std::ofstream file(path, std::ios::binary);
  if (!(file << text << std::flush)) throw ConfigError(str("cannot write \"", path, "\""));
}

std::int32_t given(const std::optional<std::int32_t>& value, std::string_view option) {
  if (!value) throw ConfigError(str("schedule: ", option, " is required with NAME"));
  return *value;
}

int run_schedule(const ScheduleCommand& command) {
  if (command.name.empty()) {
    if (command.ranks || command.stages_per_rank || command.microbatches ||
        command.microbatch_group) {
      throw ConfigError("schedule: NAME is required with sizes",
                        {"without sizes, the table of schedules is printed"});
    }
    write(schedule::registry_table(), command.output);
    return static_cast<int>(ExitCode::Ok);
  }
  const schedule::Generator& generator = schedule::find_generator(command.name);
  const schedule::Sizes sizes{
      .ranks = given(command.ranks, "--ranks"),
      .stages_per_rank = command.stages_per_rank.value_or(generator.stages_per_rank),
      .microbatches = given(command.microbatches, "--microbatches"),
      .microbatch_group = command.microbatch_group};
  const auto verified =
      verify::VerifiedSchedule::from(schedule::make_schedule(generator.name, sizes));
  write(text_of(verified, command.format), command.output);
  return static_cast<int>(ExitCode::Ok);
}

std::string known_schedules() {
  std::vector<std::string_view> names;
  for (const schedule::Generator& generator : schedule::registry()) names.push_back(generator.name);
  return "Schedules: " + join(names, ", ") +
         ".\nWithout NAME: what each of them needs and what it costs.";
}

}  // namespace

Command declare_schedule_command(CLI::App& app) {
  const auto command = std::make_shared<ScheduleCommand>();
  app.add_option("name", command->name, "which schedule; see below")->type_name("NAME");
  app.add_option("--ranks", command->ranks, "pipeline ranks")->type_name("P");
  app.add_option("--stages-per-rank", command->stages_per_rank, "stages that a rank holds")
      ->type_name("V");
  app.add_option("--microbatches", command->microbatches, "microbatches per step")->type_name("M");
  app.add_option(
         "--microbatch-group", command->microbatch_group,
         "microbatches that pass a stage before the rank's next one (interleaved schedules)")
      ->type_name("N");
  app.add_option("--format", command->format, "grid, csv, json, svg, html or trace")
      ->capture_default_str()
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"grid", "csv", "json", "svg", "html", "trace"}));
  app.add_option("-o,--output", command->output, "write to FILE")->type_name("FILE");
  app.footer(known_schedules());
  return [command] { return run_schedule(*command); };
}

}  // namespace penstock::cli
