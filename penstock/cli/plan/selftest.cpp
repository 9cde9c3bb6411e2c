#include <memory>

#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/output.h"
#include "penstock/cli/plan/train.h"
#include "penstock/core/counted.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/core/work_folder.h"
#include "penstock/files/checkpoint/checkpoint_directory.h"
#include "penstock/files/checkpoint/difference.h"
#include "penstock/launch/environment.h"
#include "penstock/plan/config/resolve.h"

namespace penstock::cli {
namespace {

using checkpoint::Difference;
using checkpoint::SavedCheckpoint;

struct SelftestCommand {
  TrainCommand train;
  std::int64_t steps = 20;
  double tolerance = 1e-4;
};

// The command with other values of some keys.
TrainCommand with(TrainCommand command,
                  const std::vector<std::pair<std::string, std::string>>& values) {
  for (const auto& [key, value] : values) {
    command.overrides.push_back(
        {.path = key, .value = value, .origin = str("--set ", key, "=", value)});
  }
  return command;
}

// Trains so many steps, with a checkpoint half-way and one at the end.
void train(const SelftestCommand& command, const TrainCommand& changed, const std::string& run) {
  const TrainCommand whole = with(changed, {{"run.directory", run},
                                            {"run.steps", str(command.steps)},
                                            {"run.sample_bytes", "0"},
                                            {"run.eval_batches", "1"},
                                            {"run.save", "\"\""},
                                            {"checkpoint.directory", "\"\""},
                                            {"checkpoint.save_interval", str(command.steps / 2)},
                                            {"checkpoint.keep_last", "0"},
                                            {"checkpoint.on_failure", "stop"}});
  const int code = run_train(whole);
  if (code != 0) {
    throw Error(str("a run of the selftest ended with ", code), {}, static_cast<ExitCode>(code));
  }
}

Difference compare(const std::string& a, const std::string& b) {
  SavedCheckpoint in_a(a), in_b(b);
  return checkpoint::difference(in_a, in_b);
}

std::string first_of(const Difference& difference) {
  const checkpoint::TensorDifference& first = difference.different.front();
  return str(first.state, " of ", in_quotes(first.name), ": ", first.what, ", by ",
             shortest(first.relative), " of the largest value");
}

int say(const std::string& text, bool is_good, WorkFolder& place) {
  if (!is_good) place.keep();
  write_output(str("selftest: ", text, "\n", is_good ? "" : str("runs: ", place.path(), "\n")), "");
  return static_cast<int>(is_good ? ExitCode::Ok : ExitCode::Failure);
}

int run_resume(const SelftestCommand& command) {
  WorkFolder place("selftest");
  const std::int64_t half = command.steps / 2;
  train(command, with(command.train, {{"checkpoint.resume", "\"\""}}), place.file("whole"));
  const std::string from = checkpoint::folder_of(place.file("whole") + "/checkpoints", half);
  train(command, with(command.train, {{"checkpoint.resume", from}}), place.file("resumed"));
  const Difference found =
      compare(checkpoint::folder_of(place.file("resumed") + "/checkpoints", command.steps),
              checkpoint::folder_of(place.file("whole") + "/checkpoints", command.steps));
  if (found.different.empty()) {
    return say(str("a run that is resumed after step ", half, " is, after step ", command.steps,
                   ", bit for bit the one that went on: ", found.equal, " tensors"),
               true, place);
  }
  return say(str(found.different.size(), " of ", found.different.size() + found.equal,
                 " tensors differ from the run that went on; the first is ", first_of(found)),
             false, place);
}

int run_parity(const SelftestCommand& command) {
  WorkFolder place("selftest");
  const config::ReadConfig read = start_of(command.train).read();
  const std::int64_t ranks =
      command.train.nproc > 0 ? command.train.nproc : config::asked_shape(read.config.mesh).size();
  const config::Batch batch =
      config::resolve_batch(read.config.batch, config::resolve_mesh(read.config.mesh, ranks));
  const auto fresh = with(command.train, {{"checkpoint.resume", "\"\""}});
  train(command, fresh, place.file("layout"));
  std::vector<std::pair<std::string, std::string>> changes = {
      {"schedule", "gpipe"},
      {"zero_optimization.stage", "0"},
      {"train_batch_size", str(batch.train_batch_size)},
      {"train_micro_batch_size_per_gpu", str(batch.micro_batch_size)},
      {"gradient_accumulation_steps", "null"}};
  for (const mesh::AxisRow& axis : mesh::kAxes) changes.emplace_back(str("mesh.", axis.name), "1");
  TrainCommand one = with(fresh, changes);
  one.nproc = 1;
  train(command, one, place.file("one_process"));
  const Difference found =
      compare(checkpoint::folder_of(place.file("layout") + "/checkpoints", command.steps),
              checkpoint::folder_of(place.file("one_process") + "/checkpoints", command.steps));
  if (found.different.empty()) {
    return say(str("after ", command.steps,
                   " steps this layout has, bit for bit, what one process "
                   "has: ",
                   found.equal, " tensors"),
               true, place);
  }
  const bool must_be_equal = read.config.numerics.invariant;
  const bool is_good = !must_be_equal && found.largest() <= command.tolerance;
  return say(str("after ", counted(command.steps, "step"), " ", found.different.size(), " of ",
                 found.different.size() + found.equal,
                 " tensors differ from those of one process, "
                 "by ",
                 shortest(found.largest()), " of their largest value at most; allowed are ",
                 must_be_equal ? "none, with numerics.invariant" : shortest(command.tolerance),
                 "; the first is ", first_of(found)),
             is_good, place);
}

}  // namespace

Command declare_selftest_command(CLI::App& app) {
  const auto command = std::make_shared<SelftestCommand>();
  CLI::App* const resume = app.add_subcommand(
      "resume", "prove that a resumed run of a config is bit for bit one that never stopped");
  CLI::App* const parity =
      app.add_subcommand("parity", "compare a config's layout with a single process");
  for (CLI::App* const inner : {resume, parity}) {
    declare_train(*inner, command->train);
    inner->remove_option(inner->get_option("--steps"));
    inner->add_option("--steps", command->steps, "optimizer steps of each run; even")
        ->type_name("N")
        ->check(CLI::Range(2, 1 << 30));
  }
  parity
      ->add_option("--tolerance", command->tolerance,
                   "largest difference, as a share of a tensor's largest value")
      ->type_name("R")
      ->check(CLI::NonNegativeNumber);
  app.require_subcommand(1);
  app.footer(
      "Each trains the config twice, for a few steps, in a folder for temporary files.\n"
      "Exit codes: 0 as it should be, 1 it differs, else that of a run that failed.\n"
      "Examples:\n"
      "  penstock selftest resume examples/gpt.json\n"
      "  penstock selftest parity examples/gpt.json --set zero_optimization.stage=3");
  return [command, resume] {
    const launch::LauncherEnvironment self = launch::from_process_environment();
    if (self.kind != launch::LauncherKind::Nobody) {
      throw ConfigError(str("a selftest starts its ranks itself, and this process is rank ",
                            self.rank, " already, started by ", self.kind),
                        {"run it outside that launcher"});
    }
    if (command->steps % 2 != 0) {
      throw ConfigError(str("--steps ", command->steps,
                            " must be even: the second run begins "
                            "half-way"));
    }
    return resume->parsed() ? run_resume(*command) : run_parity(*command);
  };
}

}  // namespace penstock::cli
