// The process that speaks on a rank's control channel: the rank's own, or another one, of which the
// launcher is not the parent, because the rank is a shell that runs it.
//
// rank_processes.h has one for each rank.  Knows no messages.
#pragma once
#include <sys/types.h>

#include <optional>
#include <string>

#include "penstock/core/file_descriptor.h"

namespace penstock::launch {

// A message of a control channel, with the process that has sent it; 0: the kernel does not say.
struct Spoken {
  std::string line;
  pid_t pid = 0;
};

// Makes receive() say who has sent a message.
void name_senders(int channel);
// Returns: nothing where no message waits; an empty line where nobody can send one any more.  A
// message of more than `bytes_max` is cut behind that and one byte more.
std::optional<Spoken> receive(int channel, std::size_t bytes_max);

class Speaker {
 public:
  // The process that has spoken last.
  void is(pid_t pid);
  // It speaks no more.
  void forget() { *this = {}; }
  // Whether it has ended; false where none has spoken, or the kernel has no pidfd.
  bool has_ended() const;
  // Readable when it has ended; -1: nothing is.
  int descriptor() const { return pidfd_.get(); }

 private:
  pid_t pid_ = 0;
  FileDescriptor pidfd_;
  bool was_gone_ = false;  // It had ended before it was heard.
};

}  // namespace penstock::launch
