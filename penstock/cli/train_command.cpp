#include "penstock/cli/train_command.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <utility>

#include "penstock/cli/asked_run.h"
#include "penstock/cli/memory_file.h"
#include "penstock/cli/overrides.h"
#include "penstock/core/error.h"
#include "penstock/core/read_file.h"
#include "penstock/core/text.h"

namespace penstock::cli {
namespace {

// The variable with the descriptor from which a rank reads the config.
constexpr const char* kConfigVariable = "PENSTOCK_CONFIG_FD";

void hand_on_text(const std::string& text) {
  FileDescriptor memory = memory_file("penstock-config");
  write_whole(memory.get(), text);
  ::setenv(kConfigVariable, std::to_string(memory.release()).c_str(), /*overwrite=*/1);
}

}  // namespace

void declare_ranks(CLI::App& app, TrainCommand& command) {
  app.add_option("--nproc", command.nproc,
                 str("local ranks to start (default: ", keys_of_ranks(), ")"))
      ->type_name("N")
      ->check(CLI::Range(1, 4096));
  app.add_option(
         "--host", command.host,
         "address that this host's ranks listen on (default: 127.0.0.1, between hosts the one "
         "that faces the store)")
      ->type_name("ADDRESS");
  app.add_option("--master-port", command.master_port,
                 "port of rank 0's store (default: a free one)")
      ->type_name("PORT")
      ->check(CLI::Range(0, 65535));
}

void declare_train(CLI::App& app, TrainCommand& command) {
  app.add_option("config", command.config, "JSON file of the run; see examples/gpt.json")
      ->required()
      ->type_name("CONFIG");
  declare_ranks(app, command);
  declare_key(app, command.overrides, "--data", "data.path",
              "PATH: text file or folder (default: Python's standard library)");
  declare_key(app, command.overrides, "--steps", "run.steps", "N: optimizer steps");
  declare_key(app, command.overrides, "--run", "run.directory",
              "DIR: run directory (default: runs/NAME-TIME)");
  declare_key(app, command.overrides, "--save", "run.save",
              "DIR: save the weights there at the end");
  declare_key(app, command.overrides, "--checkpoint-every", "checkpoint.save_interval",
              "N: save a checkpoint every N steps, and when the run is asked to stop");
  declare_key(app, command.overrides, "--resume", "checkpoint.resume",
              "auto | DIR: go on from the newest whole checkpoint, or from that one");
  declare_key(app, command.overrides, "--elastic", "launch.ranks_min",
              "MIN: go on with fewer ranks, at least so many, when starts with all of them fail");
  declare_set(app, command.overrides, "model.layers=2");
  app.add_option_function<std::vector<std::string>>(
         "--inject",
         [&command](const std::vector<std::string>& texts) {
           for (const auto& text : texts) command.faults.push_back(inject::parse_fault(text));
         },
         "FAULT: a failure to survive, for example kill:rank=1,step=7,at=SEND_B; "
         "docs/injected_faults.md")
      ->type_name("")
      ->allow_extra_args(false);
  app.footer(
      "Started by torchrun, srun or mpirun, this process is one rank of theirs:\n"
      "  torchrun --nproc-per-node 4 --no-python -- penstock train gpt.json");
}

std::vector<std::string> words_of(const TrainCommand& command) {
  std::vector<std::string> words = {command.config};
  if (!command.host.empty()) words.insert(words.end(), {"--host", command.host});
  std::ranges::move(words_of(command.overrides), std::back_inserter(words));
  return words;
}

std::vector<std::string> words_of(const TrainCommand& command, const std::string& run) {
  std::vector<std::string> words = words_of(command);
  words.insert(words.end(), {"--run", run});
  for (const inject::Fault& fault : command.faults) {
    words.insert(words.end(), {"--inject", to_string(fault)});
  }
  return words;
}

config::ReadConfig read_and_hand_on(const TrainCommand& command) {
  return hand_on(command, read_file("config", command.config, json::kBytesMax));
}

config::ReadConfig hand_on(const TrainCommand& command, const std::string& text) {
  hand_on_text(text);
  return config::parse_config(text, command.config, command.overrides);
}

config::ReadConfig read_config_of(const TrainCommand& command) {
  const char* descriptor = std::getenv(kConfigVariable);
  const std::string text =
      descriptor == nullptr ? read_file("config", command.config, json::kBytesMax)
                            : read_whole(static_cast<int>(parse_integer(descriptor).value_or(-1)));
  return config::parse_config(text, command.config, command.overrides);
}

std::string run_name(const TrainCommand& command) {
  return std::filesystem::path(command.config).stem().string();
}

}  // namespace penstock::cli
