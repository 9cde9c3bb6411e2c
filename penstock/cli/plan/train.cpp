#include "penstock/cli/plan/train.h"

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "penstock/checkpoint/checkpoint_directory.h"
#include "penstock/checkpoint/checkpoints_at.h"
#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/launch_run.h"
#include "penstock/cli/plan/run_folders.h"
#include "penstock/cli/plan/run_log.h"
#include "penstock/cli/plan/runtime_program.h"
#include "penstock/cli/plan/starting.h"
#include "penstock/cli/plan/training_plan.h"
#include "penstock/cli/train_command.h"
#include "penstock/config/resolve.h"
#include "penstock/core/error.h"
#include "penstock/core/output.h"
#include "penstock/core/program_output.h"
#include "penstock/core/text.h"
#include "penstock/launch/environment.h"
#include "penstock/launch/unknown_launcher.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;

// Another launcher's ranks must all arrive at one name without talking.
std::string job_run_directory(const std::string& name, const launch::LauncherEnvironment& self) {
  std::string job = self.job_id;
  for (char& c : job) {
    if (c == '/' || c == '\\') c = '_';
  }
  return str("runs/", name, "-", job.empty() ? "job" : job);
}

// Refuses a least number of ranks that is more than this process starts.
void check_elastic(const config::Config& config, std::int64_t nproc) {
  if (config.launch.ranks_min <= nproc) return;
  throw ConfigError(str("launch.ranks_min ", config.launch.ranks_min, " (--elastic): the run has ",
                        nproc, nproc == 1 ? " rank" : " ranks"),
                    {"it is the least number of ranks to go on with"});
}

// The command for as many ranks as another launcher has started.  A run that may go on with fewer
// gets a layout for them.
TrainCommand for_world(TrainCommand command, const config::ReadConfig& read,
                       const launch::LauncherEnvironment& self) {
  const std::int64_t least = read.config.launch.ranks_min;
  config::RankLayout before{.mesh = config::asked_shape(read.config)};
  const std::int64_t ranks = before.mesh.size();
  const bool is_smaller = self.world_size < ranks && self.world_size >= least;
  if (least == 0 || !is_smaller) return command;
  before.batch = config::resolve_batch(read.config.batch, before.mesh);
  const auto layout = layout_on(self.world_size, command.config, read.config, before);
  if (!layout) return command;  // What is wrong with it is found as without --elastic.
  if (self.rank.value == 0) {
    write_message(str("penstock: ", config::change_text(before, *layout)));
  }
  std::ranges::move(config::overrides_of(*layout), std::back_inserter(command.overrides));
  inject::keep_ranks(command.faults, self.world_size);
  return command;
}

// The newest checkpoint that `--resume FROM` means.
std::string newest_at(const std::string& from) {
  try {
    return checkpoint::checkpoints_at(from).front().folder;
  } catch (const ConfigError& error) {
    throw ConfigError(str("--resume: ", error.message()), error.notes());
  }
}

// What `--resume` and the checkpoints that are there make of each other, before anything starts.
// `is_named`: the run directory is one that a user, or a job, has named.
void check_resume(const config::Config& config, const std::string& run, bool is_named) {
  const std::string& from = config.checkpoint.resume;
  if (from == "auto" && !is_named && config.checkpoint.directory.empty()) {
    throw ConfigError("--resume auto looks for checkpoints in the run directory, and none is given",
                      {"name the directory of the run that is to go on: --run DIR"});
  }
  if (from == "auto") return;
  const std::string newest = from.empty() ? "" : newest_at(from);
  const std::string directory = config::checkpoint_directory(config.checkpoint, run);
  const auto all = checkpoint::steps_in(directory);
  std::error_code error;
  if (all.empty() || fs::equivalent(all.front().folder, newest, error)) return;
  throw ConfigError(str(quoted_path(directory), " has checkpoints of a run, the newest of step ",
                        all.front().step, ", ",
                        config.checkpoint.saves() ? "which this run would take for its own"
                                                  : "whose record this run would replace"),
                    {"to go on from that one: --resume auto",
                     "to begin anew, or elsewhere: name another directory with --run"});
}

// Each process of a launcher that is not recognised looks as if it was started alone.
void warn_of_unknown_launcher() {
  const std::string rank = launch::unknown_rank(launch::process_variable);
  if (rank.empty()) return;
  write_message(str("penstock: warning: ", launch::note_on_launchers(launch::process_variable),
                    "; this process begins a whole run of its own"));
}

void warn_of_missing_locks(const RunFolders& folders) {
  for (const std::string& why : folders.missing_locks()) {
    write_message(str("penstock: warning: other runs are not kept from writing there: ", why));
  }
}

int start_ranks(const TrainCommand& command, const config::ReadConfig& read) {
  const config::Config& config = read.config;
  const std::int64_t nproc = local_ranks(command, config.mesh);
  check_is_no_pipe("data path", config.data.path);
  check_is_no_pipe("schedule", config.schedule.file);
  check_run(command, config, nproc);
  check_elastic(config, nproc);
  tell_ineffective_keys(read);
  runtime_program();  // Throws before any folder is made.
  warn_of_unknown_launcher();
  RunFolders folders;
  const std::string run =
      config.run.directory.empty() ? folders.make_fresh(run_name(command)) : config.run.directory;
  folders.make(config, run);
  folders.lock(config, run);
  folders.try_out(config, run);
  warn_of_missing_locks(folders);
  check_resume(config, run, /*is_named=*/!config.run.directory.empty());
  begin_record(config, run, /*restarts=*/0);
  Output output(STDERR_FILENO);
  OutputStream messages(output);
  const auto options = rank_launch("train", command, config, nproc, messages);
  return launch_run({.name = command.config, .config = config, .run = run}, options, command,
                    output);
}

}  // namespace

int run_train(const TrainCommand& given) {
  config::ReadConfig read = read_and_hand_on(given);
  const launch::LauncherEnvironment self = launch::from_process_environment();
  if (self.kind == launch::LauncherKind::Nobody) return start_ranks(given, read);
  const TrainCommand command = for_world(given, read, self);
  read = read_config_of(command);
  refuse_launching(command, self);
  check_run(command, read.config, self.world_size);
  if (self.rank.value == 0) tell_ineffective_keys(read);
  const std::string run = read.config.run.directory.empty()
                              ? job_run_directory(run_name(command), self)
                              : read.config.run.directory;
  const bool has_job = !self.job_id.empty() && self.job_id != "none";
  const bool is_root = self.rank.value == 0;
  RunFolders folders;
  folders.make(read.config, run);
  if (is_root) folders.lock(read.config, run);  // Held until run/ takes it over.
  folders.try_out(read.config, run);
  warn_of_missing_locks(folders);
  check_resume(read.config, run, /*is_named=*/has_job || !read.config.run.directory.empty());
  if (is_root) {
    const std::string restarts = launch::restart_count(launch::process_variable);
    begin_record(read.config, run, parse_integer(restarts).value_or(0));
  }
  std::vector<std::string> words = {runtime_program(), "train"};
  for (std::string& word : words_of(command, run)) words.push_back(std::move(word));
  become(words);
}

Command declare_train_command(CLI::App& app) {
  const auto command = std::make_shared<TrainCommand>();
  declare_train(app, *command);
  return [command] { return run_train(*command); };
}

}  // namespace penstock::cli
