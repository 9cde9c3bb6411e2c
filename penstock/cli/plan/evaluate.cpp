#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>

#include "penstock/cli/overrides.h"
#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/runtime_program.h"
#include "penstock/cli/plan/starting.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/choose/checked_run.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;

struct EvaluateCommand {
  TrainCommand ranks;  // Its `config` may be the folder of a model.
  std::vector<std::string> data;
  bool json = false;
};

void declare_evaluate(CLI::App& app, EvaluateCommand& command) {
  std::vector<config::Override>& overrides = command.ranks.overrides;
  app.add_option("model", command.ranks.config,
                 "folder of a Hugging Face model, or JSON file of a run")
      ->required()
      ->type_name("FOLDER|CONFIG");
  app.add_option("--data", command.data,
                 "token file, or a folder of them; several times: each has a result, by its name "
                 "(default: that of its file)")
      ->type_name("[NAME=]PATH")
      ->allow_extra_args(false);
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
      "  penstock evaluate SmolLM2-135M --data chats=held_out.bin --data code.bin\n"
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

// "NAME=PATH".  A path that is there, or has a folder before the '=', has no name before it.
config::ValidationSet set_in(const std::string& text) {
  std::error_code error;
  const std::size_t at = text.find('=');
  if (at == std::string::npos || at == 0 || text.find('/') < at || fs::exists(text, error)) {
    return {.name = "", .path = text};
  }
  return {.name = text.substr(0, at), .path = text.substr(at + 1)};
}

// Files that have a result each; none where the configuration's data are the only ones.  One alone
// may have no name.
// Throws: ConfigError for two of one name.
std::vector<config::ValidationSet> named_sets(const EvaluateCommand& command) {
  std::vector<config::ValidationSet> sets;
  for (const std::string& text : command.data) sets.push_back(set_in(text));
  if (sets.size() == 1 && sets.front().name.empty()) return sets;
  std::map<std::string, std::string> paths;
  for (config::ValidationSet& set : sets) {
    if (set.path.empty()) throw ConfigError(str("evaluate: --data ", set.name, "= names no file"));
    fs::path path(set.path);
    if (!path.has_filename()) path = path.parent_path();
    if (set.name.empty()) set.name = path.stem().string();
    const auto [other, is_new] = paths.emplace(set.name, set.path);
    if (is_new) continue;
    throw ConfigError(str("evaluate: --data ", quoted_path(other->second), " and ",
                          quoted_path(set.path), " are both named ", in_quotes(set.name)),
                      {"give one of them another name: --data NAME=PATH"});
  }
  return sets;
}

std::vector<std::string> words_of(const EvaluateCommand& command) {
  std::vector<std::string> words;
  if (command.json) words.emplace_back("--json");
  for (const config::ValidationSet& set : named_sets(command)) {
    words.push_back(str("--set=", set.name, "=", set.path));
  }
  return words;
}

int run_evaluate(EvaluateCommand command) {
  const std::vector<config::ValidationSet> sets = named_sets(command);
  const RankStart start = start_of_model(command.ranks);
  const config::Config config = start.read().config;
  require_weights(command.ranks.config, config);
  if (config.checkpoint.resume == "auto" && config.run.directory.empty()) {
    throw ConfigError("--resume auto looks for checkpoints in the run directory, and none is given",
                      {"name the directory of the run: --run DIR"});
  }
  check_is_no_pipe("data path", config.data.path);
  for (const config::ValidationSet& set : sets) {
    check_is_no_pipe("data path", set.path);
    choose::check_data(set.path);
  }
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
