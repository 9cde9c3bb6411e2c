#include "penstock/runtime/saving/checkpoint_writer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <utility>

#include "penstock/core/foreign_file.h"
#include "penstock/core/new_file.h"
#include "penstock/core/text.h"
#include "penstock/files/checkpoint/shard.h"
#include "penstock/runtime/saving/checkpoint_notes.h"
#include "penstock/runtime/weights/safetensors.h"

namespace penstock::saving {
namespace {

using checkpoint::Manifest;
using train::StatePiece;

// Contiguous in host memory: the tensor itself where it is, or a copy, to `copy` if that fits.
at::Tensor in_host_memory(const at::Tensor& values, at::Tensor* copy) {
  const at::Tensor host = values.contiguous().cpu().resolve_conj().resolve_neg();
  if (copy == nullptr || !host.is_alias_of(values)) return host;
  const bool fits =
      copy->defined() && copy->sizes() == host.sizes() && copy->scalar_type() == host.scalar_type();
  if (fits) {
    copy->copy_(host);
  } else {
    *copy = host.clone();
  }
  return *copy;
}

std::string_view bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

// What each rank writes beside its shard, for rank 0.
std::string fragment_path(const std::string& folder, std::size_t shard, std::size_t count) {
  return str(folder, "/", checkpoint::shard_file(shard, count), ".json");
}

void write_fragment(const std::string& path, const Manifest& manifest) {
  NewFile file(path, path);
  file.write(checkpoint::to_text(manifest));
  file.finish();
}

Manifest read_fragment(const std::string& path) {
  const std::string text =
      read_foreign_file("manifest of a shard", path, checkpoint::kManifestBytesMax);
  return checkpoint::parse_fragment(text, path);
}

}  // namespace

struct CheckpointWriter::Saving {
  NewCheckpoint checkpoint;
  After after;
  std::string folder;              // Folder of the shards.
  std::vector<at::Tensor> values;  // What the pieces point into.
  std::vector<checkpoint::PieceToSave> pieces;
  std::atomic<std::int64_t> written{0};  // Portions, so far.
  bool has_shards = false;               // All of them: it is being committed.
  std::string failure;
  // This rank's part; it returns what went wrong, or the note of `after`.  Declared last, so that
  // its end is waited for before the members that it uses end.
  std::future<std::string> work;

