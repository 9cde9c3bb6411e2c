#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <memory>

#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/runtime_program.h"
#include "penstock/cli/train_command.h"
#include "penstock/config/resolve.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/core/version.h"
#include "penstock/launch/environment.h"
#include "penstock/launch/launcher.h"
#include "penstock/schedule/dialects.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/verify/verify.h"

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

// A folder that files can be made in.  Made and tried before anything is trained: a run that
// cannot write its results is best not begun.
void make_folder(const std::string& folder, const std::string& what, const std::string& option) {
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

void make_folders(const config::Config& config, const std::string& run) {
  make_folder(run, "run directory", "--run");
  if (!config.run.save.empty()) make_folder(config.run.save, "folder for the weights", "--save");
}

// What every rank would find wrong is said once, before any starts.
void check_schedule(const config::ScheduleConfig& schedule, std::int32_t pipe,
                    std::int64_t microbatches) {
  if (!schedule.file.empty()) {
    verify::VerifiedSchedule::from(schedule::load_schedule(schedule.file).schedule);
    return;
  }
  const std::int64_t stages_per_rank =
      schedule.stages_per_rank.value_or(schedule::find_generator(schedule.name).stages_per_rank);
  schedule::make_schedule(schedule.name,
                          {.ranks = pipe,
                           .stages_per_rank = static_cast<std::int32_t>(stages_per_rank),
                           .microbatches = static_cast<std::int32_t>(microbatches)});
}

void check_data(const std::string& path) {
  std::error_code error;
  if (path.empty() || fs::exists(path, error)) return;
  throw ConfigError(
      str("data path \"", path, "\" does not exist (looked at ", fs::absolute(path).string(), ")"));
}

void check_plan(const TrainCommand& command, const config::Config& config,
                std::int64_t world_size) {
  try {
    const config::MeshShape mesh = config::resolve_mesh(config.mesh, world_size);
    const config::Batch batch = config::resolve_batch(config.batch, mesh);
    check_schedule(config.schedule, mesh.pipe, batch.microbatches);
  } catch (const Error& error) {
    throw Error(str(command.config, ": ", error.message()), error.notes(), error.exit_code());
  }
  check_data(config.data.path);
}

int start_ranks(const TrainCommand& command, const config::Config& config) {
  const std::int64_t nproc =
      command.nproc > 0 ? command.nproc : config.mesh.pipe * config.mesh.data.value_or(1);
  check_plan(command, config, nproc);
  const std::string runtime = runtime_program();
  const std::string run =
      config.run.directory.empty() ? fresh_run_directory(run_name(command)) : config.run.directory;
  make_folders(config, run);
  launch::LaunchOptions options{.nproc = static_cast<int>(nproc),
                                .program = {runtime, "train"},
                                .environment = {{kVersionVariable, kVersion}},
                                .heartbeat_seconds = config.launch.heartbeat_seconds,
                                .startup_seconds = config.launch.startup_seconds,
                                .host = command.host,
                                .master_port = command.master_port,
                                .store_socket = launch::StoreSocket::Launcher,
                                .channel = launch::ControlChannel::Required,
                                .messages = &std::cerr};
  for (std::string& word : words_of(command, run)) options.program.push_back(std::move(word));
  return launch::launch(options).exit_code;
}

int run_train(const TrainCommand& command) {
  const config::ReadConfig read = read_config_of(command);
  const launch::LauncherEnvironment self = launch::from_process_environment();
  if (self.kind == launch::LauncherKind::None) return start_ranks(command, read.config);
  if (command.nproc > 0) {
    throw ConfigError(str("--nproc ", command.nproc, " starts ranks, but this process is rank ",
                          self.rank, " of ", self.world_size, " already, started by ", self.kind),
                      {"leave --nproc out, or run it outside that launcher"});
  }
  check_plan(command, read.config, self.world_size);
  const std::string run = read.config.run.directory.empty()
                              ? job_run_directory(run_name(command), self)
                              : read.config.run.directory;
  make_folders(read.config, run);
  std::vector<std::string> words = {runtime_program(), "train"};
  for (std::string& word : words_of(command, run)) words.push_back(std::move(word));
  become(words);
}

}  // namespace

Command declare_train_command(CLI::App& app) {
  const auto command = std::make_shared<TrainCommand>();
  declare_train(app, *command);
  return [command] { return run_train(*command); };
}

}  // namespace penstock::cli
