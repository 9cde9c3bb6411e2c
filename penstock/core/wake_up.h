// Ends another thread's wait in poll(), for good.
//
// A thread that serves descriptors polls one more, which is readable from wake() on.
// Thread safety: any thread may wake.
#pragma once
#include <unistd.h>

#include <string_view>

#include "penstock/core/pipe.h"

namespace penstock {

class WakeUp {
 public:
  // what: as make_pipe()'s.  Throws: ConfigError likewise.
  explicit WakeUp(std::string_view what) : pipe_(make_pipe(what)) {}

  int descriptor() const { return pipe_.reading.get(); }
  // A byte, as a fork of this process may hold the other end open.
  void wake() { [[maybe_unused]] const auto written = ::write(pipe_.writing.get(), "", 1); }

 private:
  Pipe pipe_;
};

}  // namespace penstock
