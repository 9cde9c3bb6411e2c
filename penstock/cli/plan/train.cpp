#include "penstock/cli/plan/train.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/launch_run.h"
#include "penstock/cli/plan/run_folders.h"
#include "penstock/cli/plan/run_log.h"
#include "penstock/cli/plan/runtime_program.h"
#include "penstock/cli/plan/starting.h"
#include "penstock/cli/plan/train_command.h"
#include "penstock/core/error.h"
#include "penstock/core/output.h"
#include "penstock/core/program_output.h"
#include "penstock/core/text.h"
#include "penstock/files/checkpoint/checkpoint_directory.h"
#include "penstock/files/checkpoint/checkpoints_at.h"
#include "penstock/launch/environment.h"
#include "penstock/launch/unknown_launcher.h"
#include "penstock/plan/choose/fewer_ranks.h"
#include "penstock/plan/config/flat.h"
#include "penstock/plan/config/resolve.h"

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

// The start of as many ranks as another launcher has started.  A run that may go on with fewer gets
// a layout for them, by no measured costs: each rank finds it for itself.
RankStart for_world(RankStart start, const config::Config& config,
                    const launch::LauncherEnvironment& self) {
  const std::int64_t least = config.launch.ranks_min;
  const mesh::Shape asked = config::asked_shape(config);
  const bool is_smaller = self.world_size < asked.size() && self.world_size >= least;
  if (least == 0 || !is_smaller) return start;
  const choose::Layout before = choose::layout_of(config, asked);
  const auto found = choose::layout_on(self.world_size, start.name, config, before,
                                       choose::RunCosts(before.stages()));
  if (!found) return start;  // What is wrong with it is found as without --elastic.
  if (self.rank.value == 0) {
    write_message(str("penstock: ", choose::change_text(before, found->layout)));
  }
  std::ranges::move(
      config::changes(config, choose::with_layout(config, found->layout), "--elastic"),
      std::back_inserter(start.overrides));
  inject::keep_ranks(start.faults, self.world_size);
  return start;
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

int start_ranks(const TrainCommand& command, RankStart start) {
  const config::ReadConfig read = start.read();
  const config::Config& config = read.config;
  const std::int64_t nproc = local_ranks(command, config.mesh);
  check_is_no_pipe("data path", config.data.path);
  check_is_no_pipe("schedule", config.schedule.file);
  check_run(start, config, nproc);
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
  start.set("run.directory", run, "--run");
  return launch_run({.start = std::move(start), .config = config, .run = run}, options, output);
}

}  // namespace

int run_train(const TrainCommand& command) {
  RankStart start = start_of(command);
  const launch::LauncherEnvironment self = launch::from_process_environment();
  if (self.kind == launch::LauncherKind::Nobody) return start_ranks(command, std::move(start));
  start = for_world(std::move(start), start.read().config, self);
  const config::ReadConfig read = start.read();
  refuse_launching(command, self);
  check_run(start, read.config, self.world_size);
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
  start.set("run.directory", run, "--run");
  become_rank({"train", start.name}, start);
}

Command declare_train_command(CLI::App& app) {
  const auto command = std::make_shared<TrainCommand>();
  declare_train(app, *command);
  return [command] { return run_train(*command); };
}

}  // namespace penstock::cli
