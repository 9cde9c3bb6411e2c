// Saves a Trainer's run, and lets another one go on where it was.
//
// A run has one on every rank.  How ranks write one together: checkpoint_writer.h.  A rank of any
// layout reads what it needs, whatever the layout that wrote it: pipe, data, schedule, ZeRO's
// stage, types of parameters.  With the same layout the run goes on bit for bit; what else it then
// equals: docs/checkpoints.md. Knows no data: a run whose data is a function of the step needs no
// more.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "penstock/checkpoint/saved_checkpoint.h"
#include "penstock/comm/communicator.h"
#include "penstock/files/checkpoint/checkpoint_directory.h"
#include "penstock/runtime/execute/progress.h"
#include "penstock/runtime/saving/checkpoint_writer.h"
#include "penstock/train/trainer.h"

namespace penstock::saving {

// A checkpoint that has its name.
struct SavedStep {
  std::int64_t step = 0;
  std::string folder;
  double seconds = 0;  // Seconds from the begin of the save.
};

struct CheckpointOptions {
  std::string directory = {};
  checkpoint::Keep keep = {};
  // Whether files are written while steps go on, from a copy in host memory of what this rank
  // saves.
  bool is_asynchronous = false;
  checkpoint::Texts facts = {};  // How the run is set up.
  // Hears of each checkpoint that has its name, on every rank; empty: nobody does.
  std::function<void(const SavedStep&)> saved = {};
};

// What a resumed run goes on with.
struct Resumed {
  std::int64_t step = 0;
  std::string folder;
  // Newer ones that could not be read, with the reason, newest first.
  std::vector<std::string> passed_over;
  checkpoint::Texts facts;         // Facts of the run that saved it.
  checkpoint::Texts client_state;  // What the program saved with it; JSON, where it is no text.
};

class Checkpoints {
 public:
  // All that is a reference outlives it.  `tell` hears of what was saved, on rank 0.
  Checkpoints(train::Trainer& trainer, comm::Communicator& communicator,
              execute::Progress& progress, CheckpointOptions options,
              std::function<void(const std::string&)> tell);

  // Throws: CheckpointError for a tensor of this rank whose type cannot be saved.
  void check_types();

  // All that follow are collective over all ranks.  When one of them, or a call of the trainer, has
  // failed and all ranks have caught that, they begin anew with the next call.  Error for a save or
  // a resumption where some parameters are updated, and others not.

  // Goes on from the newest checkpoint of the directory that is as it was written; absent where
  // there is no checkpoint.  One is verified, and found to be the same on all ranks, before
  // anything is set: of one that is passed over, nothing stays.
  // Throws: CheckpointError, on every rank, where none can be read, with the reasons of all; or
  // where one does not fit this model: it names the first tensor.  DifferenceError where ranks see
  // different ones under one name.  The trainer is then as it was.
  std::optional<Resumed> resume();
  // Goes on from what `path` means (checkpoint/checkpoints_at.h): one checkpoint, or the newest
  // whole one of a run.  Throws: likewise, and where there is none.
  Resumed resume_from(const std::string& path);

  // Saves what the trainer is after its last step, and `client_state` of rank 0, texts of the
  // program's own by names of its own.  An asynchronous save goes on beside the steps that follow;
  // it is over when a later call of these three says so, or throws.
  // Throws: CheckpointError, on every rank, with what went wrong on the first that it did on; the
  // run and older checkpoints are as before.
  void save(const checkpoint::Texts& client_state = {});
  // Saves what is due after a step.  The report says whether a rank is still writing.
  void after(const train::StepReport& report);
  // Waits for a save that goes on.
  void finish();

 private:
  void save_now(const checkpoint::Texts& client_state);
  std::vector<std::string> agree(const char* what, const std::string& text);
  void let_go_of_files();
  std::variant<Resumed, std::string> try_to_load(const std::string& folder);
  std::optional<std::string> attempt(const std::string& folder,
                                     const std::function<void()>& action);
  void verify(checkpoint::SavedCheckpoint& saved);
  void load(checkpoint::SavedCheckpoint& saved);
  void check_all_is_taken(const checkpoint::SavedCheckpoint& saved);
  // at: the checkpoints of a path, newest first; rank 0 asks.
  std::optional<Resumed> resume_newest(
      const std::string& path,
      const std::function<std::vector<checkpoint::Found>(const std::string&)>& at);
  void over(const WrittenCheckpoint& written);
  std::string remove_old(checkpoint::CheckpointDirectory& directory) const;

  train::Trainer& trainer_;
  comm::Communicator& communicator_;
  execute::Progress& progress_;
  CheckpointOptions options_;
  std::function<void(const std::string&)> tell_;
  CheckpointWriter writer_;
  std::int64_t saved_step_ = 0;
  std::chrono::steady_clock::time_point save_begun_{};
};

}  // namespace penstock::saving
