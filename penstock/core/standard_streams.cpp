#include "penstock/core/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

namespace penstock {
namespace {

// The lowest number that is free.
void take_next_number() {
  if (::open("/dev/null", O_RDONLY) < 0) ::open("/", O_RDONLY | O_DIRECTORY);
}

}  // namespace

void open_missing_streams() {
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (::fcntl(stream, F_GETFD) < 0) take_next_number();
  }
}

bool can_be_written(int descriptor) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  return flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
}

}  // namespace penstock
