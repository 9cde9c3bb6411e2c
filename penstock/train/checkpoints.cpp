#include "penstock/train/checkpoints.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>

#include "penstock/checkpoint/shard.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/weights/safetensors.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;
using checkpoint::Manifest;
using checkpoint::SavedCheckpoint;

// One that is as it was written, and not of this model.
class MisfitError : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

std::string shape_of(const std::vector<std::int64_t>& shape) {
  return str("[", join(shape, ", "), "]");
}

// Contiguous in host memory: the tensor itself where it is, unless a copy is asked for.
at::Tensor in_host_memory(const at::Tensor& values, bool is_copy) {
  const at::Tensor host = values.contiguous().cpu().resolve_neg();
  return is_copy && host.is_alias_of(values) ? host.clone() : host;
}

std::string_view bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

void check_shape(const StatePiece& piece, const checkpoint::Tensor& saved) {
  if (saved.shape == piece.shape) return;
  throw MisfitError(str("the checkpoint has ", piece.state, " of ", in_quotes(piece.name), " as ",
                        shape_of(saved.shape), ", the model as ", shape_of(piece.shape)));
}

void read_piece(SavedCheckpoint& saved, const StatePiece& piece,
                const std::function<void()>& advanced) {
  const checkpoint::Tensor* const tensor = saved.manifest().find(piece.name, piece.state);
  if (tensor == nullptr) {
    throw MisfitError(str("the checkpoint has no ", piece.state, " of ", in_quotes(piece.name)));
  }
  check_shape(piece, *tensor);
  const at::ScalarType type = weights::type_of(tensor->type);
  const std::int64_t count = piece.values.numel();
  const bool in_place = piece.values.is_cpu() && piece.values.is_contiguous() &&
                        !piece.values.is_neg() && piece.values.scalar_type() == type;
  const at::Tensor target = in_place ? piece.values : at::empty({count}, type);
  saved.read(*tensor, piece.first, count,
             {static_cast<std::byte*>(target.mutable_data_ptr()), target.nbytes()}, advanced);
  if (!in_place) piece.values.copy_(target.view(piece.values.sizes()));
}

// What each rank writes beside its shard, for rank 0.
std::string fragment_path(const std::string& folder, std::size_t shard, std::size_t count) {
  return str(folder, "/", checkpoint::shard_file(shard, count), ".json");
}

void write_fragment(const std::string& path, const Manifest& manifest) {
  std::ofstream file(path, std::ios::binary);
  file << checkpoint::to_text(manifest);
  file.close();
  if (!file) throw CheckpointError(str("cannot write ", in_quotes(path)));
}

Manifest read_fragment(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return checkpoint::parse_fragment(text, path);
}

// The first text that is not empty, and the rank that said it, unless all say the same.
std::optional<std::string> first_failure(const std::vector<std::string>& texts) {
  const bool all_say_it = std::ranges::count(texts, texts[0]) == std::ssize(texts);
  if (all_say_it && !texts[0].empty()) return texts[0];
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (!texts[rank].empty()) return str("rank ", rank, ": ", texts[rank]);
  }
  return std::nullopt;
}

CheckpointError not_saved(std::int64_t step, const std::string& why) {
  return CheckpointError(str("step ", step, " is not saved: ", why));
}

// What `action` throws, as text; else empty.
template <class Action>
std::string failure_of(const Action& action) {
  try {
    action();
    return {};
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    return str("cannot save: ", error.what());
  }
}

}  // namespace

struct Checkpoints::Saving {
  std::int64_t step = 0;
  std::string folder;
  checkpoint::Texts counters;
  std::vector<at::Tensor> values;  // What the pieces point into.
  std::vector<checkpoint::PieceToSave> pieces;
  std::atomic<std::int64_t> written{0};  // Portions, so far.
  std::future<Manifest> shard;
};

Checkpoints::Checkpoints(Trainer& trainer, comm::Communicator& communicator,
                         execute::Progress& progress, CheckpointOptions options,
                         std::function<void(const std::string&)> tell)
    : trainer_(trainer),
      communicator_(communicator),
      progress_(progress),
      options_(std::move(options)),
      tell_(std::move(tell)) {}

Checkpoints::~Checkpoints() = default;

std::vector<std::string> Checkpoints::agree(const char* what, const std::string& text) {
  const execute::WaitMark wait(progress_, "comparing notes on a checkpoint with all ranks");
  return communicator_.exchange(what, text);
}

void Checkpoints::check_types() {
  for (const StatePiece& piece : state_of(trainer_)) {
    weights::type_of(piece.values.scalar_type(), piece.name);
  }
}

void Checkpoints::save() {
  finish();
  begin();
  if (!options_.is_asynchronous) finish();
}

