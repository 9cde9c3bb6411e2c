#include <memory>
#include <utility>

#include "penstock/cli/generate_command.h"
#include "penstock/cli/memory_file.h"
#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/starting.h"
#include "penstock/cli/tokenizer.h"
#include "penstock/config/resolve.h"
#include "penstock/core/counted.h"
#include "penstock/core/error.h"
#include "penstock/core/output.h"
#include "penstock/core/program_output.h"
#include "penstock/core/text.h"

namespace penstock::cli {
namespace {

using Tokens = std::vector<std::int64_t>;

constexpr const char* kWithoutPython = "give tokens by their numbers: --tokens 1,2,3";

Tokens prompt_of(const GenerateCommand& command) {
  if (!command.prompt) {
    if (!command.tokens.empty()) return command.tokens;
    throw ConfigError("generate: nothing to go on from",
                      {"give --prompt TEXT, or --tokens N,N with tokens' numbers"});
  }
  Tokens tokens = tokens_of(*command.prompt, command.ranks.config, kWithoutPython);
  if (!tokens.empty()) return tokens;
  throw ConfigError(str("generate: the prompt ", in_quotes(*command.prompt), " has no tokens"));
}

void refuse_replicas(const config::Config& config, std::int64_t ranks) {
  const std::int64_t pipe = config::asked_shape(config.mesh).size(mesh::Role::Pipe);
  if (pipe == ranks) return;
  throw ConfigError(str("generate: ", counted(ranks, "rank"), ", and ", counted(pipe, "stage"),
                        ": each rank has one, and there are no replicas"),
                    {"say how many with --pipe alone"});
}

// Runs all ranks, which write what they generate to the file `to`.  Returns: their exit code.
int run_ranks(const GenerateCommand& command, const Tokens& prompt, int to) {
  const config::Config config = read_model(command.ranks).config;
  if (config.model.type != config::ModelType::HuggingFace) {
    throw ConfigError(str("generate: ", quoted_path(command.ranks.config),
                          " is no folder of a Hugging Face model"));
  }
  const std::int64_t nproc = local_ranks(command.ranks, config.mesh);
  refuse_replicas(config, nproc);
  check_run(command.ranks, config, nproc);
  Output output(STDERR_FILENO);
  OutputStream messages(output);
  launch::LaunchOptions options = rank_launch("generate", command.ranks, config, nproc, messages);
  options.stop_note.clear();
  options.environment.emplace_back(kTokensVariable, std::to_string(to));
  for (std::string& word : words_of(command, prompt)) options.program.push_back(std::move(word));
  return launch::launch(options).exit_code;
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
  const int code = run_ranks(command, prompt, file.get());
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
