// A pipe whose ends close when a program is executed.
//
// Who starts processes, and who wakes a thread, makes one.  Knows nothing of what goes through.
#pragma once
#include <string_view>

#include "penstock/core/file_descriptor.h"

namespace penstock {

struct Pipe {
  FileDescriptor reading;
  FileDescriptor writing;
};

// what: "start a rank", of the error's words.  Throws ConfigError: no descriptors are left.
Pipe make_pipe(std::string_view what);

}  // namespace penstock
