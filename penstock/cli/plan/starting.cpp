#include "penstock/cli/plan/starting.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>

#include "penstock/cli/plan/runtime_program.h"
#include "penstock/core/error.h"
#include "penstock/core/output.h"
#include "penstock/core/program_output.h"
#include "penstock/core/text.h"
#include "penstock/core/version.h"
#include "penstock/plan/choose/checked_run.h"
#include "penstock/plan/config/effects.h"
#include "penstock/plan/config/resolve.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;

// A configuration for a folder's model.  SGD, because it has no states that would take memory.
std::string config_of_folder(const std::string& folder) {
  return str(R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8,)", "\n",
             R"( "model": {"type": "hugging_face", "sequence_length": 512, "path": )",
             json_quote(folder), "},\n", R"( "optimizer": {"type": "SGD"}})", "\n");
}

// Ranks that this process could start, but it is one already.
void refuse(const std::string& option, const launch::LauncherEnvironment& self) {
  throw ConfigError(
      str(option, " is for starting ranks, but this process is rank ", self.rank, " of ",
          self.world_size, " already, started by ", self.kind),
      {str("leave ", option.substr(0, option.find(' ')), " out, or run it outside that launcher")});
}

}  // namespace

RankStart start_of_model(const TrainCommand& command) {
  std::error_code error;
  if (!fs::is_directory(command.config, error)) return start_of(command);
  return start_of(command, config_of_folder(command.config));
}

std::int64_t local_ranks(const TrainCommand& command, const config::MeshConfig& mesh) {
  if (command.nproc > 0) return command.nproc;
  const mesh::Shape asked = config::asked_shape(mesh);
  if (asked.size() <= launch::kRanksMax) return asked.size();
  throw ConfigError(str(command.config, ": ", mesh::in_words(asked, "mesh."),
                        " are more ranks than one machine starts (", launch::kRanksMax, ")"),
                    {"give --nproc, or start them by torchrun, srun or mpirun"});
}

void check_is_no_pipe(const std::string& what, const std::string& path) {
  std::error_code error;
  if (path.empty() || !fs::is_fifo(path, error)) return;
  throw ConfigError(str(what, " ", quoted_path(path), " is a pipe, and each rank would read it"),
                    {"give a file; the config alone may be a pipe"});
}

void check_run(const RankStart& start, const config::Config& config, std::int64_t world_size) {
  mesh::Shape mesh;
  try {
    mesh = config::resolve_mesh(config.mesh, world_size);
  } catch (const Error& error) {
    throw Error(str(start.name, ": ", error.message()), error.notes(), error.exit_code());
  }
  choose::check_run(start.name, config, mesh);
  inject::check_ranks(start.faults, world_size);
}

void tell_ineffective_keys(const config::ReadConfig& read) {
  const auto keys = config::ineffective_keys(read.config, read.origins);
  for (const std::string& line : config::warnings_of(keys)) {
    write_message(str("penstock: warning: ", line));
  }
}

void refuse_launching(const TrainCommand& command, const launch::LauncherEnvironment& self) {
  if (command.nproc > 0) refuse(str("--nproc ", command.nproc), self);
  if (command.master_port > 0) refuse(str("--master-port ", command.master_port), self);
}

launch::LaunchOptions rank_launch(const std::string& subcommand, const TrainCommand& command,
                                  const config::Config& config, std::int64_t nproc,
                                  std::ostream& messages) {
  return {.nproc = static_cast<int>(nproc),
          .program = {runtime_program(), subcommand},
          .environment = {{kVersionVariable, kVersion}},
          .heartbeat_seconds = config.launch.heartbeat_seconds,
          .startup_seconds = config.launch.startup_seconds,
          .disk_seconds = config.launch.disk_seconds,
          .host = command.host.empty() ? "127.0.0.1" : command.host,
          .master_port = command.master_port,
          .store_socket = launch::StoreSocket::Launcher,
          .channel = launch::ControlChannel::Required,
          .messages = &messages};
}

int run_ranks_once(const std::string& subcommand, const std::vector<std::string>& words,
                   const TrainCommand& command, const RankStart& start,
                   const config::Config& config,
                   const std::vector<std::pair<std::string, std::string>>& variables,
                   std::function<void()> interrupted) {
  const std::int64_t nproc = local_ranks(command, config.mesh);
  check_run(start, config, nproc);
  Output output(STDERR_FILENO);
  OutputStream messages(output);
  launch::LaunchOptions options = rank_launch(subcommand, command, config, nproc, messages);
  options.stop_note.clear();
  options.interrupted = std::move(interrupted);
  std::ranges::copy(words, std::back_inserter(options.program));
  std::ranges::copy(variables, std::back_inserter(options.environment));
  const HandedOn handed_on(start);
  options.environment.push_back(handed_on.variable());
  return launch::launch(options).exit_code;
}

}  // namespace penstock::cli
