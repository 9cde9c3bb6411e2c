#include <memory>
#include <utility>

#include "penstock/cli/evaluate_command.h"
#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/runtime_program.h"
#include "penstock/cli/plan/starting.h"
#include "penstock/cli/plan/training_plan.h"
#include "penstock/core/error.h"
#include "penstock/core/output.h"
#include "penstock/core/text.h"

namespace penstock::cli {
namespace {

// Initial weights are random, and their loss tells nothing.
void require_weights(const std::string& name, const config::Config& config) {
  if (config.model.type == config::ModelType::HuggingFace) return;
  if (!config.checkpoint.resume.empty()) return;
  throw ConfigError(str(name, ": the configuration names no weights to evaluate"),
                    {"name a checkpoint: --resume DIR, or --run DIR --resume auto"});
}

int start_ranks(const EvaluateCommand& command, const config::Config& config) {
  const std::int64_t nproc = local_ranks(command.ranks, config.mesh);
  check_run(command.ranks, config, nproc);
  Output output(STDERR_FILENO);
  OutputStream messages(output);
  launch::LaunchOptions options = rank_launch("evaluate", command.ranks, config, nproc, messages);
  options.stop_note.clear();
  for (std::string& word : words_of(command)) options.program.push_back(std::move(word));
  return launch::launch(options).exit_code;
}

int run_evaluate(const EvaluateCommand& command) {
  const config::Config config = read_model(command.ranks).config;
  require_weights(command.ranks.config, config);
  if (config.checkpoint.resume == "auto" && config.run.directory.empty()) {
    throw ConfigError("--resume auto looks for checkpoints in the run directory, and none is given",
                      {"name the directory of the run: --run DIR"});
  }
  check_is_no_pipe("data path", config.data.path);
  const launch::LauncherEnvironment self = launch::from_process_environment();
  if (self.kind == launch::LauncherKind::Nobody) return start_ranks(command, config);
  refuse_launching(command.ranks, self);
  check_run(command.ranks, config, self.world_size);
  if (!self.master_port) {
    throw ConfigError(str("evaluate: ", self.kind, " gives no address at which ranks meet"),
                      {"set MASTER_ADDR and MASTER_PORT, or leave that launcher out"});
  }
  std::vector<std::string> words = {runtime_program(), "evaluate"};
  for (std::string& word : words_of(command)) words.push_back(std::move(word));
  become(words);
}

}  // namespace

Command declare_evaluate_command(CLI::App& app) {
  const auto command = std::make_shared<EvaluateCommand>();
  declare_evaluate(app, *command);
  return [command] { return run_evaluate(*command); };
}

}  // namespace penstock::cli