  CheckpointError not_saved(const std::string& why) const {
    return CheckpointError(str("step ", checkpoint.step, " is not saved: ", why));
  }
  // Returns: the bytes of what this rank saves.  copies: where they are copied to; null: nowhere.
  std::uint64_t take(const std::vector<StatePiece>& all, std::vector<at::Tensor>* copies,
                     execute::Progress& progress);
};

std::uint64_t CheckpointWriter::Saving::take(const std::vector<StatePiece>& all,
                                             std::vector<at::Tensor>* copies,
                                             execute::Progress& progress) {
  const auto count =
      static_cast<std::size_t>(std::ranges::count_if(all, &StatePiece::is_saved_here));
  if (copies != nullptr) copies->resize(count);
  std::uint64_t bytes = 0;
  for (const StatePiece& piece : all) {
    if (!piece.is_saved_here) continue;
    at::Tensor* const copy = copies == nullptr ? nullptr : &(*copies)[values.size()];
    values.push_back(in_host_memory(piece.values, copy));
    const at::Tensor& host = values.back();
    pieces.push_back({.name = piece.name,
                      .state = piece.state,
                      .type = weights::type_of(host.scalar_type(), piece.name),
                      .shape = piece.shape,
                      .box = piece.box,
                      .first = piece.first,
                      .count = host.numel(),
                      .bytes = bytes_of(host)});
    bytes += host.nbytes();
    progress.advance();
  }
  return bytes;
}

CheckpointWriter::CheckpointWriter(comm::Communicator& communicator, execute::Progress& progress,
                                   std::string directory, bool is_asynchronous)
    : communicator_(communicator),
      progress_(progress),
      path_(std::move(directory)),
      is_asynchronous_(is_asynchronous) {}

CheckpointWriter::~CheckpointWriter() = default;

std::vector<std::string> CheckpointWriter::compare(const char* what, const std::string& text) {
  return compare_notes(communicator_, progress_, what, text);
}

bool CheckpointWriter::is_ready() const {
  const std::future<std::string>& work = saving_->work;
  return !work.valid() || work.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

void CheckpointWriter::begin(const NewCheckpoint& checkpoint, const Before& before, After after) {
  const execute::Phase phase(progress_, "saving a checkpoint", execute::Files::Used);
  auto saving = std::make_unique<Saving>();
  saving->checkpoint = checkpoint;
  saving->after = std::move(after);
  std::uint64_t bytes = 0;
  const std::string failure = failure_of([&] {
    std::vector<at::Tensor>* const copies = is_asynchronous_ ? &copies_ : nullptr;
    bytes = saving->take(checkpoint.pieces(), copies, progress_);
  });
  std::uint64_t all_bytes = 0;
  for (const std::string& text :
       compare("bytes of a checkpoint", failure.empty() ? str(bytes) : failure)) {
    const auto said = parse_integer(text);
    if (!said) throw saving->not_saved(text);
    all_bytes += static_cast<std::uint64_t>(*said);
  }
  std::string refusal;
  if (communicator_.rank().value == 0) {
    refusal = failure_of([&] {
      if (!directory_) directory_.emplace(path_);
      if (before) before(*directory_);
      saving->folder = directory_->begin(checkpoint.name, all_bytes);
    });
  }
  const auto told =
      compare("folder of a checkpoint", refusal.empty() ? "/" + saving->folder : refusal);
  if (!told[0].starts_with('/')) throw saving->not_saved(told[0]);
  saving->folder = told[0].substr(1);
  const auto write = [saving = saving.get(), rank = communicator_.rank().index(),
                      ranks = static_cast<std::size_t>(communicator_.world_size())] {
    return failure_of([&] {
      Manifest shard = checkpoint::write_shard(saving->folder, rank, ranks, saving->pieces,
                                               [saving] { ++saving->written; });
      shard.values = saving->checkpoint.values;
      write_fragment(fragment_path(saving->folder, rank, ranks), shard);
    });
  };
  saving->work = std::async(std::launch::async, write);
  saving_ = std::move(saving);
}

// What goes on is progress.
void CheckpointWriter::wait() {
  constexpr std::chrono::milliseconds kLookEvery{100};
  std::int64_t written = 0;
  while (saving_->work.valid() && saving_->work.wait_for(kLookEvery) != std::future_status::ready) {
    if (std::exchange(written, saving_->written.load()) != written) progress_.advance();
  }
}

std::optional<WrittenCheckpoint> CheckpointWriter::go_on() {
  const execute::Phase phase(progress_, "saving a checkpoint", execute::Files::Used);
  wait();
  Saving& saving = *saving_;
  const bool is_root = communicator_.rank().value == 0;
  const std::string said = saving.work.valid() ? saving.work.get() : std::string();
  if (!saving.has_shards) {
    const auto first = first_failure(compare("shards of a checkpoint", said));
    saving.failure = first.value_or("");
    saving.has_shards = true;
    const auto commit = [this, &saving] {
      std::string note;
      const std::string failure = failure_of([&] {
        if (!saving.failure.empty()) throw CheckpointError(saving.failure);
        note = this->commit(saving);
      });
      if (!failure.empty()) directory_->abandon(saving.checkpoint.name);
      saving.failure = failure;
      return note;
    };
    if (is_root) saving.work = std::async(std::launch::async, commit);
    return std::nullopt;
  }
  // Compared after a failure, too: rank 0 has removed what there was before anybody goes on.
  const std::string outcome = compare("a checkpoint", is_root ? saving.failure : "")[0];
  const std::unique_ptr<Saving> done = std::move(saving_);
  if (!outcome.empty()) throw done->not_saved(outcome);
  return WrittenCheckpoint{.folder = str(path_, "/", done->checkpoint.name), .note = said};
}

WrittenCheckpoint CheckpointWriter::finish() {
  while (true) {
    const auto written = go_on();
    if (written) return *written;
  }
}

std::string CheckpointWriter::commit(Saving& saving) {
  const auto ranks = static_cast<std::size_t>(communicator_.world_size());
  std::vector<Manifest> shards;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::string path = fragment_path(saving.folder, rank, ranks);
    shards.push_back(read_fragment(path));
    std::filesystem::remove(path);
    ++saving.written;
  }
  Manifest manifest = checkpoint::merge(shards);
  manifest.step = saving.checkpoint.step;
  manifest.facts = saving.checkpoint.facts;
  directory_->commit(saving.checkpoint.name, manifest, [&] { ++saving.written; });
  return saving.after ? saving.after(*directory_) : std::string();
}

}  // namespace penstock::saving
