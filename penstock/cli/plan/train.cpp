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

void make_run_directory(const std::string& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) {
    throw ConfigError(str("cannot make the run directory \"", directory, "\": ", error.message()),
                      {"choose another with --run"});
  }
}

int start_ranks(const TrainCommand& command, const config::Config& config) {
  const std::int64_t nproc = command.nproc > 0
                                 ? command.nproc
                                 : config.mesh.pipe * config.mesh.data.value_or(1);
  config::resolve_batch(config.batch, config::resolve_mesh(config.mesh, nproc));
  const std::string runtime = runtime_program();
  const std::string run = config.run.directory.empty() ? fresh_run_directory(run_name(command))
                                                       : config.run.directory;
  make_run_directory(run);
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
  const std::string run = read.config.run.directory.empty()
                              ? job_run_directory(run_name(command), self)
                              : read.config.run.directory;
  make_run_directory(run);
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
