#include "penstock/cli/train_command.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "penstock/cli/overrides.h"
#include "penstock/core/text.h"

namespace penstock::cli {
namespace {

// A short option that sets one key of the config.
void declare_key(CLI::App& app, TrainCommand& command, const std::string& option,
                 const std::string& path, const std::string& help) {
  app.add_option_function<std::string>(
         option,
         [&command, option, path](const std::string& value) {
           command.overrides.push_back({path, value, option});
         },
         help)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->type_name("");
}

}  // namespace

void declare_train(CLI::App& app, TrainCommand& command) {
  app.add_option("config", command.config, "JSON file of the run; see examples/gpt.json")
      ->required()
      ->type_name("CONFIG");
  app.add_option("--nproc", command.nproc, "local ranks to start (default: mesh.pipe x mesh.data)")
      ->type_name("N")
      ->check(CLI::Range(1, 4096));
  declare_key(app, command, "--data", "data.path",
              "PATH: text file or folder (default: Python's standard library)");
  declare_key(app, command, "--steps", "run.steps", "N: optimizer steps");
  declare_key(app, command, "--run", "run.directory",
              "DIR: run directory (default: runs/NAME-TIME)");
  declare_key(app, command, "--save", "run.save", "DIR: save the weights there at the end");
  declare_set(app, command.overrides, "model.layers=2");
  app.add_option(
         "--host", command.host,
         "address that this host's ranks listen on (default: 127.0.0.1, between hosts the one "
         "that faces the store)")
      ->type_name("ADDRESS");
  app.add_option("--master-port", command.master_port,
                 "port of rank 0's store (default: a free one)")
      ->type_name("PORT")
      ->check(CLI::Range(0, 65535));
  app.footer(
      "Started by torchrun, srun or mpirun, this process is one rank of theirs:\n"
      "  torchrun --nproc-per-node 4 --no-python -- penstock train gpt.json");
}

std::vector<std::string> words_of(const TrainCommand& command, const std::string& run) {
  std::vector<std::string> words = {command.config};
  if (!command.host.empty()) words.insert(words.end(), {"--host", command.host});
  std::ranges::move(words_of(command.overrides), std::back_inserter(words));
  words.insert(words.end(), {"--run", run});
  return words;
}

config::ReadConfig read_config_of(const TrainCommand& command) {
  return config::read_config(command.config, command.overrides);
}

std::string run_name(const TrainCommand& command) {
  return std::filesystem::path(command.config).stem().string();
}

}  // namespace penstock::cli
