#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>

#include "penstock/checkpoint/saved_checkpoint.h"
#include "penstock/cli/plan/checkpoint_commands.h"
#include "penstock/cli/plan/commands.h"
#include "penstock/cli/plan/output.h"
#include "penstock/cli/plan/runtime_program.h"
#include "penstock/cli/text_table.h"
#include "penstock/core/byte_size.h"
#include "penstock/core/counted.h"
#include "penstock/core/error.h"
#include "penstock/core/output_lock.h"
#include "penstock/core/program_output.h"
#include "penstock/core/progress_lines.h"
#include "penstock/core/text.h"
#include "penstock/files/checkpoint/checkpoints_at.h"
#include "penstock/files/checkpoint/difference.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::Found;
using checkpoint::Manifest;
using checkpoint::SavedCheckpoint;

std::string fact(const Manifest& manifest, const std::string& key) {
  const auto found = manifest.facts.find(key);
  return found == manifest.facts.end() ? "" : found->second;
}

int run_ls(const CheckpointCommand& command) {
  std::vector<TextRow> rows = {{"step", "size", "shards", "tensors", "mesh", "folder"}};
  std::vector<std::string> objects;
  bool all_good = true;
  for (const Found& each : checkpoint::checkpoints_at(command.path)) {
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

// The boxes that ranks which share a layer have of a tensor, each once; "" of one that all have.
std::string boxes_of(const checkpoint::Tensor& tensor) {
  std::vector<std::string> boxes;
  for (const checkpoint::Piece& piece : tensor.pieces) {
    const std::string box = penstock::to_string(piece.box);
    if (!box.empty() && (boxes.empty() || boxes.back() != box)) boxes.push_back(box);
  }
  return join(boxes, " ");
}

int run_show(const CheckpointCommand& command) {
  const SavedCheckpoint saved(newest_at(command.path));
  const Manifest& manifest = saved.manifest();
  if (command.json) {
    write_output(checkpoint::to_text(manifest), "");
    return static_cast<int>(ExitCode::Ok);
  }
  std::string text =
      str("checkpoint: ", saved.folder(), "\nstep: ", manifest.step,
          "\nsize: ", mebibytes(manifest.bytes()), " in ", counted(manifest.shards, "shard"), "\n");
  for (const auto& [key, value] : manifest.facts) text += str(key, ": ", value, "\n");
  for (const auto& [key, value] : manifest.values) {
    constexpr std::size_t kShown = 200;
    const bool is_long = value.size() > kShown;  // Values of Python's engines are long.
    text += str(key, ": ", is_long ? str(value.size(), " characters") : value, "\n");
  }
  const bool has_boxes = std::ranges::any_of(
      manifest.tensors, [](const checkpoint::Tensor& each) { return !boxes_of(each).empty(); });
  std::vector<TextRow> rows = {{"tensor", "type", "pieces", "state"}};
  if (has_boxes) rows.front().insert(rows.front().end() - 1, "boxes");
  for (const checkpoint::Tensor& each : manifest.tensors) {
    if (each.state == checkpoint::kValue) continue;
    TextRow& row = rows.emplace_back(
        TextRow{each.name, type_and_shape(each), str(each.pieces.size()), each.state});
    if (has_boxes) row.insert(row.end() - 1, boxes_of(each));
  }
  write_output(text + "\n" + text_table(rows), "");
  return static_cast<int>(ExitCode::Ok);
}

int run_import(const CheckpointCommand&) {
  throw ConfigError("files of torch.save() are read by Python alone",
                    {"with the Python package of penstock: python -m penstock checkpoint import "
                     "FROM TO"});
}

// Sums are made by the program that has tensors.
int run_merge(const CheckpointCommand& command) {
  become({"merge", command.path, command.other, command.to});
}

void verify_all(SavedCheckpoint& saved) {
  ByteProgress progress(str("verifying ", saved.folder()), saved.manifest().bytes());
  saved.verify([&] { progress.add(checkpoint::kChunkBytes); });
}

int run_verify(const CheckpointCommand& command) {
  int exit_code = static_cast<int>(ExitCode::Ok);
  std::string text;
  std::vector<std::string> objects;
  for (const Found& each : checkpoint::checkpoints_at(command.path)) {
    std::string problem;
    try {
      SavedCheckpoint saved(each.folder);
      verify_all(saved);
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

std::string json_of(const SavedCheckpoint& saved) {
  return str("{\"folder\": ", json_quote(saved.folder()), ", \"step\": ", saved.manifest().step,
             "}");
}

std::string json_of(const SavedCheckpoint& a, const SavedCheckpoint& b,
                    const checkpoint::Difference& found) {
  std::vector<std::string> different;
  for (const checkpoint::TensorDifference& each : found.different) {
    different.push_back(str(
        "  {\"name\": ", json_quote(each.name), ", \"state\": ", json_quote(each.state),
        ", \"what\": ", json_quote(each.what),
        ", \"relative\": ", std::isfinite(each.relative) ? shortest(each.relative) : "null", "}"));
  }
  return str("{\"a\": ", json_of(a), ",\n \"b\": ", json_of(b), ",\n \"equal\": ", found.equal,
             ",\n \"different\": [", different.empty() ? "" : "\n", join(different, ",\n"), "]}\n");
}

std::string text_of(const SavedCheckpoint& a, const SavedCheckpoint& b,
                    const checkpoint::Difference& found) {
  std::vector<TextRow> rows;
  for (const checkpoint::TensorDifference& each : found.different) {
    const bool has_size = std::isfinite(each.relative);
    rows.push_back({str(each.state, " of ", each.name),
                    has_size
                        ? str(each.what, ", by ", shortest(each.relative), " of the largest value")
                        : each.what});
  }
  return str("A: ", a.folder(), ", step ", a.manifest().step, "\nB: ", b.folder(), ", step ",
             b.manifest().step, "\n", found.equal, " tensors are equal, ", rows.size(),
             rows.size() == 1 ? " is not\n" : " are not\n", text_table(rows));
}

int run_diff(const CheckpointCommand& command) {
  SavedCheckpoint a(newest_at(command.path)), b(newest_at(command.other));
  ByteProgress progress(str("comparing ", a.folder(), " and ", b.folder()), a.manifest().bytes());
  const checkpoint::Difference found =
      checkpoint::difference(a, b, [&](std::uint64_t bytes) { progress.add(bytes); });
  write_output(command.json ? json_of(a, b, found) : text_of(a, b, found), "");
  return static_cast<int>(found.different.empty() ? ExitCode::Ok : ExitCode::Failure);
}

// Bytes of the folder's files, as they are: what cannot be read is removed, too.
std::uint64_t bytes_on_disk(const std::string& folder) {
  std::uint64_t bytes = 0;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    const std::uintmax_t size = entry->file_size(ignored);
    if (!ignored) bytes += size;
  }
  return bytes;
}

int run_prune(const CheckpointCommand& command) {
  const std::string path = checkpoint::directory_in(command.path);
  std::optional<OutputLock> run;  // A run that saves nothing has its directory for itself, too.
  if (path != command.path) run.emplace(OutputLock::of_folder(command.path, "checkpoints"));
  const checkpoint::CheckpointDirectory directory(path);
  if (!directory.missing_lock().empty()) {
    write_message(str("penstock: warning: runs are not kept from saving there meanwhile: ",
                      directory.missing_lock()));
  }
  const auto all = checkpoint::checkpoints_in(path);
  if (!all.empty()) {  // The one to fall back on.
    SavedCheckpoint newest(all.front().folder);
    verify_all(newest);
  }
  const std::vector<Found> going = checkpoint::not_kept(all, command.keep);
  std::uint64_t bytes = 0;
  for (const Found& old : going) bytes += bytes_on_disk(old.folder);
  ByteProgress progress(str("removing checkpoints in ", path), bytes);
  std::string text;
  std::vector<std::string> removed, kept;
  for (const Found& each : all) {
    const bool stays = std::ranges::find(going, each) == going.end();
    const std::string object =
        str("{\"step\": ", each.step, ", \"folder\": ", json_quote(each.folder), "}");
    (stays ? kept : removed).push_back(object);
    if (stays) continue;
    directory.remove(each, [&](std::uint64_t done) { progress.add(done); });
    text += str("removed ", each.folder, "\n");
  }
  if (going.empty()) {
    text = str("nothing to remove: ", all.size(),
               all.size() == 1 ? " checkpoint stays\n" : " checkpoints stay\n");
  }
  write_output(command.json ? str("{\"removed\": [", join(removed, ",\n  "), "],\n \"kept\": [",
                                  join(kept, ",\n  "), "],\n \"bytes_removed\": ", bytes, "}\n")
                            : text,
               "");
  return static_cast<int>(ExitCode::Ok);
}

}  // namespace

std::string newest_at(const std::string& path) {
  return checkpoint::checkpoints_at(path).front().folder;
}

Command declare_checkpoint_command(CLI::App& app) {
  const auto command = std::make_shared<CheckpointCommand>();
  app.require_subcommand(1);
  // Subcommands that are declared below have this footer, too.
  app.footer(
      "Exit codes: 0 ok, 1 different (diff), 2 bad input, 3 damaged or cannot be written.\n"
      "Examples:\n"
      "  penstock checkpoint ls runs/gpt-20260102-030405\n"
      "  penstock checkpoint verify runs/gpt-20260102-030405/checkpoints/step-00000400\n"
      "  penstock checkpoint prune runs/gpt-20260102-030405 --keep-last 1 --keep-every 1000\n"
      "  penstock checkpoint export runs/gpt-20260102-030405 weights --type BF16");
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
  const auto with_other = [&](CLI::App* inner, const char* name, const char* help) {
    inner->add_option(lower_case(name), command->other, help)->required()->type_name(name);
    return inner;
  };
  const auto with_json = [&](CLI::App* inner) {
    inner->add_flag("--json", command->json, "print JSON");
    return inner;
  };
  with_json(declare("ls", "the checkpoints, newest first", run_ls));
  with_json(declare("show", "what a checkpoint has", run_show));
  with_json(declare("verify", "read all of it, and compare it with its digests", run_verify));
  with_json(with_other(declare("diff", "which tensors of two checkpoints differ", run_diff),
                       "OTHER", "the other checkpoint"));
  with_other(declare("import", "make a checkpoint of DeepSpeed's or torch.distributed.checkpoint's",
                     run_import),
             "TO", "the folder to be made");
  CLI::App* const exported = with_json(with_other(
      declare("export", "write its weights as safetensors files that Hugging Face's tools open",
              run_export),
      "TO", "the folder to be made; it must not be there yet, or be empty"));
  exported
      ->add_option("--type", command->type,
                   "the type of floating-point weights: F32, BF16, F16 or as-saved (default); a "
                   "value that the type does not have is an error")
      ->type_name("TYPE");
  exported
      ->add_option("--max-shard-size", command->shard_bytes_max,
                   "bytes in a file, such as 5GB (default), 512MiB or 1000000; a larger tensor has "
                   "a file of its own")
      ->type_name("BYTES");
  exported->add_flag("--adapters", command->adapters,
                     "of a run that trains low-rank adapters: these alone, as PEFT loads them");
  CLI::App* const merge =
      app.add_subcommand("merge", "add the adapters of a folder to a model's weights");
  const auto with_path = [&](const char* name, std::string& path, const char* help) {
    merge->add_option(lower_case(name), path, help)->required()->type_name(name);
  };
  with_path("ADAPTERS", command->path, "a folder of low-rank adapters, PEFT's or penstock's");
  with_path("MODEL", command->other, "the Hugging Face folder that they are for");
  with_path("TO", command->to, "the folder to be made");
  all.emplace_back(merge, run_merge);
  CLI::App* const prune = with_json(declare("prune", "remove old checkpoints", run_prune));
  prune->add_option("--keep-last", command->keep.last, "so many of the newest stay")
      ->required()
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 30));
  prune->add_option("--keep-every", command->keep.every, "and those of steps that it divides")
      ->type_name("M")
      ->check(CLI::Range(1, 1 << 30));
  return [command, all] {
    for (const auto& [inner, run] : all) {
      if (inner->parsed()) return run(*command);
    }
    return static_cast<int>(ExitCode::Usage);
  };
}

}  // namespace penstock::cli
