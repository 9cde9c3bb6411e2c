#include "penstock/core/background_thread.h"

#include <pthread.h>

#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "penstock/core/blocked_signals.h"
#include "penstock/core/error.h"
#include "penstock/core/refused_call.h"
#include "penstock/core/text.h"

namespace penstock {
namespace {

std::vector<std::string> advice(int why) {
  if (is_refused(why)) {
    return {
        "a container's filter that is older than the C library refuses clone3() so: start the "
        "container with a newer one, or with --security-opt seccomp=unconfined"};
  }
  return {"the limits of this shell: ulimit -u (processes); of a container: its pids limit"};
}

[[noreturn]] void fail(const std::error_code& why) {
  throw ConfigError(str("cannot start a thread: ", why.message()), advice(why.value()));
}

using Body = std::function<void()>;

// Ends the process with what the body throws, as std::thread does.
void* run(void* body) noexcept {
  const std::unique_ptr<Body> owned(static_cast<Body*>(body));
  (*owned)();
  return nullptr;
}

}  // namespace

std::thread start_background_thread(std::function<void()> body) {
  const BlockedSignals blocked;  // A thread begins with its maker's mask.
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    fail(error.code());
  }
}

void start_detached_thread(std::function<void()> body) {
  const BlockedSignals blocked;
  auto owned = std::make_unique<Body>(std::move(body));
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread{};
  const int error = pthread_create(&thread, &attributes, run, owned.get());
  pthread_attr_destroy(&attributes);
  if (error != 0) fail({error, std::generic_category()});
  static_cast<void>(owned.release());  // The thread's.
}

}  // namespace penstock
