// Ctrl-C while C++ waits for other ranks.
//
// Python only notes a signal until its own code runs again.  While a SigintWatch lives, SIGINT also
// ends the waits of its communicator, on all ranks.  Watches nest, and end in any order.  What
// handled the signal before goes on to handle it, and is there again when the last watch has ended.
// Knows no Python: who has waited asks it.
// Thread safety: made on the process's first thread, whose signals they are; does nothing when it
// is made on another.  Ends on any.
#pragma once
#include <cstdint>

#include "penstock/comm/communicator.h"

namespace penstock::bindings {

class SigintWatch {
 public:
  explicit SigintWatch(comm::Communicator& communicator);
  ~SigintWatch();
  SigintWatch(const SigintWatch&) = delete;
  SigintWatch& operator=(const SigintWatch&) = delete;

  // Whether SIGINT came while it lived.
  bool interrupted() const;

 private:
  comm::Communicator* watched_ = nullptr;  // Null: does nothing.
  std::uint32_t signals_before_ = 0;
};

}  // namespace penstock::bindings
