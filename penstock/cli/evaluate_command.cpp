#include "penstock/cli/evaluate_command.h"

#include "penstock/cli/overrides.h"

namespace penstock::cli {

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

std::vector<std::string> words_of(const EvaluateCommand& command) {
  std::vector<std::string> words = words_of(command.ranks);
  if (command.json) words.emplace_back("--json");
  return words;
}

}  // namespace penstock::cli
