// Whether another process of this host lives.
//
// A link over shared memory asks while it waits: nothing else tells it that the other end is gone.
// Knows no ranks.  Linux only.
#pragma once
#include <cstdint>
#include <string>

#include "penstock/core/file_descriptor.h"

namespace penstock::comm::shm {

// Watches a process by its number, and stays right when the number is used again.
class Liveness {
 public:
  explicit Liveness(std::int32_t process);
  // A system that tells in no way is taken to say yes.
  bool alive() const;

 private:
  std::int32_t process_;
  FileDescriptor pidfd_;  // Empty where the kernel has none.
  // Tells it from another process of its number, by /proc; empty where /proc does not tell.
  std::string start_;
  bool ended_ = false;  // Had ended when this was made.
};

}  // namespace penstock::comm::shm