void Checkpoints::begin() {
  const execute::Phase phase(progress_, "saving a checkpoint", execute::Files::Used);
  auto saving = std::make_unique<Saving>();
  saving->step = trainer_.steps_taken();
  saving->counters = values_of(trainer_);
  std::uint64_t bytes = 0;
  const std::string failure = failure_of([&] {
    for (const StatePiece& piece : state_of(trainer_)) {
      if (!piece.is_saved_here) continue;
      saving->values.push_back(in_host_memory(piece.values, options_.is_asynchronous));
      const at::Tensor& values = saving->values.back();
      saving->pieces.push_back({.name = piece.name,
                                .state = piece.state,
                                .type = weights::type_of(values.scalar_type(), piece.name),
                                .shape = piece.shape,
                                .first = piece.first,
                                .count = values.numel(),
                                .bytes = bytes_of(values)});
      bytes += values.nbytes();
      progress_.advance();
    }
  });
  std::uint64_t all_bytes = 0;
  for (const std::string& text :
       agree("bytes of a checkpoint", failure.empty() ? str(bytes) : failure)) {
    const auto said = parse_integer(text);
    if (!said) throw not_saved(saving->step, text);
    all_bytes += static_cast<std::uint64_t>(*said);
  }
  const bool is_root = communicator_.rank().value == 0;
  std::string refusal;
  if (is_root) {
    refusal = failure_of([&] {
      if (!directory_) directory_.emplace(options_.directory);
      for (const std::string& moved : directory_->abandon_after(saving->step)) {
        if (tell_)
          tell_(str("a checkpoint of a later step, from which the run did not go on: ", moved));
      }
      saving->folder = directory_->begin(saving->step, all_bytes);
    });
  }
  const auto told =
      agree("folder of a checkpoint", refusal.empty() ? "/" + saving->folder : refusal);
  if (!told[0].starts_with('/')) throw not_saved(saving->step, told[0]);
  saving->folder = told[0].substr(1);
  const auto write = [saving = saving.get(), rank = communicator_.rank().index(),
                      ranks = static_cast<std::size_t>(communicator_.world_size())] {
    return checkpoint::write_shard(saving->folder, rank, ranks, saving->pieces,
                                   [saving] { ++saving->written; });
  };
  saving->shard = std::async(std::launch::async, write);
  saving_ = std::move(saving);
  trainer_.set_busy(true);
}

void Checkpoints::after(const StepReport& report) {
  if (!saving_) return;
  using std::chrono::seconds;
  const bool is_written = saving_->shard.wait_for(seconds(0)) == std::future_status::ready;
  trainer_.set_busy(!is_written);
  if (!report.busy) finish();
}

void Checkpoints::finish() {
  if (!saving_) return;
  const execute::Phase phase(progress_, "saving a checkpoint", execute::Files::Used);
  const std::unique_ptr<Saving> saving = std::move(saving_);
  trainer_.set_busy(false);
  const auto ranks = static_cast<std::size_t>(communicator_.world_size());
  std::int64_t written = 0;
  constexpr std::chrono::milliseconds kLookEvery{100};
  while (saving->shard.wait_for(kLookEvery) != std::future_status::ready) {
    if (std::exchange(written, saving->written.load()) != written) progress_.advance();
  }
  const std::string failure = failure_of([&] {
    const Manifest shard = saving->shard.get();
    write_fragment(fragment_path(saving->folder, communicator_.rank().index(), ranks), shard);
  });
  const auto first = first_failure(agree("shards of a checkpoint", failure));
  std::string refusal = first.value_or("");
  if (communicator_.rank().value == 0) {
    if (!first) refusal = failure_of([&] { commit(*saving); });
    if (!refusal.empty()) directory_->abandon(saving->step);
  }
  // Also after a failure: rank 0 has removed what there was before anybody goes on.
  const std::string outcome = agree("a checkpoint", refusal)[0];
  if (!outcome.empty()) throw not_saved(saving->step, outcome);
  let_go_of_files();
}

// What is in files was read, and is not needed in memory.
void Checkpoints::let_go_of_files() {
  update::OffloadedParts* const files = trainer_.updates().memory();
  if (files != nullptr) files->let_go(trainer_.updates().masters().all());
}

void Checkpoints::commit(Saving& saving) {
  const auto ranks = static_cast<std::size_t>(communicator_.world_size());
  std::vector<Manifest> shards;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::string path = fragment_path(saving.folder, rank, ranks);
    shards.push_back(read_fragment(path));
    fs::remove(path);
    progress_.advance();
  }
  Manifest manifest = checkpoint::merge(shards);
  manifest.step = saving.step;
  manifest.facts = options_.facts;
  manifest.values = saving.counters;
  directory_->commit(manifest, [this] { progress_.advance(); });
  if (tell_) {
    tell_(str("step ", saving.step,
              " saved: ", checkpoint::folder_of(options_.directory, saving.step)));
  }
  remove_old();
}

