// A folder that a command makes at a path of the user's: there whole, or not there.
//
// `penstock checkpoint export` writes to one.  Knows no formats.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/output_lock.h"

namespace penstock::checkpoint {

// The place of a new folder: `path` without a slash at its end, and the folder that a link leads
// to.  `what` is made there: "a model".
// Throws: ConfigError where there is something already, unless it is an empty folder.
std::string path_of_new(const std::string& path, const std::string& what);

// Throws: CheckpointError where fewer than `bytes` are free for a file in `folder`; it says both
// numbers.  `what` is what cannot be saved: "step-00000040 to \"runs/a\"".
void require_free(const std::string& folder, std::uint64_t bytes, const std::string& what);

// The folders above a new one, as far as they are not there yet.
class FoldersAbove {
 public:
  // Makes them.  Throws: CheckpointError with the path and the system's reason.
  explicit FoldersAbove(const std::string& path);
  // Removes them again, unless keep() was called or something is in them.
  ~FoldersAbove();
  FoldersAbove(const FoldersAbove&) = delete;
  FoldersAbove& operator=(const FoldersAbove&) = delete;

  void keep() { made_.clear(); }

 private:
  void remove_made() const noexcept;

  std::vector<std::filesystem::path> made_;  // The innermost is first.
};

class NewFolder {
 public:
  // Keeps other processes from making PATH, and makes the folder PATH.saving, and those above it.
  // A folder of that name that a process has left is emptied first, where all of its files are
  // `is_own`.
  // REQUIRES: `path` is path_of_new()'s.
  // Throws: ConfigError as path_of_new(), where it is there by now; CheckpointError with the path
  // and the reason; one is that another process makes it.
  NewFolder(std::string path, const std::string& what,
            const std::function<bool(std::string_view)>& is_own);
  // Removes what was made, unless it is finished.
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  // The folder in which files are written, and flushed, until finish().
  const std::string& folder() const { return saving_; }

  // Gives the folder its name, on the disk, too.
  // Throws: CheckpointError with the path and the system's reason.
  void finish();

 private:
  std::string path_;
  FoldersAbove above_;
  OutputLock lock_;
  std::string saving_;
  bool is_ours_ = false;
};

}  // namespace penstock::checkpoint
