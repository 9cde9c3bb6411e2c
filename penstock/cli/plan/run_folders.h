// The folders that a run of `penstock train` writes to: made, locked and tried before it starts.
//
// train.cpp has one until the last rank has ended, so that a run keeps its folders over restarts.
// Knows no ranks; which folders a run has: config/resolve.h.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/core/output_lock.h"

namespace penstock::cli {

class RunFolders {
 public:
  RunFolders() = default;
  // Removes the folders that were made, and in which nothing was written.
  ~RunFolders();
  RunFolders(const RunFolders&) = delete;
  RunFolders& operator=(const RunFolders&) = delete;

  // Makes runs/NAME-TIME, or the first of runs/NAME-TIME-2, -3, ... that is free: of two processes
  // each gets one of its own.  Throws: ConfigError with the path and the system's reason.
  std::string make_fresh(const std::string& name);

  // Makes the folders of a run in directory `run`, as far as they are not there.
  // Throws: ConfigError for one that cannot be made.
  void make(const config::Config& config, const std::string& run);
  // Keeps other processes from writing there; ranks of this one may.  REQUIRES: they are made.
  // Throws: ConfigError that says who has one of them.
  void lock(const config::Config& config, const std::string& run);
  // Throws: ConfigError for one in which no file can be made.
  void try_out(const config::Config& config, const std::string& run) const;

  // Why others are not kept from writing to one of them, a line each.
  std::vector<std::string> missing_locks() const;

 private:
  void note_missing(const std::filesystem::path& folder);

  std::vector<std::filesystem::path> made_;  // Each before those that it is in.
  std::vector<OutputLock> locks_;            // Go before the folders.
};

}  // namespace penstock::cli
