// Ctrl-C while C++ waits for other ranks.
//
// Python only notes a signal until its own code runs again.  While a SigintWatch lives, SIGINT also
// ends the waits of a communicator, on all ranks.  Knows no Python: who has waited asks it.
// Thread safety: used by the process's first thread, and does nothing on others: signals are its.
#pragma once
#include "penstock/comm/communicator.h"

namespace penstock::bindings {

class SigintWatch {
 public:
  explicit SigintWatch(comm::Communicator& communicator);
  ~SigintWatch();
  SigintWatch(const SigintWatch&) = delete;
  SigintWatch& operator=(const SigintWatch&) = delete;

  bool interrupted() const;

 private:
  bool active_ = false;
};

}  // namespace penstock::bindings
