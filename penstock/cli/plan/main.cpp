// `penstock`: plans, launches, and starts in milliseconds, because it does without torch.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/runtime_program.h"
#include "penstock/cli/usage.h"
#include "penstock/core/error.h"
#include "penstock/core/standard_streams.h"
#include "penstock/core/text.h"
#include "penstock/core/version.h"

#ifndef PENSTOCK_TORCH_VERSION
#define PENSTOCK_TORCH_VERSION ""
#endif

namespace {

using penstock::ExitCode;

std::string version_text() {
  const std::string torch = penstock::cli::has_runtime_program() ? PENSTOCK_TORCH_VERSION : "";
  return penstock::str(
      "penstock ", penstock::kVersion, "\n", "compiler ", penstock::kCompiler, ", ",
      penstock::kBuildType, "\n",
      torch.empty() ? "torch none (planning only)\ntransports none"
                    : "torch " + torch + "\ntransports shm, tcp, gloo; nccl between CUDA devices");
}

// The place where another program's words begin: behind the options of `run`, or at "--".
char** end_of_own_words(const CLI::App& app, char** begin, char** end) {
  char** const separator =
      std::find_if(begin, end, [](const char* word) { return std::string(word) == "--"; });
  if (begin + 1 >= end || std::string(begin[1]) != "run") return separator;
  const CLI::App* run = app.get_subcommand("run");
  for (char** word = begin + 2; word < separator; ++word) {
    const std::string text = *word;
    if (!text.starts_with('-')) return word;
    const CLI::Option* option = run->get_option_no_throw(text);
    if (option != nullptr && option->get_items_expected_max() > 0) ++word;
  }
  return separator;
}

int run(int argc, char** argv) {
  CLI::App app("penstock trains models by pipeline x data parallelism.", "penstock");
  app.set_version_flag("--version", version_text);
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  penstock train examples/gpt.json                         train, a process per rank\n"
      "  penstock evaluate DIR --data corpus.bin                  perplexity of a model's folder\n"
      "  penstock generate DIR --prompt \"Once upon\"               go on with a text\n"
      "  penstock schedule 1f1b --ranks 4 --microbatches 8        print a schedule\n"
      "  penstock schedule compare --ranks 4 --microbatches 8     all that fit, side by side\n"
      "  penstock simulate mine.csv --forward 1 --backward 2      price a schedule of your own\n"
      "  penstock search --ranks 4 --microbatches 8 -o best.csv   find a faster one\n"
      "  penstock plan gpt.json --world 64 --memory 80GB ...      rank the layouts of a model\n"
      "  penstock config check ds_config.json                     what DeepSpeed's keys come to\n"
      "  penstock launch --nproc 2 -- python3 script.py           start any program's ranks\n"
      "  penstock run --hostfile hosts train.py ARGS              the same on several hosts\n"
      "Exit codes: 0 ok, 1 failed (verify, diff, simulate: the answer is no), 2 usage or config,\n"
      "3 checkpoints and weights, 4 a rank was lost, 5 hang, 6 not finite, 75 stopped before the "
      "end, 130 Ctrl-C.");
  penstock::cli::Words own, program;
  bool is_any_program = false;
  std::vector<std::pair<CLI::App*, penstock::cli::Command>> commands;
  const auto declare = [&](const char* name, const char* help, const auto& declare_command) {
    CLI::App* subcommand = app.add_subcommand(name, help);
    commands.emplace_back(subcommand, declare_command(*subcommand));
  };
  declare("train", "train a model from a config", penstock::cli::declare_train_command);
  declare("evaluate", "the loss and the perplexity of a model on token files",
          penstock::cli::declare_evaluate_command);
  declare("generate", "tokens, or text, that a model puts behind a prompt",
          penstock::cli::declare_generate_command);
  declare("launch", "start a program's ranks on this machine",
          [&](CLI::App& launch) { return penstock::cli::declare_launch_command(launch, program); });
  declare("run", "start a script's ranks on several hosts, as deepspeed does", [&](CLI::App& run) {
    return penstock::cli::declare_run_command(run, program, is_any_program);
  });
  declare("host", "a host's part of penstock run", penstock::cli::declare_host_command);
  declare("schedule", "print, draw or compare pipeline schedules",
          penstock::cli::declare_schedule_command);
  declare("verify", "prove that a schedule can run, or say why not",
          [&](CLI::App& verify) { return penstock::cli::declare_verify_command(verify, own); });
  declare("simulate", "when each action of a schedule would run, given its costs",
          penstock::cli::declare_simulate_command);
  declare("search", "find the fastest schedule for given ranks, costs and memory",
          penstock::cli::declare_search_command);
  declare("plan", "rank the layouts of a model on so many ranks, fastest first",
          penstock::cli::declare_plan_command);
  declare("report", "a run's measured steps beside the simulated one, and costs fitted to them",
          penstock::cli::declare_report_command);
  declare("config", "what penstock makes of a configuration written for DeepSpeed",
          penstock::cli::declare_config_command);
  declare("memory", "what a run takes on each rank, told before it starts",
          [&](CLI::App& memory) { return penstock::cli::declare_memory_command(memory, own); });
  declare("profile", "how long the layers of a model take on this machine, as costs to plan with",
          [&](CLI::App& profile) { return penstock::cli::declare_profile_command(profile, own); });
  declare("emulate", "a step of a run on devices that are not there: its time, memory and counts",
          [&](CLI::App& emulate) { return penstock::cli::declare_emulate_command(emulate, own); });
  declare("checkpoint", "list, verify, compare, export and remove checkpoints",
          penstock::cli::declare_checkpoint_command);
  declare("selftest", "prove resume, or compare a layout with one process, for your own config",
          penstock::cli::declare_selftest_command);
  char** const end = end_of_own_words(app, argv, argv + argc);
  is_any_program = end != argv + argc && std::string(*end) == "--";
  own.assign(std::min(argv + 1, end), end);
  program.assign(std::min(end + (is_any_program ? 1 : 0), argv + argc), argv + argc);
  try {
    app.parse(static_cast<int>(end - argv), argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // Help or version.
    throw penstock::cli::usage_error(app, error);
  }
  for (const auto& [subcommand, command] : commands) {
    if (!subcommand->parsed()) continue;
    const std::string& name = subcommand->get_name();
    if (!program.empty() && name != "launch" && name != "run") {
      throw penstock::ConfigError(
          penstock::str(name, ": unexpected word \"", program.front(), "\" after --"));
    }
    return command();
  }
  return static_cast<int>(ExitCode::Usage);
}

}  // namespace

int main(int argc, char** argv) {
  penstock::open_missing_streams();
  std::signal(SIGPIPE, SIG_IGN);
  return penstock::cli::exit_code_of([&] { return run(argc, argv); });
}
