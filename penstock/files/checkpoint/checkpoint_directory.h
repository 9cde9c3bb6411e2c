// The checkpoints of a run: a directory with a folder for each.
//
// A folder has its name when the checkpoint in it is whole, and not before: step-00000040, or one
// that a script has chosen.  While it is written it is step-00000040.saving, and
// step-00000040.removing while it is removed; what a process that died has left of these, the next
// save removes.  One that a run has passed over is step-00000040.abandoned from its next save on.
// Knows no tensors and no ranks.
// Invariant: whenever the process or the machine stops, each folder with a name is a whole
// checkpoint, as it was written.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "penstock/core/output_lock.h"
#include "penstock/files/checkpoint/manifest.h"

namespace penstock::checkpoint {

struct Found {
  std::int64_t step = 0;
  std::string folder;
  bool has_own_name = false;  // A script or a user has named it.
  friend bool operator==(const Found&, const Found&) = default;
};

// "step-00000040".
std::string name_of(std::int64_t step);
// "DIRECTORY/step-00000040".
std::string folder_of(const std::string& directory, std::int64_t step);

// Newest first; none where there is no such directory.  Folders of other names count if they have
// a manifest and shards, and are no links; where the manifest cannot be read, their step is 0.
// Throws: CheckpointError for a directory that cannot be read.
std::vector<Found> checkpoints_in(const std::string& directory);

// The checkpoints that a run has named by their steps, and goes on from by itself.
std::vector<Found> steps_in(const std::string& directory);

// Whether the checkpoint `folder` is of `directory`, however the two are written: with a '/' at the
// end, as a bare name, or through links.  False where there is no such folder.
bool is_in(const std::string& folder, const std::string& directory);

// The checkpoints that stay when a new one is there.
struct Keep {
  std::int64_t last = 0;   // Number of the newest that stay; 0: all.
  std::int64_t every = 0;  // Steps that it divides stay, too; 0: none.
  friend bool operator==(const Keep&, const Keep&) = default;
};
// The checkpoints to remove.  Never the newest, and none that has a name of its own.
std::vector<Found> not_kept(const std::vector<Found>& newest_first, const Keep& keep);

// The process that has it, rank 0's, puts new checkpoints there and removes old ones.
class CheckpointDirectory {
 public:
  // Makes the directory, and keeps other processes from saving to it.
  // Throws: CheckpointError with the directory and the reason.
  explicit CheckpointDirectory(std::string path);

  // Why others are not kept out; empty: they are.
  const std::string& missing_lock() const { return lock_.missing(); }

  // Keeps other processes from making `name` until it has its name or is abandoned.  Makes the
  // folder in which its shards are written, and removes what earlier saves and removals have left.
  // Throws: CheckpointError, also for what cannot be a checkpoint's name, and where fewer than
  // `bytes_needed` are free; it says both numbers.
  std::string begin(const std::string& name, std::uint64_t bytes_needed);
  // Takes their names, those of steps, from checkpoints of later steps than the one that is saved
  // next: the run has gone on from an earlier one.  Nothing of them is removed.  Returns: where
  // they are now.
  std::vector<std::string> abandon_after(std::int64_t step);
  // The shards are written and flushed: writes the manifest, and gives the folder its name.  What
  // had the name is replaced; files in it that are no checkpoint's stay.
  // Throws: CheckpointError with the path and the system's reason; names are then as before, unless
  // a note says that the system refuses that, too.
  void commit(const std::string& name, const Manifest& manifest,
              const std::function<void()>& advanced = {});
  // Removes what begin() made.
  void abandon(const std::string& name) noexcept;

  // `advanced` is called after each file, with its bytes.
  // Throws: CheckpointError with the path and the system's reason; the next begin() removes what is
  // left.
  void remove(const Found& checkpoint,
              const std::function<void(std::uint64_t)>& advanced = {}) const;

 private:
  std::string saving(const std::string& name) const;
  void remove_leftovers() const;
  void remove_left_locks() const;

  std::string path_;
  OutputLock lock_;
  std::optional<OutputLock> name_lock_;  // Held for the checkpoint that is being written.
  bool keeps_saving_ = false;  // The folder that is being written is an older checkpoint now.
};

}  // namespace penstock::checkpoint
