// A file without a name, which is gone with its descriptors.
//
// What is larger than memory, or is handed to another process, is put into one.
#pragma once
#include <string>

#include "penstock/core/file_descriptor.h"

namespace penstock {

// Opens a file for reading and writing, in a folder.  It has a name for a moment where the system
// makes no other.  An empty descriptor, with errno, where the folder takes no file.
FileDescriptor open_unnamed(const std::string& folder);

}  // namespace penstock
