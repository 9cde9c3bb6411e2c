#include <memory>
#include <utility>

#include "penstock/cli/generation.h"
#include "penstock/cli/memory_file.h"
#include "penstock/cli/overrides.h"
#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/starting.h"
#include "penstock/cli/tokenizer.h"
#include "penstock/core/counted.h"
#include "penstock/core/error.h"
#include "penstock/core/program_output.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/resolve.h"

namespace penstock::cli {
namespace {

using Tokens = std::vector<std::int64_t>;

struct GenerateCommand {
  TrainCommand ranks;                 // Its `config` is the folder of a model.
  std::optional<std::string> prompt;  // Text, in place of tokens.
  bool is_chat = false;               // A user says the prompt.
  Generation generation;
  bool json = false;
};

constexpr const char* kWithoutPython = "give tokens by their numbers: --tokens 1,2,3";

void declare_generate(CLI::App& app, GenerateCommand& command) {
  app.add_option("model", command.ranks.config, "folder of a Hugging Face model")
      ->required()
      ->type_name("FOLDER");
  CLI::Option* const prompt = app.add_option(
      "--prompt", command.prompt, "text to go on from; takes Python, and the folder's tokenizer");
  app.add_flag("--chat", command.is_chat,
               "the prompt is what a user says, by the folder's chat template; prints the answer")
      ->needs(prompt);
  declare_generation(app, command.generation)->excludes(prompt);
  declare_key(app, command.ranks.overrides, "--pipe", "mesh.pipe",
              "N: ranks, each with a stage of the model (1)");
  declare_ranks(app, command.ranks);
  declare_set(app, command.ranks.overrides, "launch.startup_seconds=600");
  app.add_flag("--json", command.json, "print tokens and text as JSON");
  app.footer(
      "It ends behind a token that ends a text, by the folder's generation_config.json.\n"
      "Examples:\n"
      "  penstock generate SmolLM2-135M --prompt \"The capital of France is\"\n"
      "  penstock generate SmolLM2-135M-Instruct --chat --prompt \"Who are you?\"\n"
      "  penstock generate tuned --tokens 504,3575,282 --max-tokens 20 --pipe 2\n"
      "  penstock generate tuned --tokens 504,3575,282 --set mesh.tensor=2\n"
      "  penstock generate tuned --prompt \"def main(\" --temperature 0.8 --top-p 0.9 --seed 1");
}

Tokens prompt_of(const GenerateCommand& command) {
  if (!command.prompt) {
    if (!command.generation.prompt.empty()) return command.generation.prompt;
    throw ConfigError("generate: nothing to go on from",
                      {"give --prompt TEXT, or --tokens N,N with tokens' numbers"});
  }
  const auto encode = command.is_chat ? chat_tokens_of : tokens_of;
  Tokens tokens = encode(*command.prompt, command.ranks.config, kWithoutPython);
  if (!tokens.empty()) return tokens;
  throw ConfigError(str("generate: the prompt ", in_quotes(*command.prompt), " has no tokens"));
}

void refuse_replicas(const config::Config& config, std::int64_t ranks) {
  const mesh::Shape mesh = config::asked_shape(config.mesh);
  const std::int64_t pipe = mesh.size(mesh::Role::Pipe);
  const std::int64_t sharing = mesh.size(mesh::Role::SharedWeights);
  if (pipe * sharing == ranks) return;
  const std::string shared = sharing > 1 ? str(", which ", sharing, " ranks each share") : "";
  throw ConfigError(str("generate: ", counted(ranks, "rank"), ", and ", counted(pipe, "stage"),
                        shared, ": there are no replicas"),
                    {"say how many with --pipe and --set mesh.tensor alone"});
}

// Runs all ranks, which write what they generate to the file `to`.  Returns: their exit code.
int run_ranks(const GenerateCommand& command, const Generation& generation, int to) {
  const RankStart start = start_of_model(command.ranks);
  const config::Config config = start.read().config;
  if (config.model.type != config::ModelType::HuggingFace) {
    throw ConfigError(str("generate: ", quoted_path(command.ranks.config),
                          " is no folder of a Hugging Face model"));
  }
  refuse_replicas(config, local_ranks(command.ranks, config.mesh));
  return run_ranks_once("generate", words_of(generation), command.ranks, start, config,
                        {{kTokensVariable, std::to_string(to)}});
}

Tokens read_tokens(int file) {
  Tokens tokens;
  for (const std::string& line : split(read_whole(file), '\n')) {
    if (const auto token = parse_integer(line)) tokens.push_back(*token);
  }
  return tokens;
}

std::string as_text(const GenerateCommand& command, Tokens prompt, const Tokens& tokens) {
  if (!command.prompt) return join(tokens, ",") + "\n";
  if (command.is_chat) prompt.clear();
  prompt.insert(prompt.end(), tokens.begin(), tokens.end());
  return text_of(prompt, command.ranks.config, kWithoutPython) + "\n";
}

std::string as_json(const GenerateCommand& command, const Tokens& prompt, const Tokens& tokens) {
  const auto text_after = [&] { return text_of(tokens, command.ranks.config, kWithoutPython); };
  const std::string text = command.prompt ? str(", \"text\": ", json_quote(text_after())) : "";
  return str("{\"prompt_tokens\": [", join(prompt, ", "), "], \"tokens\": [", join(tokens, ", "),
             "]", text, "}\n");
}

int run_generate(const GenerateCommand& command) {
  const launch::LauncherEnvironment self = launch::from_process_environment();
  if (self.kind != launch::LauncherKind::Nobody) {
    throw ConfigError(str("generate starts its ranks itself, and this process is rank ", self.rank,
                          " already, started by ", self.kind),
                      {"run it outside that launcher"});
  }
  const Tokens prompt = prompt_of(command);
  const FileDescriptor file = memory_file("penstock-tokens");
  Generation generation = command.generation;
  generation.prompt = prompt;
  const int code = run_ranks(command, generation, file.get());
  if (code != 0) return code;
  const Tokens tokens = read_tokens(file.get());
  if (command.json) {
    write_result(as_json(command, prompt, tokens));
  } else {
    write_result(as_text(command, prompt, tokens), ResultKind::Text);
  }
  return code;
}

}  // namespace

Command declare_generate_command(CLI::App& app) {
  const auto command = std::make_shared<GenerateCommand>();
  declare_generate(app, *command);
  return [command] { return run_generate(*command); };
}

}  // namespace penstock::cli
