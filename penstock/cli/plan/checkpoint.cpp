#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>

#include "penstock/checkpoint/checkpoint_directory.h"
#include "penstock/checkpoint/difference.h"
#include "penstock/checkpoint/saved_checkpoint.h"
#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/output.h"
#include "penstock/cli/plan/text_table.h"
#include "penstock/core/error.h"
#include "penstock/core/output.h"
#include "penstock/core/text.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::Found;
using checkpoint::Manifest;
using checkpoint::SavedCheckpoint;

struct CheckpointCommand {
  std::string path;
  std::string other;  // For diff.
  checkpoint::Keep keep;
  bool json = false;
};

bool is_checkpoint(const std::string& path) {
  return fs::exists(str(path, "/", checkpoint::kManifestName));
}

// `path`, or the checkpoints of the run directory that it is.
std::string directory_in(const std::string& path) {
  if (!fs::is_directory(path)) throw ConfigError(str(quoted_path(path), " is not a directory"));
  const std::string inner = path + "/checkpoints";
  return fs::is_directory(inner) ? inner : path;
}

// The checkpoint itself, or all of a directory or a run, newest first.
std::vector<Found> found_in(const std::string& path) {
  if (is_checkpoint(path)) return {{.folder = path}};
  const std::string directory = directory_in(path);
  auto all = checkpoint::checkpoints_in(directory);
  if (all.empty()) throw ConfigError(str("no checkpoint in ", quoted_path(directory)));
  return all;
}

std::string newest_in(const std::string& path) { return found_in(path).front().folder; }

std::string mebibytes(std::uint64_t bytes) { return str((bytes + (1 << 19)) >> 20, " MiB"); }

std::string fact(const Manifest& manifest, const std::string& key) {
  const auto found = manifest.facts.find(key);
  return found == manifest.facts.end() ? "" : found->second;
}

int run_ls(const CheckpointCommand& command) {
  std::vector<TextRow> rows = {{"step", "size", "shards", "tensors", "mesh", "folder"}};
  std::vector<std::string> objects;
  bool all_good = true;
  for (const Found& each : found_in(command.path)) {
    std::optional<SavedCheckpoint> saved;
    std::string problem;
    try {
      saved.emplace(each.folder);
    } catch (const CheckpointError& error) {
      problem = error.message();
      all_good = false;
    }
    if (!saved) {
      rows.push_back({str(each.step), "", "", "", "", str(each.folder, "  ", problem)});
      objects.push_back(str("{\"step\": ", each.step, ", \"folder\": ", json_quote(each.folder),
                            ", \"problem\": ", json_quote(problem), "}"));
      continue;
    }
    const Manifest& manifest = saved->manifest();
    rows.push_back({str(manifest.step), mebibytes(manifest.bytes()), str(manifest.shards.size()),
                    str(manifest.tensors.size()), fact(manifest, "mesh"), each.folder});
    objects.push_back(str("{\"step\": ", manifest.step, ", \"folder\": ", json_quote(each.folder),
                          ", \"bytes\": ", manifest.bytes(), ", \"shards\": ",
                          manifest.shards.size(), ", \"tensors\": ", manifest.tensors.size(), "}"));
  }
  write_output(command.json ? str("[", join(objects, ",\n "), "]\n") : text_table(rows), "");
  return static_cast<int>(all_good ? ExitCode::Ok : ExitCode::Checkpoint);
}

int run_show(const CheckpointCommand& command) {
  const SavedCheckpoint saved(newest_in(command.path));
  const Manifest& manifest = saved.manifest();
  if (command.json) {
    write_output(checkpoint::to_text(manifest), "");
    return static_cast<int>(ExitCode::Ok);
  }
  std::string text =
      str("checkpoint: ", saved.folder(), "\nstep: ", manifest.step,
          "\nsize: ", mebibytes(manifest.bytes()), " in ", manifest.shards.size(), " shards\n");
  for (const auto& [key, value] : manifest.facts) text += str(key, ": ", value, "\n");
  for (const auto& [key, value] : manifest.values) {
    constexpr std::size_t kShown = 200;
    const bool is_long = value.size() > kShown;  // As those of Python's engines are.
    text += str(key, ": ", is_long ? str(value.size(), " characters") : value, "\n");
  }
  std::vector<TextRow> rows = {{"tensor", "type", "pieces", "state"}};
  for (const checkpoint::Tensor& each : manifest.tensors) {
    if (each.state == checkpoint::kValue) continue;
    rows.push_back({each.name, type_and_shape(each), str(each.pieces.size()), each.state});
  }
  write_output(text + "\n" + text_table(rows), "");
  return static_cast<int>(ExitCode::Ok);
}

int run_import(const CheckpointCommand&) {
  throw ConfigError("files of torch.save() are read by Python alone",
                    {"with the Python package of penstock: python -m penstock checkpoint import "
                     "FROM TO"});
}

