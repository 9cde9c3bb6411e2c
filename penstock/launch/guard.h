// A small process that kills the ranks' process groups when the launcher itself is killed.
//
// The kernel already kills each rank with the launcher (process.h); the guard is for the ranks'
// own children, which nothing else would end.  It only reads a socket: the launcher's end closes
// when the launcher dies, by whatever means.
#pragma once
#include <sys/types.h>

#include <cstddef>

#include "penstock/core/file_descriptor.h"

namespace penstock::launch {

inline constexpr std::size_t kGuardedGroupsMax = 4096;

class Guard {
 public:
  // Starts the guard.  Throws ConfigError when no process can be started.
  Guard();
  Guard(Guard&&) = delete;
  ~Guard();  // Ends it, together with the groups that it still watches.

  // REQUIRES: at most kGuardedGroupsMax are watched at a time.
  void watch(pid_t group);
  // REQUIRES: the group's first process is not reaped yet, so that its number is not another's.
  void forget(pid_t group);

 private:
  pid_t pid_ = 0;
  FileDescriptor channel_;
};

}  // namespace penstock::launch
