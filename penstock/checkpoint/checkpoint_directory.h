// The checkpoints of a run: a directory with a folder for each, by step.
//
// A folder has its name, step-00000040, when the checkpoint in it is whole, and not before.  While
// it is written it is step-00000040.saving, and step-00000040.removing while it is removed; what a
// process that died has left of these, the next save removes.  One that a run has passed over is
// step-00000040.abandoned from its next save on.
// Knows no tensors and no ranks.
// Invariant: whenever the process or the machine stops, each folder with a name is a whole
// checkpoint, as it was written.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "penstock/checkpoint/folder_lock.h"
#include "penstock/checkpoint/manifest.h"

namespace penstock::checkpoint {

struct Found {
  std::int64_t step = 0;
  std::string folder;
  friend bool operator==(const Found&, const Found&) = default;
};

// "DIRECTORY/step-00000040".
std::string folder_of(const std::string& directory, std::int64_t step);

// Newest first; none where there is no such directory.
// Throws: CheckpointError for a directory that cannot be read.
std::vector<Found> checkpoints_in(const std::string& directory);

// Which checkpoints stay when a new one is there.
struct Keep {
  std::int64_t last = 0;   // So many of the newest; 0: all.
  std::int64_t every = 0;  // And those of steps that it divides; 0: none.
  friend bool operator==(const Keep&, const Keep&) = default;
};
// Those that do not.  Never the newest.
std::vector<Found> not_kept(const std::vector<Found>& newest_first, const Keep& keep);

// The process that has it, rank 0's, puts new checkpoints there and removes old ones.
class CheckpointDirectory {
 public:
  // Makes the directory, and keeps other processes from saving to it.
  // Throws: CheckpointError with the directory and the reason.
  explicit CheckpointDirectory(std::string path);

  // Makes the folder in which shards of a checkpoint are written, and removes what earlier saves
  // and removals have left.
  // Throws: CheckpointError, also where fewer than `bytes_needed` are free; it says both numbers.
  std::string begin(std::int64_t step, std::uint64_t bytes_needed);
  // Takes their names from checkpoints of later steps than the one that is saved next: the run has
  // gone on from an earlier one.  Nothing of them is removed.  Returns: where they are now.
  std::vector<std::string> abandon_after(std::int64_t step);
  // The shards are written and flushed: writes the manifest, and gives the folder its name.  What
  // had the name is replaced.
  // Throws: CheckpointError with the path and the system's reason; names are then as before.
  void commit(const Manifest& manifest, const std::function<void()>& advanced = {});
  // Removes what begin() made.
  void abandon(std::int64_t step) noexcept;

  void remove(const Found& checkpoint) const;

 private:
  std::string saving(std::int64_t step) const;
  void remove_leftovers() const;

  std::string path_;
  std::optional<FolderLock> lock_;
};

}  // namespace penstock::checkpoint