int run_verify(const CheckpointCommand& command) {
  Output progress(STDERR_FILENO);
  int exit_code = static_cast<int>(ExitCode::Ok);
  std::string text;
  std::vector<std::string> objects;
  for (const Found& each : found_in(command.path)) {
    std::string problem;
    try {
      SavedCheckpoint saved(each.folder);
      const std::uint64_t chunks = saved.manifest().bytes() / checkpoint::kChunkBytes + 1;
      std::uint64_t done = 0;
      saved.verify([&] {
        constexpr std::uint64_t kTellEvery = 4096;
        if (++done % kTellEvery != 0) return;
        progress.write(str(each.folder, ": ", done, " of ", chunks, " MiB\n"));
      });
    } catch (const CheckpointError& error) {
      problem = error.what();
      exit_code = static_cast<int>(ExitCode::Checkpoint);
    }
    text += str(each.folder, ": ", problem.empty() ? "as it was written" : problem, "\n");
    objects.push_back(str("{\"folder\": ", json_quote(each.folder),
                          ", \"ok\": ", problem.empty() ? "true" : "false",
                          ", \"problem\": ", json_quote(problem), "}"));
  }
  write_output(command.json ? str("[", join(objects, ",\n "), "]\n") : text, "");
  return exit_code;
}

int run_diff(const CheckpointCommand& command) {
  SavedCheckpoint a(newest_in(command.path)), b(newest_in(command.other));
  const checkpoint::Difference found = checkpoint::difference(a, b);
  std::vector<TextRow> rows;
  for (const checkpoint::TensorDifference& each : found.different) {
    const bool has_size = std::isfinite(each.relative);
    rows.push_back({str(each.state, " of ", each.name),
                    has_size
                        ? str(each.what, ", by ", shortest(each.relative), " of the largest value")
                        : each.what});
  }
  const std::size_t different = rows.size();
  write_output(str("A: ", a.folder(), ", step ", a.manifest().step, "\nB: ", b.folder(), ", step ",
                   b.manifest().step, "\n", found.equal, " tensors are equal, ", different,
                   different == 1 ? " is not\n" : " are not\n", text_table(rows)),
               "");
  return static_cast<int>(different == 0 ? ExitCode::Ok : ExitCode::Failure);
}

int run_prune(const CheckpointCommand& command) {
  const std::string path = directory_in(command.path);
  const checkpoint::CheckpointDirectory directory(path);
  const auto all = checkpoint::checkpoints_in(path);
  if (!all.empty()) SavedCheckpoint(all.front().folder).verify();  // The one to fall back on.
  std::string text;
  for (const Found& old : checkpoint::not_kept(all, command.keep)) {
    directory.remove(old);
    text += str("removed ", old.folder, "\n");
  }
  write_output(text, "");
  return static_cast<int>(ExitCode::Ok);
}

}  // namespace

Command declare_checkpoint_command(CLI::App& app) {
  const auto command = std::make_shared<CheckpointCommand>();
  std::vector<std::pair<CLI::App*, int (*)(const CheckpointCommand&)>> all;
  const auto declare = [&](const char* name, const char* help, auto run) {
    CLI::App* const inner = app.add_subcommand(name, help);
    inner
        ->add_option("path", command->path, "a checkpoint, a directory of them, or a run directory")
        ->required()
        ->type_name("PATH");
    all.emplace_back(inner, run);
    return inner;
  };
  const auto with_json = [&](CLI::App* inner) {
    inner->add_flag("--json", command->json, "print JSON");
  };
  with_json(declare("ls", "the checkpoints, newest first", run_ls));
  with_json(declare("show", "what a checkpoint has", run_show));
  with_json(declare("verify", "read all of it, and compare it with its digests", run_verify));
  declare("diff", "which tensors of two checkpoints differ", run_diff)
      ->add_option("other", command->other, "the other one")
      ->required()
      ->type_name("PATH");
  declare("import", "make one of a checkpoint of DeepSpeed or torch.distributed.checkpoint",
          run_import)
      ->add_option("to", command->other, "the folder to be made")
      ->required()
      ->type_name("TO");
  CLI::App* const prune = declare("prune", "remove old checkpoints", run_prune);
  prune->add_option("--keep-last", command->keep.last, "so many of the newest stay")
      ->required()
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 30));
  prune->add_option("--keep-every", command->keep.every, "and those of steps that it divides")
      ->type_name("M")
      ->check(CLI::Range(1, 1 << 30));
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 ok, 1 different (diff), 2 bad input, 3 damaged.\n"
      "Examples:\n"
      "  penstock checkpoint ls runs/gpt-20260102-030405\n"
      "  penstock checkpoint verify runs/gpt-20260102-030405/checkpoints/step-00000400\n"
      "  penstock checkpoint prune runs/gpt-20260102-030405 --keep-last 1 --keep-every 1000");
  return [command, all] {
    for (const auto& [inner, run] : all) {
      if (inner->parsed()) return run(*command);
    }
    return static_cast<int>(ExitCode::Usage);
  };
}

}  // namespace penstock::cli
