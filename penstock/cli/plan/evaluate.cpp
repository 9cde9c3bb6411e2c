#include <algorithm>
#include <iterator>
#include <memory>

#include "penstock/cli/overrides.h"
#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/runtime_program.h"
#include "penstock/cli/plan/starting.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::cli {
namespace {

struct EvaluateCommand {
  TrainCommand ranks;  // Its `config` may be the folder of a model.
  bool json = false;
};

void declare_evaluate(CLI::App& app, EvaluateCommand& command) {
  std::vector<config::Override>& overrides = command.ranks.overrides;
  app.add_option("model", command.ranks.config,
                 "folder of a Hugging Face model, or JSON file of a run")
      ->required()
      ->type_name("FOLDER|CONFIG");
  declare_key(app, overrides, "--data", "data.path", "PATH: token file, or a folder of them");
  declare_key(app, overrides, "--sequence-length", "model.sequence_length",
              "N: tokens of a sample (of a folder: 512)");
  declare_key(app, overrides, "--run", "run.directory",
              "DIR: whose checkpoints --resume auto takes");
  declare_key(app, overrides, "--resume", "checkpoint.resume",
              "auto | DIR: evaluate the newest whole checkpoint, or that one");
  declare_ranks(app, command.ranks);
  declare_set(app, overrides, "mesh.pipe=2");
  app.add_flag("--json", command.json, "print the result as JSON");
  app.footer(
      "Every sample of the files counts once; a file's last tokens, too few for one, are left "
      "out.\n"
      "Examples:\n"
      "  penstock evaluate SmolLM2-135M --data corpus.bin\n"
      "  penstock evaluate SmolLM2-135M --data corpus.bin --set mesh.pipe=2 --set mesh.data=2\n"
      "  penstock evaluate run.json --data corpus.bin --resume runs/a/checkpoints/step-100");
}

// Initial weights are random, and their loss tells nothing.
void require_weights(const std::string& name, const config::Config& config) {
  if (config.model.type == config::ModelType::HuggingFace) return;
  if (!config.checkpoint.resume.empty()) return;
  throw ConfigError(str(name, ": the configuration names no weights to evaluate"),
                    {"name a checkpoint: --resume DIR, or --run DIR --resume auto"});
}

std::vector<std::string> words_of(const EvaluateCommand& command) {
  return command.json ? std::vector<std::string>{"--json"} : std::vector<std::string>{};
}

int run_evaluate(const EvaluateCommand& command) {
  const RankStart start = start_of_model(command.ranks);
  const config::Config config = start.read().config;
  require_weights(command.ranks.config, config);
  if (config.checkpoint.resume == "auto" && config.run.directory.empty()) {
    throw ConfigError("--resume auto looks for checkpoints in the run directory, and none is given",
                      {"name the directory of the run: --run DIR"});
  }
  check_is_no_pipe("data path", config.data.path);
  const launch::LauncherEnvironment self = launch::from_process_environment();
  if (self.kind == launch::LauncherKind::Nobody) {
    return run_ranks_once("evaluate", words_of(command), command.ranks, start, config);
  }
  refuse_launching(command.ranks, self);
  check_run(start, config, self.world_size);
  if (!self.master_port) {
    throw ConfigError(str("evaluate: ", self.kind, " gives no address at which ranks meet"),
                      {"set MASTER_ADDR and MASTER_PORT, or leave that launcher out"});
  }
  std::vector<std::string> words = {"evaluate"};
  std::ranges::copy(words_of(command), std::back_inserter(words));
  become_rank(words, start);
}

}  // namespace

Command declare_evaluate_command(CLI::App& app) {
  const auto command = std::make_shared<EvaluateCommand>();
  declare_evaluate(app, *command);
  return [command] { return run_evaluate(*command); };
}

}  // namespace penstock::cli