// What cannot be removed is told, and is there for the next save.
void Checkpoints::remove_old() {
  const std::string failure = failure_of([this] {
    const auto all = checkpoint::checkpoints_in(options_.directory);
    for (const checkpoint::Found& old : checkpoint::not_kept(all, options_.keep)) {
      directory_->remove(old);
      progress_.advance();
    }
  });
  if (!failure.empty() && tell_) tell_(failure);
}

std::optional<Resumed> Checkpoints::resume() {
  const execute::Phase phase(progress_, "reading a checkpoint", execute::Files::Used);
  std::string folders;
  std::string failure;
  if (communicator_.rank().value == 0) {
    failure = failure_of([&] {
      for (const checkpoint::Found& each : checkpoint::checkpoints_in(options_.directory)) {
        folders += each.folder + "\n";
      }
    });
  }
  failure = agree("reading the directory of checkpoints", failure)[0];
  if (!failure.empty()) throw CheckpointError(failure);
  std::vector<std::string> all = penstock::split(agree("checkpoints", folders)[0], '\n');
  all.pop_back();
  Resumed resumed;
  for (const std::string& folder : all) {
    const auto reason = try_to_load(folder, resumed);
    if (!reason) return resumed;
    resumed.passed_over.push_back(*reason);
  }
  if (all.empty()) return std::nullopt;
  throw CheckpointError(str("no checkpoint in ", in_quotes(options_.directory), " can be read"),
                        resumed.passed_over);
}

Resumed Checkpoints::resume_from(const std::string& folder) {
  const execute::Phase phase(progress_, "reading a checkpoint", execute::Files::Used);
  Resumed resumed;
  const auto reason = try_to_load(folder, resumed);
  if (reason) throw CheckpointError(*reason);
  return resumed;
}

// Why it cannot be read, the same on every rank; absent: it is read.
std::optional<std::string> Checkpoints::try_to_load(const std::string& folder, Resumed& resumed) {
  constexpr char kMisfit = '!';
  std::string failure;
  try {
    const at::NoGradGuard no_grad;
    SavedCheckpoint saved(folder);
    load(saved);
    resumed.step = saved.manifest().step;
    resumed.folder = folder;
    resumed.facts = saved.manifest().facts;
    resumed.weights.clear();
    for (const checkpoint::Tensor& each : saved.manifest().tensors) {
      if (each.state == checkpoint::kWeight) resumed.weights.push_back(each.name);
    }
  } catch (const MisfitError& error) {
    failure = kMisfit + std::string(error.what());
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const auto all = agree("reading a checkpoint", failure);
  for (const std::string& each : all) {
    if (each.starts_with(kMisfit)) {
      throw CheckpointError(str(in_quotes(folder), ": ", each.substr(1)),
                            {"it is another model's, or its layers have other sizes"});
    }
  }
  auto reason = first_failure(all);
  if (reason) return reason;
  check_all_is_taken(resumed);
  take_over(trainer_);
  return std::nullopt;
}

// Throws: CheckpointError for tensors that the model does not have.
void Checkpoints::check_all_is_taken(const Resumed& resumed) {
  std::string names;
  for (const StatePiece& piece : state_of(trainer_)) {
    const bool is_weight = piece.state == checkpoint::kWeight;
    if (is_weight && piece.is_saved_here && piece.first == 0) names += piece.name + "\n";
  }
  std::set<std::string> known;
  for (const std::string& each : agree("tensors of the model", names)) {
    for (std::string& name : penstock::split(each, '\n')) known.insert(std::move(name));
  }
  std::vector<std::string> unknown;
  for (const std::string& name : resumed.weights) {
    if (!known.contains(name)) unknown.push_back(in_quotes(name));
  }
  if (unknown.empty()) return;
  constexpr std::size_t kNamed = 5;
  const std::string more =
      unknown.size() > kNamed ? str(" and ", unknown.size() - kNamed, " more") : "";
  unknown.resize(std::min(unknown.size(), kNamed));
  throw CheckpointError(
      str(in_quotes(resumed.folder),
          " has tensors that the model does not have: ", join(unknown, ", "), more),
      {"it is another model's"});
}

void Checkpoints::load(SavedCheckpoint& saved) {
  const Manifest& manifest = saved.manifest();
  const auto is_known = [&](std::string_view name, std::string_view state) {
    return manifest.find(name, state) != nullptr;
  };
  make_states(trainer_, is_known);
  const std::vector<std::string_view> states = trainer_.optimizer().state_names();
  // Of a parameter that had not been updated yet, or by another optimizer.
  const auto is_reset = [&](const StatePiece& piece) {
    return piece.state != checkpoint::kWeight &&
           std::ranges::none_of(
               states, [&](std::string_view state) { return is_known(piece.name, state); });
  };
  for (const StatePiece& piece : state_of(trainer_)) {
    if (is_reset(piece)) continue;
    read_piece(saved, piece, [this] { progress_.advance(); });
  }
  set_values(trainer_, manifest.values);
  trainer_.go_on_after(manifest.step);
}

}  // namespace penstock::train
