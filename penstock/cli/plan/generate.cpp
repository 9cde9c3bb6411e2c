#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include "penstock/cli/generation.h"
#include "penstock/cli/overrides.h"
#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/conversation.h"
#include "penstock/cli/plan/rank_zero.h"
#include "penstock/cli/plan/starting.h"
#include "penstock/cli/plan/talk.h"
#include "penstock/core/background_thread.h"
#include "penstock/core/counted.h"
#include "penstock/core/error.h"
#include "penstock/core/program_output.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/resolve.h"

namespace penstock::cli {
namespace {

struct GenerateCommand {
  TrainCommand ranks;                 // Its `config` is the folder of a model.
  std::optional<std::string> prompt;  // Text, in place of tokens.
  bool is_chat = false;               // A user says the prompt.
  bool is_interactive = false;        // A chat of many turns.
  Generation generation;
  bool json = false;
};

constexpr const char* kWithoutPython = "give tokens by their numbers: --tokens 1,2,3";
constexpr std::int64_t kTokensOfTextMax = 64, kTokensOfAnswerMax = 512;
// The wait for whoever reads a text, when its ranks were stopped.
constexpr std::chrono::seconds kReaderPatience{10};

void declare_generate(CLI::App& app, GenerateCommand& command) {
  app.add_option("model", command.ranks.config, "folder of a Hugging Face model")
      ->required()
      ->type_name("FOLDER");
  CLI::Option* const prompt = app.add_option(
      "--prompt", command.prompt, "text to go on from; takes Python, and the folder's tokenizer");
  app.add_flag("--chat", command.is_chat,
               "the prompt is what a user says, by the folder's chat template; prints the answer")
      ->needs(prompt);
  CLI::Option* const tokens = declare_generation(app, command.generation)->excludes(prompt);
  app.add_flag("--interactive", command.is_interactive,
               "chat: each line of the input is what a user says")
      ->excludes(prompt)
      ->excludes(tokens);
  declare_key(app, command.ranks.overrides, "--pipe", "mesh.pipe",
              "N: ranks, each with a stage of the model (1)");
  declare_ranks(app, command.ranks);
  declare_set(app, command.ranks.overrides, "launch.startup_seconds=600");
  app.add_flag("--json", command.json, "print tokens and text as JSON, once all are there");
  app.footer(
      "It ends behind a token that ends a text, by the folder's generation_config.json, and in a\n"
      "chat by its template.\n"
      "Examples:\n"
      "  penstock generate SmolLM2-135M --prompt \"The capital of France is\"\n"
      "  penstock generate SmolLM2-135M-Instruct --chat --prompt \"Who are you?\"\n"
      "  penstock generate SmolLM2-135M-Instruct --interactive --temperature 0.7\n"
      "  penstock generate tuned --tokens 504,3575,282 --max-tokens 20 --pipe 2\n"
      "  penstock generate tuned --tokens 504,3575,282 --set mesh.tensor=2\n"
      "  penstock generate tuned --prompt \"def main(\" --temperature 0.8 --top-p 0.9 --seed 1");
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

// What the answer goes on from: tokens, and the text that is shown ahead of it.
Talk::Prompt prompt_of(const GenerateCommand& command, Talk* talk) {
  if (talk == nullptr) {
    if (!command.generation.prompt.empty()) return {.tokens = command.generation.prompt};
    throw ConfigError("generate: nothing to go on from",
                      {"give --prompt TEXT, or --tokens N,N with tokens' numbers",
                       "--interactive takes what is typed"});
  }
  Talk::Prompt prompt = command.is_chat ? Talk::Prompt{.tokens = talk->say(*command.prompt)}
                                        : talk->prompt(*command.prompt);
  if (!prompt.tokens.empty()) return prompt;
  throw ConfigError(str("generate: the prompt ", in_quotes(*command.prompt), " has no tokens"));
}

// The start of ranks that are one pipeline.
RankStart start_of_ranks(const GenerateCommand& command) {
  const RankStart start = start_of_model(command.ranks);
  const config::Config config = start.read().config;
  if (config.model.type != config::ModelType::HuggingFace) {
    throw ConfigError(str("generate: ", quoted_path(command.ranks.config),
                          " is no folder of a Hugging Face model"));
  }
  refuse_replicas(config, local_ranks(command.ranks, config.mesh));
  return start;
}

// All tokens of an answer.
Talk::Tokens whole_answer(RankZero& model) {
  Talk::Tokens tokens;
  while (true) {
    const RankZero::Heard heard = model.hear();
    tokens.insert(tokens.end(), heard.tokens.begin(), heard.tokens.end());
    if (!heard.end.empty() || heard.is_gone) return tokens;
  }
}

std::string as_json(const Talk::Tokens& prompt, const Talk::Tokens& tokens, Talk* talk) {
  std::string text;
  if (talk != nullptr) {
    const std::string begin = talk->hear(tokens);
    text = str(", \"text\": ", json_quote(begin + talk->end()));
  }
  return str("{\"prompt_tokens\": [", join(prompt, ", "), "], \"tokens\": [", join(tokens, ", "),
             "]", text, "}\n");
}

// Runs all ranks, and `beside` them in a thread.  Where they failed or were stopped, and it still
// waits for a reader, the process ends without it.
// Returns: their exit code.  Throws: what `beside` throws, of ranks that ended in good order.
int run_ranks(const GenerateCommand& command, const RankStart& start, const Generation& generation,
              RankZero& model, const std::function<void()>& beside,
              const std::function<void()>& interrupted) {
  std::exception_ptr error, error_beside;
  std::promise<void> over;
  std::thread thread = start_background_thread([&] {
    try {
      beside();
    } catch (...) {
      error_beside = std::current_exception();
      model.give_up();
    }
    over.set_value();
  });
  int code = 0;
  try {
    code = run_ranks_once("generate", words_of(generation), command.ranks, start,
                          start.read().config, model.variables(), interrupted);
  } catch (...) {
    error = std::current_exception();
  }
  model.ranks_have_ended();
  const auto timeout = std::future_status::timeout;
  if (code != 0 && over.get_future().wait_for(kReaderPatience) == timeout) std::_Exit(code);
  thread.join();
  if (error) std::rethrow_exception(error);
  if (error_beside && code == 0) std::rethrow_exception(error_beside);
  return code;
}

int run_generate(const GenerateCommand& command) {
  const launch::LauncherEnvironment self = launch::from_process_environment();
  if (self.kind != launch::LauncherKind::Nobody) {
    throw ConfigError(str("generate starts its ranks itself, and this process is rank ", self.rank,
                          " already, started by ", self.kind),
                      {"run it outside that launcher"});
  }
  const bool is_chat = command.is_chat || command.is_interactive;
  const RankStart start = start_of_ranks(command);
  std::optional<Talk> talk;
  if (command.prompt || command.is_interactive) {
    talk.emplace(command.ranks.config, is_chat ? Talk::Kind::Chat : Talk::Kind::Text,
                 kWithoutPython);
  }
  Talk* const texts = talk ? &*talk : nullptr;
  Generation generation = command.generation;
  const std::int64_t tokens_max =
      generation.tokens_max.value_or(is_chat ? kTokensOfAnswerMax : kTokensOfTextMax);
  generation.tokens_max = tokens_max;
  if (is_chat) generation.ends = texts->ends();
  RankZero model;
  Conversation conversation(model, texts);
  if (command.is_interactive) {
    return run_ranks(
        command, start, generation, model, [&] { conversation.chat(tokens_max); },
        [&] { conversation.interrupt(); });
  }
  const Talk::Prompt prompt = prompt_of(command, texts);
  generation.prompt = prompt.tokens;
  if (!command.json) {
    return run_ranks(command, start, generation, model, [&] { conversation.answer(prompt.text); },
                     {});
  }
  Talk::Tokens tokens;
  const int code =
      run_ranks(command, start, generation, model, [&] { tokens = whole_answer(model); }, {});
  if (code == 0) write_result(as_json(prompt.tokens, tokens, texts));
  return code;
}

}  // namespace

Command declare_generate_command(CLI::App& app) {
  const auto command = std::make_shared<GenerateCommand>();
  declare_generate(app, *command);
  return [command] { return run_generate(*command); };
}

}  // namespace penstock::cli
