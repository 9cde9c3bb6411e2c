#include "penstock/core/background_thread.h"

#include <utility>

#include "penstock/core/blocked_signals.h"

namespace penstock {

std::thread start_background_thread(std::function<void()> body) {
  const BlockedSignals blocked;  // A thread begins with its maker's mask.
  return std::thread(std::move(body));
}

}  // namespace penstock
