// Writes checkpoints: all ranks together, each its own shard.
//
// A Trainer's Checkpoints have one, and so do Python's engines.  Rank 0 makes a whole checkpoint of
// the shards, and gives it its name (checkpoint/).
// Knows no models, and not when to save.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/files/checkpoint/checkpoint_directory.h"
#include "penstock/runtime/execute/progress.h"
#include "penstock/runtime/train/state_piece.h"

namespace penstock::saving {

// What is saved.
struct NewCheckpoint {
  std::string name;          // Name of its folder.
  std::int64_t step = 0;     // Optimizer steps taken.
  checkpoint::Texts facts;   // Rank 0's count.
  checkpoint::Texts values;  // This rank's; those of all ranks are saved.
  // Gives the pieces of this rank, of which those count that it saves.
  std::function<std::vector<train::StatePiece>()> pieces;
};

// What became of it.
struct WrittenCheckpoint {
  std::string folder;
  std::string note;  // What `after` of begin() had to say; on rank 0.
};

class CheckpointWriter {
 public:
  // Called on rank 0, with the directory.
  using Before = std::function<void(checkpoint::CheckpointDirectory&)>;
  using After = std::function<std::string(checkpoint::CheckpointDirectory&)>;

  // All that is a reference outlives it.
  // is_asynchronous: files are written while steps go on, from a copy in host memory of what this
  // rank saves, which is kept for the next save.
  CheckpointWriter(comm::Communicator& communicator, execute::Progress& progress,
                   std::string directory, bool is_asynchronous);
  // Waits for the files that this rank writes.
  ~CheckpointWriter();

  // Whether a save has begun, and has not been finished.
  bool is_saving() const { return saving_ != nullptr; }
  // REQUIRES: is_saving().  Whether the files that this rank writes just now are there.
  bool is_ready() const;

  // All are collective over all ranks.

  // Begins to write.  `before` is called before anything is written; `after`, beside what the
  // caller goes on with, when the checkpoint has its name.
  // REQUIRES: !is_saving().
  // Throws: CheckpointError, on every rank, with what went wrong on the first that it did on; older
  // checkpoints are as before.
  void begin(const NewCheckpoint& checkpoint, const Before& before = {}, After after = {});
  // Goes on when all ranks are ready, or waits for them: the shards become a checkpoint, and in a
  // second call it is done.  REQUIRES: is_saving().
  // Returns: what became of it; nothing: it goes on.  Throws: likewise.
  std::optional<WrittenCheckpoint> go_on();
  // Waits until it is done.  REQUIRES: is_saving().  Throws: likewise.
  WrittenCheckpoint finish();

 private:
  struct Saving;
  std::vector<std::string> compare(const char* what, const std::string& text);
  void wait();
  std::string commit(Saving& saving);

  comm::Communicator& communicator_;
  execute::Progress& progress_;
  std::string path_;
  bool is_asynchronous_ = false;
  std::optional<checkpoint::CheckpointDirectory> directory_;  // Absent until rank 0's first save.
  std::vector<at::Tensor> copies_;  // Copies of what this rank saves asynchronously, in its order.
  std::unique_ptr<Saving> saving_;
};

}  // namespace penstock::saving
