// Keeps others from writing where this process writes: one lock for each place that is written.
//
// Whoever writes a run directory, checkpoints, a model or a corpus has one before it touches
// anything.  The lock is the system's, of a small file that says who has it.  The system lets go of
// it when the process ends, however that is, and the next owner takes over the file.
// Knows not what is written.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>

#include "penstock/core/file_descriptor.h"

namespace penstock {

class OutputLock {
 public:
  // The name of a folder's lock file; that of a path is ".NAME" before it.
  static constexpr const char* kFileName = ".penstock-lock";

  // Who may write there besides.
  enum class With : std::uint8_t {
    Nobody,
    OwnRanks,  // Processes that have lock_variable() from this one, and this process itself.
    Others,    // Whoever has it so, too: each writes files of its own.
  };

  // Locks all that is in `folder`, which exists.  `what` is written there: "a model".
  // Throws: CheckpointError that says who has it, or why the lock file cannot be opened.
  static OutputLock of_folder(const std::string& folder, const std::string& what,
                              With with = With::Nobody);
  // Locks a file or a folder that is to be made at `path`, whose folder exists.  Throws: likewise.
  static OutputLock of_path(const std::string& path, const std::string& what);

  // Removes the file, and lets go.
  ~OutputLock();
  OutputLock(OutputLock&& other) noexcept;
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

  // Why nobody is kept from writing there: the file system has no locks, or no room for the file.
  // Empty: others are kept out.
  const std::string& missing() const { return missing_; }

 private:
  OutputLock(std::string file, const std::string& place, const std::string& what, With with);

  bool try_take();
  bool is_in_place() const;
  void say_owner() const;
  void remove();

  std::string file_;
  With with_;
  FileDescriptor lock_;  // None: the owner has let this process in, or there is no lock.
  pid_t process_ = 0;    // A fork of it removes nothing.
  std::string missing_;
};

// The variable to give processes that a lock with OwnRanks lets in.
std::pair<std::string, std::string> lock_variable();

}  // namespace penstock
