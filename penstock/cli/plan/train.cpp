#include "penstock/cli/plan/train.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "penstock/checkpoint/checkpoint_directory.h"
#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/launch_run.h"
#include "penstock/cli/plan/run_log.h"
#include "penstock/cli/plan/runtime_program.h"
#include "penstock/cli/plan/starting.h"
#include "penstock/cli/plan/training_plan.h"
#include "penstock/cli/train_command.h"
#include "penstock/config/resolve.h"
#include "penstock/core/error.h"
#include "penstock/core/output.h"
#include "penstock/core/text.h"
#include "penstock/launch/environment.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;

// runs/NAME-TIME, or the first of runs/NAME-TIME-2, -3, ... that is free.
std::string fresh_run_directory(const std::string& name) {
  char time[32];
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  std::strftime(time, sizeof time, "%Y%m%d-%H%M%S", localtime_r(&now, &local));
  const std::string base = str("runs/", name, "-", time);
  std::string directory = base;
  for (int i = 2; fs::exists(directory); ++i) directory = str(base, "-", i);
  return directory;
}

// Another launcher's ranks must all arrive at one name without talking.
std::string job_run_directory(const std::string& name, const launch::LauncherEnvironment& self) {
  std::string job = self.job_id;
  for (char& c : job) {
    if (c == '/' || c == '\\') c = '_';
  }
  return str("runs/", name, "-", job.empty() ? "job" : job);
}

// Folders that files can be made in.  Made and tried before anything is trained: a run that cannot
// write its results is best not begun.  Those in which nothing was written go again at the end.
class NewFolders {
 public:
  NewFolders() = default;
  ~NewFolders() {
    std::error_code ignored;
    for (const fs::path& folder : made_) {
      if (fs::is_directory(folder, ignored)) fs::remove(folder, ignored);
    }
  }
  NewFolders(const NewFolders&) = delete;
  NewFolders& operator=(const NewFolders&) = delete;

  void make(const std::string& folder, const std::string& what, const std::string& option) {
    note_missing(folder);
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) {
      throw ConfigError(str("cannot make the ", what, " \"", folder, "\": ", error.message()),
                        {str("choose another with ", option)});
    }
    const std::string probe = str(folder, "/.probe-", ::getpid());
    const int file = ::open(probe.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) {
      throw ConfigError(
          str("cannot write to the ", what, " \"", folder, "\": ", std::strerror(errno)),
          {str("choose another with ", option)});
    }
    ::close(file);
    ::unlink(probe.c_str());
  }

 private:
  void note_missing(const fs::path& folder) {
    std::error_code ignored;
    std::vector<fs::path> missing;  // The innermost first.
    for (fs::path path = folder; !path.empty() && !fs::exists(path, ignored);
         path = path.parent_path()) {
      missing.push_back(path);
    }
    made_.insert(made_.begin(), missing.begin(), missing.end());
  }

  std::vector<fs::path> made_;  // Each before those that it is in.
};

void make_folders(const config::Config& config, const std::string& run, NewFolders& folders) {
  folders.make(run, "run directory", "--run");
  if (!config.run.save.empty()) folders.make(config.run.save, "folder for the weights", "--save");
  if (config.checkpoint.saves()) {
    folders.make(config::checkpoint_directory(config.checkpoint, run), "directory for checkpoints",
                 "--set checkpoint.directory=DIR");
  }
}

// Of ranks that this process starts.
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
  config::RankLayout before{.mesh = mesh_of(read.config)};
  const std::int64_t ranks = std::int64_t{before.mesh.pipe} * before.mesh.data;
  const bool is_smaller = self.world_size < ranks && self.world_size >= least;
  if (least == 0 || !is_smaller) return command;
  before.batch = config::resolve_batch(read.config.batch, before.mesh);
  const auto layout = layout_on(self.world_size, command.config, read.config, before);
  if (!layout) return command;  // What is wrong with it is found as without --elastic.
  if (self.rank.value == 0) {
    std::fprintf(stderr, "penstock: %s\n", config::change_text(before, *layout).c_str());
  }
  std::ranges::move(config::overrides_of(*layout), std::back_inserter(command.overrides));
  inject::keep_ranks(command.faults, self.world_size);
  return command;
}

// What `--resume` and the checkpoints that are there make of each other, before anything starts.
// `is_named`: the run directory is one that a user, or a job, has named.
void check_resume(const config::Config& config, const std::string& run, bool is_named) {
  const std::string& from = config.checkpoint.resume;
  if (from == "auto" && !is_named && config.checkpoint.directory.empty()) {
    throw ConfigError("--resume auto looks for checkpoints in the run directory, and none is given",
                      {"name the directory of the run that is to go on: --run DIR"});
  }
  if (from == "auto" || !config.checkpoint.saves()) return;
  const std::string directory = config::checkpoint_directory(config.checkpoint, run);
  const auto all = checkpoint::steps_in(directory);
  std::error_code error;
  if (all.empty() || fs::equivalent(all.front().folder, from, error)) return;
  throw ConfigError(str(quoted_path(directory), " has checkpoints of a run, the newest of step ",
                        all.front().step, ", which this run would take for its own"),
                    {"to go on from that one: --resume auto",
                     "to begin anew, or elsewhere: name another directory with --run"});
}

int start_ranks(const TrainCommand& command, const config::ReadConfig& read) {
  const config::Config& config = read.config;
  const std::int64_t nproc = local_ranks(command, config.mesh);
  check_is_no_pipe("data path", config.data.path);
  check_is_no_pipe("schedule", config.schedule.file);
  check_run(command, config, nproc);
  check_elastic(config, nproc);
  tell_ineffective_keys(read);
  runtime_program();  // Before any folder is made.
  const std::string run =
      config.run.directory.empty() ? fresh_run_directory(run_name(command)) : config.run.directory;
  NewFolders folders;
  make_folders(config, run, folders);
  check_resume(config, run, /*is_named=*/!config.run.directory.empty());
  begin_events(config, run, /*restarts=*/0);
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
  if (self.kind == launch::LauncherKind::None) return start_ranks(given, read);
  const TrainCommand command = for_world(given, read, self);
  read = read_config_of(command);
  refuse_launching(command, self);
  check_run(command, read.config, self.world_size);
  if (self.rank.value == 0) tell_ineffective_keys(read);
  const std::string run = read.config.run.directory.empty()
                              ? job_run_directory(run_name(command), self)
                              : read.config.run.directory;
  const bool has_job = !self.job_id.empty() && self.job_id != "none";
  NewFolders folders;
  make_folders(read.config, run, folders);
  check_resume(read.config, run, /*is_named=*/has_job || !read.config.run.directory.empty());
  if (self.rank.value == 0) {
    const std::string restarts = launch::restart_count(launch::process_variable);
    begin_events(read.config, run, parse_integer(restarts).value_or(0));
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
