#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>

#include "penstock/cli/plan/commands.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/render/schedule_svg.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/simulate/simulate.h"

namespace penstock::cli {
namespace {

struct ScheduleCommand {
  std::string name;
  schedule::Sizes sizes;
  std::string format = "grid";
  std::string output;
};

std::string text_of(const verify::VerifiedSchedule& verified, const std::string& format) {
  if (format == "csv") return schedule::to_csv(verified.schedule());
  if (format == "json") return schedule::to_json(verified.schedule());
  if (format == "svg") return render::schedule_svg(verified, simulate::simulate(verified));
  return schedule::grid(verified.schedule());
}

int run_schedule(const ScheduleCommand& command) {
  const auto verified =
      verify::VerifiedSchedule::from(schedule::make_schedule(command.name, command.sizes));
  const std::string text = text_of(verified, command.format);
  if (command.output.empty()) {
    std::cout << text << std::flush;
  } else {
    std::ofstream file(command.output, std::ios::binary);
    if (!(file << text << std::flush)) {
      throw ConfigError(str("cannot write \"", command.output, "\""));
    }
  }
  return static_cast<int>(ExitCode::Ok);
}

std::string known_schedules() {
  std::string text = "Schedules:\n";
  for (const schedule::Generator& generator : schedule::registry()) {
    char line[128];
    std::snprintf(line, sizeof line, "  %-8s %s\n", std::string(generator.name).c_str(),
                  std::string(generator.summary).c_str());
    text += line;
  }
  return text;
}

}  // namespace

Command declare_schedule_command(CLI::App& app) {
  const auto command = std::make_shared<ScheduleCommand>();
  app.add_option("name", command->name, "which schedule; see below")->required()->type_name("NAME");
  app.add_option("--ranks", command->sizes.ranks, "pipeline ranks")->required()->type_name("P");
  app.add_option("--microbatches", command->sizes.microbatches, "microbatches per step")
      ->required()
      ->type_name("M");
  app.add_option("--format", command->format, "grid, csv, json or svg")
      ->capture_default_str()
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"grid", "csv", "json", "svg"}));
  app.add_option("-o,--output", command->output, "write to FILE")->type_name("FILE");
  app.footer(known_schedules());
  return [command] { return run_schedule(*command); };
}

}  // namespace penstock::cli
