#include "penstock/checkpoint/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>

#include "penstock/core/error.h"
#include "penstock/core/new_file.h"
#include "penstock/core/text.h"

namespace penstock::checkpoint {

FolderLock::FolderLock(const std::string& folder, const std::string& what)
    : folder_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (!folder_ && fails_for_any_folder(errno)) {
    throw CheckpointError(
        str("cannot open the folder ", quoted_path(folder), ": ", std::strerror(errno)));
  }
  if (!folder_ || ::flock(folder_.get(), LOCK_EX | LOCK_NB) == 0) return;
  if (errno != EWOULDBLOCK) return;  // This file system has no locks.
  throw CheckpointError(str("cannot save to the folder ", quoted_path(folder),
                            ": another process is saving ", what, " to it"));
}

}  // namespace penstock::checkpoint
