#include "penstock/saving/checkpoints.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/files/checkpoint/checkpoint_directory.h"
#include "penstock/files/checkpoint/checkpoints_at.h"
#include "penstock/runtime/comm/or_fail.h"
#include "penstock/runtime/saving/checkpoint_notes.h"
#include "penstock/runtime/saving/run_state.h"
#include "penstock/runtime/saving/saved_piece.h"
#include "penstock/runtime/train/handshake.h"
#include "penstock/runtime/train/training_state.h"
#include "penstock/runtime/weights/safetensors.h"

namespace penstock::saving {
namespace {

using checkpoint::Manifest;
using checkpoint::SavedCheckpoint;
using train::HalfUpdated;
using train::state_of;
using train::StatePiece;

std::vector<std::string> weights_in(const Manifest& manifest) {
  std::vector<std::string> weights;
  for (const checkpoint::Tensor& each : manifest.tensors) {
    if (each.state == checkpoint::kWeight) weights.push_back(each.name);
  }
  return weights;
}

}  // namespace

Checkpoints::Checkpoints(train::Trainer& trainer, comm::Communicator& communicator,
                         execute::Progress& progress, CheckpointOptions options,
                         std::function<void(const std::string&)> tell)
    : trainer_(trainer),
      communicator_(communicator),
      progress_(progress),
      options_(std::move(options)),
      tell_(std::move(tell)),
      writer_(communicator, progress, options_.directory, options_.is_asynchronous) {}

std::vector<std::string> Checkpoints::agree(const char* what, const std::string& text) {
  return compare_notes(communicator_, progress_, what, text);
}

void Checkpoints::check_types() {
  for (const StatePiece& piece : state_of(trainer_)) {
    weights::type_of(piece.values.scalar_type(), piece.name);
  }
}

void Checkpoints::save(const checkpoint::Texts& client_state) {
  trainer_.calls().run("Checkpoints::save()", trainer_.steps_taken(),
                       [&] { save_now(client_state); });
}

void Checkpoints::save_now(const checkpoint::Texts& client_state) {
  finish();
  const std::int64_t step = trainer_.steps_taken();
  trainer_.take_changes();
  save_begun_ = std::chrono::steady_clock::now();
  const auto abandon = [&](checkpoint::CheckpointDirectory& directory) {
    for (const std::string& moved : directory.abandon_after(step)) {
      if (tell_)
        tell_(str("a checkpoint of a later step, from which the run did not go on: ", moved));
    }
  };
  checkpoint::Texts values;
  if (communicator_.rank().value == 0) {
    comm::or_fail(communicator_, [&] {
      values = values_of(trainer_);
      put_client_state(values, client_state);
    });
  }
  if (tell_ && trainer_.has_own_optimizer()) {
    tell_(
        "states of an optimizer of the program's own are not in the checkpoint: save them with "
        "torch::save()");
  }
  writer_.begin({.name = checkpoint::name_of(step),
                 .step = step,
                 .facts = options_.facts,
                 .values = values,
                 .pieces = [this] { return state_of(trainer_); }},
                abandon, [this](checkpoint::CheckpointDirectory& d) { return remove_old(d); });
  saved_step_ = step;
  trainer_.words().busy = true;
  if (!options_.is_asynchronous) finish();
}

void Checkpoints::after(const train::StepReport& report) {
  if (!writer_.is_saving()) return;
  const auto go_on = [&] {
    if (!report.words.busy) {
      trainer_.words().busy = false;
      const auto written = writer_.go_on();
      if (written) return over(*written);
    }
    trainer_.words().busy = !writer_.is_ready();
  };
  trainer_.calls().run("Checkpoints::after()", trainer_.steps_taken(), go_on, HalfUpdated::Allowed);
}

void Checkpoints::finish() {
  if (!writer_.is_saving()) return;
  const auto end = [&] {
    trainer_.words().busy = false;
    over(writer_.finish());
  };
  trainer_.calls().run("Checkpoints::finish()", trainer_.steps_taken(), end, HalfUpdated::Allowed);
}

void Checkpoints::over(const WrittenCheckpoint& written) {
  trainer_.words().busy = false;
  let_go_of_files();
  const std::chrono::duration<double> age = std::chrono::steady_clock::now() - save_begun_;
  if (options_.saved) {
    options_.saved({.step = saved_step_, .folder = written.folder, .seconds = age.count()});
  }
  if (!tell_) return;
  tell_(str("step ", saved_step_, " saved: ", written.folder));
  if (!written.note.empty()) tell_(written.note);
}

// What is in files was read, and is not needed in memory.
void Checkpoints::let_go_of_files() {
  update::OffloadedParts* const files = trainer_.updates().memory();
  if (files != nullptr) files->let_go(trainer_.updates().masters().all());
}

// What cannot be removed is told, and is there for the next save.
std::string Checkpoints::remove_old(checkpoint::CheckpointDirectory& directory) const {
  return failure_of([&] {
    const auto all = checkpoint::checkpoints_in(options_.directory);
    for (const checkpoint::Found& old : checkpoint::not_kept(all, options_.keep)) {
      directory.remove(old);
    }
  });
}

std::optional<Resumed> Checkpoints::resume() {
  return trainer_.calls().run("Checkpoints::resume()", trainer_.steps_taken(), [&] {
    return resume_newest(options_.directory, checkpoint::steps_in);
  });
}

Resumed Checkpoints::resume_from(const std::string& path) {
  return trainer_.calls().run("Checkpoints::resume_from()", trainer_.steps_taken(), [&] {
    return *resume_newest(path, checkpoint::checkpoints_at);  // There is one, or an error.
  });
}

// Rank 0 says which there are; each rank opens them at its own path.
std::optional<Resumed> Checkpoints::resume_newest(
    const std::string& path,
    const std::function<std::vector<checkpoint::Found>(const std::string&)>& at) {
  const execute::Phase phase(progress_, "reading a checkpoint", execute::Files::Used);
  std::string names;  // Names behind `path`; none for `path` itself.
  std::string failure;
  if (communicator_.rank().value == 0) {
    failure = failure_of([&] {
      for (const checkpoint::Found& each : at(path)) {
        names += each.folder.substr(path.size()) + "\n";
      }
    });
  }
  failure = agree("reading the directory of checkpoints", failure)[0];
  if (!failure.empty()) throw CheckpointError(failure);
  std::vector<std::string> all = penstock::split(agree("checkpoints", names)[0], '\n');
  all.pop_back();
  std::vector<std::string> passed_over;
  for (const std::string& name : all) {
    auto outcome = try_to_load(path + name);
    if (auto* const resumed = std::get_if<Resumed>(&outcome)) {
      resumed->passed_over = std::move(passed_over);
      return std::move(*resumed);
    }
    passed_over.push_back(std::get<std::string>(std::move(outcome)));
  }
  if (all.empty()) return std::nullopt;
  if (all.front().empty()) throw CheckpointError(passed_over.front());
  throw CheckpointError(str("no checkpoint in ", quoted_path(path), " can be read"), passed_over);
}

// Returns what was loaded, or why it cannot be read, the same on every rank.  What was read is this
// call's alone until all ranks have all of it.
std::variant<Resumed, std::string> Checkpoints::try_to_load(const std::string& folder) {
  std::optional<SavedCheckpoint> saved;
  if (auto reason = attempt(folder, [&] { saved.emplace(folder); })) return *reason;
  {
    const execute::WaitMark wait(progress_, "comparing a checkpoint with all ranks");
    train::agree_on(train::Occasion::Checkpoint, train::facts_of(&*saved), communicator_);
  }
  const Manifest& manifest = saved->manifest();
  RunValues values;
  checkpoint::Texts client_state;
  auto reason = attempt(folder, [&] {
    values = read_values(manifest.values);
    client_state = client_state_in(manifest.values);
    verify(*saved);
  });
  if (reason) return *reason;
  check_all_is_taken(*saved);
  if ((reason = attempt(folder, [&] { load(*saved); }))) return *reason;
  set_values(trainer_, values);
  trainer_.go_on_after(manifest.step);
  take_over(trainer_);
  return Resumed{.step = manifest.step,
                 .folder = folder,
                 .facts = manifest.facts,
                 .client_state = std::move(client_state)};
}

// Why `action` fails on some rank, the same on every one; absent: it fails on none.
// Throws: CheckpointError where it finds that the checkpoint does not fit the model.
std::optional<std::string> Checkpoints::attempt(const std::string& folder,
                                                const std::function<void()>& action) {
  constexpr char kMisfit = '!';
  std::string failure;
  try {
    const at::NoGradGuard no_grad;
    action();
  } catch (const MisfitError& error) {
    failure = kMisfit + std::string(error.what());
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const auto all = agree("reading a checkpoint", failure);
  for (const std::string& each : all) {
    if (each.starts_with(kMisfit)) {
      throw CheckpointError(str(quoted_path(folder), ": ", each.substr(1)),
                            {"it is another model's, or its layers have other sizes"});
    }
  }
  return first_failure(all);
}

// Throws: CheckpointError for tensors that the model does not have.
void Checkpoints::check_all_is_taken(const SavedCheckpoint& saved) {
  std::string names;
  for (const StatePiece& piece : state_of(trainer_)) {
    const bool is_weight = piece.state == checkpoint::kWeight;
    if (is_weight && piece.is_saved_here && piece.has_first_element()) names += piece.name + "\n";
  }
  std::set<std::string> known;
  for (const std::string& each : agree("tensors of the model", names)) {
    for (std::string& name : penstock::split(each, '\n')) known.insert(std::move(name));
  }
  std::vector<std::string> unknown;
  for (const std::string& name : weights_in(saved.manifest())) {
    if (!known.contains(name)) unknown.push_back(in_quotes(name));
  }
  if (unknown.empty()) return;
  constexpr std::size_t kNamed = 5;
  const std::string more =
      unknown.size() > kNamed ? str(" and ", unknown.size() - kNamed, " more") : "";
  unknown.resize(std::min(unknown.size(), kNamed));
  throw CheckpointError(
      str(quoted_path(saved.folder()),
          " has tensors that the model does not have: ", join(unknown, ", "), more),
      {"it is another model's"});
}

// All that load() will read, into nothing.
void Checkpoints::verify(SavedCheckpoint& saved) {
  const auto advanced = [this] { progress_.advance(); };
  for (StatePiece piece : state_of(trainer_)) {
    if (piece.state != checkpoint::kWeight) continue;
    verify_piece(saved, piece, advanced);
    for (const std::string_view state : trainer_.optimizer().state_names()) {
      const checkpoint::Tensor* const kept = saved.manifest().find(piece.name, state);
      if (kept == nullptr) continue;
      if (kept->shape.empty()) {  // One number for all elements.
        saved.verify(*kept, 0, 1, advanced);
        continue;
      }
      piece.state = state;
      verify_piece(saved, piece, advanced);
    }
  }
}

void Checkpoints::load(SavedCheckpoint& saved) {
  const auto is_known = [&](std::string_view name, std::string_view state) {
    return saved.manifest().find(name, state) != nullptr;
  };
  make_states(trainer_, is_known);
  const std::vector<std::string_view> states = trainer_.optimizer().state_names();
  // States that the checkpoint has nothing of stay reset: of a parameter that was not updated yet,
  // or by another optimizer.
  const auto is_reset = [&](const StatePiece& piece) {
    return piece.state != checkpoint::kWeight &&
           std::ranges::none_of(
               states, [&](std::string_view state) { return is_known(piece.name, state); });
  };
  for (const StatePiece& piece : state_of(trainer_)) {
    if (is_reset(piece)) continue;
    read_piece(saved, piece, [this] { progress_.advance(); });
  }
}

}  // namespace penstock::saving
