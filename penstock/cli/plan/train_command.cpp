#include "penstock/cli/plan/train_command.h"

#include <filesystem>
#include <utility>

#include "penstock/cli/asked_run.h"
#include "penstock/cli/overrides.h"
#include "penstock/core/json/tree.h"
#include "penstock/core/read_file.h"
#include "penstock/core/text.h"

namespace penstock::cli {
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
  declare_key(app, command.overrides, "--epochs", "run.epochs",
              "X: passes over the samples of a token file, instead of steps");
  declare_key(app, command.overrides, "--run", "run.directory",
              "DIR: run directory (default: runs/NAME-TIME)");
  declare_key(app, command.overrides, "--save", "run.save",
              "DIR: save the weights there at the end");
  declare_key(app, command.overrides, "--checkpoint-every", "checkpoint.save_interval",
              "N: save a checkpoint every N steps, and when the run is asked to stop");
  declare_key(app, command.overrides, "--resume", "checkpoint.resume",
              "auto | DIR: go on from the newest whole checkpoint, or from that one");
  declare_key(app, command.overrides, "--schedule", "checkpoint.schedule",
              "keep | rescale: what a learning rate that ends with the run does when the run that "
              "goes on has another number of steps");
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

RankStart start_of(const TrainCommand& command) {
  return start_of(command, read_file("config", command.config, json::kBytesMax));
}

RankStart start_of(const TrainCommand& command, std::string text) {
  RankStart start{.name = command.config,
                  .text = std::move(text),
                  .overrides = command.overrides,
                  .faults = command.faults,
                  .host = command.host};
  check_text(start);
  return start;
}

std::string run_name(const TrainCommand& command) {
  return std::filesystem::path(command.config).stem().string();
}

}  // namespace penstock::cli
