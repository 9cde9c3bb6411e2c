#include "penstock/verify/verify.h"

#include <filesystem>
#include <limits>
#include <memory>
#include <optional>

#include "penstock/cli/input_file.h"
#include "penstock/cli/overrides.h"
#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/cost_options.h"
#include "penstock/cli/plan/diagnostics_json.h"
#include "penstock/cli/plan/output.h"
#include "penstock/cli/plan/runtime_program.h"
#include "penstock/cli/plan/schedule_choice.h"
#include "penstock/core/error.h"
#include "penstock/core/json/tree.h"
#include "penstock/core/program_output.h"
#include "penstock/core/text.h"

namespace penstock::cli {
namespace {

struct VerifyCommand {
  std::string word;
  ScheduleChoice choice;
  std::string channels = "tagged";
  std::optional<std::int32_t> activations_max;
  bool json = false;
  // Words for a configuration, which the program that has layers reads again.
  std::vector<config::Override> overrides;
  std::int64_t nproc = 0;
};

// Whether a file is a run's configuration and no schedule.  A pipe is read once: by who takes it.
bool is_configuration(const std::string& path) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none) || !takes_file(path)) return false;
  const InputFile file = read_input("file", path, schedule::kFileBytesMax);
  if (file.text.size() > json::kBytesMax) return false;
  try {
    const json::Value value =
        json::parse(std::make_shared<const json::Source>(json::Source{file.name, file.text}));
    const auto* const object = std::get_if<json::Value::Object>(&value.data);
    return object != nullptr && (json::find(*object, "model") || json::find(*object, "mesh"));
  } catch (const ParseError&) {
    return false;
  }
}

std::string facts_text(const verify::VerifiedSchedule& verified) {
  const schedule::Schedule& schedule = verified.schedule();
  return str(title(schedule), ": verified, ",
             is_lowered(schedule) ? str(to_string(verified.options().channels), " channels")
                                  : std::string("compute only"),
             "\npeak activations by rank: ", join(verified.facts().peak_activations, ", "), "\n");
}

// The rank of each stage; of several replicas a list of them for each way that microbatches take.
std::string homes_json(const verify::VerifiedSchedule& verified) {
  const schedule::Homes& homes = verified.facts().homes;
  const std::int32_t replicas = verified.schedule().replicas;
  if (replicas == 1) return str(", \"rank_of_stage\": [", join(homes.of_stages(), ", "), "]");
  std::vector<std::string> ways;
  for (std::size_t way = 0; way < homes.ways(); ++way) {
    std::vector<Rank> ranks;
    for (std::size_t s = 0; s < homes.stages(); ++s) ranks.push_back(homes.on_way(way, s));
    ways.push_back(str("[", join(ranks, ", "), "]"));
  }
  return str(", \"replicas\": ", replicas, ", \"ways\": [", join(ways, ", "), "]");
}

std::string facts_json(const verify::VerifiedSchedule& verified) {
  const schedule::Schedule& schedule = verified.schedule();
  return str("{\"ok\": true, \"ranks\": ", schedule.ranks(), ", \"stages\": ", schedule.stages,
             ", \"microbatches\": ", schedule.microbatches,
             ", \"lowered\": ", is_lowered(schedule) ? "true" : "false",
             ", \"channels\": ", json_quote(to_string(verified.options().channels)),
             homes_json(verified), ", \"peak_activations\": [",
             join(verified.facts().peak_activations, ", "), "]}\n");
}

int run_verify(const VerifyCommand& command) {
  const verify::Options options{.channels = channels_of(command.channels),
                                .activations_max = command.activations_max};
  try {
    schedule::Schedule schedule = chosen_schedule(command.word, command.choice, "verify").schedule;
    const auto verified = verify::VerifiedSchedule::from(std::move(schedule), options);
    write_output(command.json ? facts_json(verified) : facts_text(verified), "");
    return static_cast<int>(ExitCode::Ok);
  } catch (const verify::Refusal& refusal) {
    write_message(refusal.what());
    if (command.json) {
      write_output("{\"ok\": false, " + diagnostics_json(refusal.diagnostics()) + "}\n", "");
    }
    return static_cast<int>(ExitCode::Failure);
  }
}

}  // namespace

Command declare_verify_command(CLI::App& app, const Words& own) {
  const auto command = std::make_shared<VerifyCommand>();
  app.add_option("schedule", command->word,
                 "a schedule as CSV, JSON or DeepSpeed's instructions (- is the standard\n"
                 "input), the name of one with sizes, or the configuration of a run")
      ->required()
      ->type_name("FILE|NAME|CONFIG");
  declare_sizes(app, command->choice.sizes);
  declare_file_format(app, command->choice.file_format);
  declare_lowered(app, command->choice.lowered);
  declare_channels(app, command->channels);
  app.add_option("--max-activations", command->activations_max,
                 "most live activations (a stage's, of one microbatch) on a rank")
      ->type_name("N")
      ->check(CLI::Range(0, std::numeric_limits<std::int32_t>::max()));
  app.add_flag("--json", command->json, "print the result as JSON");
  app.add_option("--nproc", command->nproc, "ranks of a configuration")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20));
  declare_set(app, command->overrides, "mesh.tensor=2");
  app.footer(
      "Objections go to the standard error, each with its code (docs/errors.md): the first 20, and "
      "how\n"
      "many more there are.  --json has all of them.\n"
      "Exit codes: 0 verified, 1 there are objections, 2 the file cannot be read or parsed.\n"
      "Examples:\n"
      "  penstock verify mine.csv --max-activations 8\n"
      "  penstock schedule zbv --ranks 4 --microbatches 8 --lowered torch --format csv |\n"
      "    penstock verify - --channels dirfifo\n"
      "  penstock verify examples/tensor.json --set mesh.tensor=4");
  return [command, &own] {
    if (is_configuration(command->word)) become(own);
    if (command->nproc > 0 || !command->overrides.empty()) {
      throw ConfigError("verify: --nproc and --set are for the configuration of a run");
    }
    return run_verify(*command);
  };
}

}  // namespace penstock::cli
