#include "penstock/core/background_thread.h"

#include <system_error>
#include <utility>
#include <vector>

#include "penstock/core/blocked_signals.h"
#include "penstock/core/error.h"
#include "penstock/core/refused_call.h"
#include "penstock/core/text.h"

namespace penstock {
namespace {

std::vector<std::string> advice(const std::error_code& why) {
  if (is_refused(why.value())) {
    return {
        "a container's filter that is older than the C library refuses clone3() so: start the "
        "container with a newer one, or with --security-opt seccomp=unconfined"};
  }
  return {"the limits of this shell: ulimit -u (processes); of a container: its pids limit"};
}

}  // namespace

std::thread start_background_thread(std::function<void()> body) {
  const BlockedSignals blocked;  // A thread begins with its maker's mask.
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    throw ConfigError(str("cannot start a thread: ", error.code().message()), advice(error.code()));
  }
}

}  // namespace penstock
