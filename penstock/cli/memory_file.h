// Files in memory that pass texts between this process and those that it starts; files without a
// name in TMPDIR, where the kernel has none in memory.
//
// Knows no names: who starts a process tells it the descriptor.
#pragma once
#include <string>

#include "penstock/core/file_descriptor.h"

namespace penstock::cli {

// Inherited by processes that this one starts.  `name` is for people.  Throws: Error.
FileDescriptor memory_file(const char* name);

// Writes at the descriptor's place.  Throws: Error.
void write_whole(int file, const std::string& text);
// Reads from the file's beginning, wherever its place is.  Throws: Error.
std::string read_whole(int file);

}  // namespace penstock::cli
