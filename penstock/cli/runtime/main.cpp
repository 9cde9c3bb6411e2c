// `penstock-runtime`: the commands that need tensors.  `penstock` starts it; users do not.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "penstock/cli/emulate_command.h"
#include "penstock/cli/generation.h"
#include "penstock/cli/memory_command.h"
#include "penstock/cli/profile_command.h"
#include "penstock/cli/rank_start.h"
#include "penstock/cli/runtime/emulate.h"
#include "penstock/cli/runtime/generate.h"
#include "penstock/cli/runtime/memory.h"
#include "penstock/cli/runtime/merge.h"
#include "penstock/cli/runtime/profile.h"
#include "penstock/cli/runtime/rank.h"
#include "penstock/cli/runtime/verify_run.h"
#include "penstock/cli/usage.h"
#include "penstock/core/error.h"
#include "penstock/core/standard_streams.h"
#include "penstock/core/text.h"
#include "penstock/core/version.h"
#include "penstock/run/run.h"
#include "penstock/runtime/run/evaluate.h"

namespace {

void check_launcher_version() {
  const char* version = std::getenv(penstock::cli::kVersionVariable);
  if (version == nullptr || std::string(version) == penstock::kVersion) return;
  throw penstock::ConfigError(penstock::str("penstock ", version, " started penstock-runtime ",
                                            penstock::kVersion, ": two versions are mixed"),
                              {"build or install both together"});
}

int run(int argc, char** argv) {
  CLI::App app("The part of penstock that needs torch; run `penstock` instead.");
  app.require_subcommand(1);
  std::string name;  // The configuration's, for those who list processes.
  app.add_subcommand("train", "be one rank of a run")->add_option("name", name);
  bool json = false;
  CLI::App* evaluate = app.add_subcommand("evaluate", "be one rank of an evaluation");
  evaluate->add_flag("--json", json);
  std::vector<std::string> sets;  // NAME=PATH.
  evaluate->add_option("--set", sets)->allow_extra_args(false);
  penstock::cli::Generation generation;
  CLI::App* generate = app.add_subcommand("generate", "be one rank that generates");
  penstock::cli::declare_generation(*generate, generation);
  penstock::cli::declare_ends(*generate, generation);
  penstock::cli::MemoryCommand memory_command;
  CLI::App* memory = app.add_subcommand("memory", "tell the memory of a run");
  penstock::cli::declare_memory(*memory, memory_command);
  penstock::cli::ProfileCommand profile_command;
  CLI::App* profile = app.add_subcommand("profile", "measure the layers of a model");
  penstock::cli::declare_profile(*profile, profile_command);
  penstock::cli::EmulateCommand emulate_command;
  CLI::App* emulate = app.add_subcommand("emulate", "go through a step on virtual devices");
  penstock::cli::declare_emulate(*emulate, emulate_command);
  penstock::cli::VerifyRun verify_run;
  CLI::App* verify = app.add_subcommand("verify", "prove a run before it starts");
  penstock::cli::declare_verify_run(*verify, verify_run);
  penstock::cli::MergeCommand merge_command;
  CLI::App* merge = app.add_subcommand("merge", "add adapters to a model's weights");
  merge->add_option("adapters", merge_command.adapters)->required();
  merge->add_option("model", merge_command.model)->required();
  merge->add_option("to", merge_command.to)->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // Help.
    throw penstock::cli::usage_error(app, error);
  }
  if (verify->parsed()) return penstock::cli::run_verify_run(verify_run);
  if (memory->parsed()) return penstock::cli::run_memory(memory_command);
  if (emulate->parsed()) return penstock::cli::run_emulate(emulate_command);
  if (profile->parsed()) return penstock::cli::run_profile(profile_command);
  check_launcher_version();
  if (merge->parsed()) return penstock::cli::run_merge(merge_command);
  if (evaluate->parsed()) {
    penstock::run::Evaluated what;
    if (json) what.form = penstock::ResultForm::Json;
    for (const std::string& set : sets) {
      const std::size_t at = set.find('=');
      what.sets.push_back({.name = set.substr(0, at), .path = set.substr(at + 1)});
    }
    const auto work = [&](auto&&... all) { return penstock::run::evaluate(all..., what); };
    return penstock::cli::run_rank(penstock::cli::handed_on(), work);
  }
  if (generate->parsed()) return penstock::cli::run_generate(generation);
  return penstock::cli::run_rank(penstock::cli::handed_on(), penstock::run::run);
}

}  // namespace

int main(int argc, char** argv) {
  penstock::open_missing_streams();
  // torch's own log tells in many lines what our errors tell in one; a user's choice stays.
  ::setenv("TORCH_CPP_LOG_LEVEL", "FATAL", /*overwrite=*/0);
  return penstock::cli::exit_code_of([&] { return run(argc, argv); });
}
