#include "penstock/runtime/rank/presence.h"

#include "penstock/runtime/rank/process_presence.h"

namespace penstock::rank {

bool begin_presence() { return Presence::begin(Program::OfUser).has_listener(); }

void report_failure(const std::string& message, ExitCode code) {
  if (Presence* const here = Presence::find()) here->fail(message, code);
}

std::optional<ExitCode> stop_requested() {
  Presence* const here = Presence::find();
  return here == nullptr ? std::nullopt : here->stop_requested();
}

}  // namespace penstock::rank
