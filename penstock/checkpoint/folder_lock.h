// Keeps other processes from saving to a folder.
//
// Whoever writes a model or checkpoints there has one.  On a file system without locks it does
// nothing.
#pragma once
#include <string>

#include "penstock/core/file_descriptor.h"

namespace penstock::checkpoint {

class FolderLock {
 public:
  // The folder exists; `what` is saved there: "a model".
  // Throws: CheckpointError when another process has it, or for want of descriptors.
  FolderLock(const std::string& folder, const std::string& what);

 private:
  FileDescriptor folder_;
};

}  // namespace penstock::checkpoint
