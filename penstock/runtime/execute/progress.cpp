#include "penstock/runtime/execute/progress.h"

#include <pthread.h>

#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "penstock/core/text.h"
#include "penstock/lower/plan.h"
#include "penstock/schedule/action.h"

namespace penstock::execute {
namespace {

struct All {
  All();
  std::mutex mutex;
  std::vector<Progress*> progresses;
  std::optional<Position> failure;
};

std::atomic<bool> has_failed{false};  // All has a failure.

// Never ends: a Progress may end after everything else of its process.
All& all() {
  static All* const all = new All;
  return *all;
}

// A child of the process finds the mutex free, whoever had it.
All::All() {
  ::pthread_atfork([] { all().mutex.lock(); }, [] { all().mutex.unlock(); },
                   [] { all().mutex.unlock(); });
}

}  // namespace

Progress::Progress() {
  const std::lock_guard lock(all().mutex);
  all().progresses.push_back(this);
}

Progress::~Progress() {
  const std::lock_guard lock(all().mutex);
  std::erase(all().progresses, this);
}

Position Progress::position() const {
  Position at{.counter = counter.load(std::memory_order_relaxed),
              .step = step.load(std::memory_order_relaxed),
              .phase = phase.load(std::memory_order_relaxed),
              .doing = doing.load(std::memory_order_relaxed),
              .waiting = waiting.load(std::memory_order_relaxed),
              .uses_files = uses_files.load(std::memory_order_relaxed)};
  const lower::Plan* const running = plan.load(std::memory_order_acquire);
  const auto index = instruction.load(std::memory_order_relaxed);
  if (running != nullptr && index >= 0 && index < std::ssize(running->instructions)) {
    const auto& at_work = running->instructions[static_cast<std::size_t>(index)];
    at.action = schedule::to_string(at_work.action);
    const char* const under_way = exchange.load(std::memory_order_relaxed);
    if (under_way == nullptr) {
      at.peer = at_work.peer;
    } else {
      at.action += str(": ", under_way);  // All that share the layer are waited for.
    }
  }
  return at;
}

// An exception passes through the innermost place first.
void Progress::leave() const {
  Position here = position();
  const std::lock_guard lock(all().mutex);
  if (!all().failure) all().failure = std::move(here);
  has_failed.store(true, std::memory_order_relaxed);
}

std::optional<Position> position_of_failure() {
  const std::lock_guard lock(all().mutex);
  return all().failure;
}

void forget_failure() {
  if (!has_failed.load(std::memory_order_relaxed)) return;
  if (std::uncaught_exceptions() > 0 || std::current_exception()) return;  // Work because of it.
  const std::lock_guard lock(all().mutex);
  all().failure.reset();
  has_failed.store(false, std::memory_order_relaxed);
}

void Progress::forget(const lower::Plan* gone) {
  const std::lock_guard lock(all().mutex);
  plan.compare_exchange_strong(gone, nullptr);
}

void look_at_all(const std::function<void(std::span<Progress* const>)>& look) {
  const std::lock_guard lock(all().mutex);
  look(all().progresses);
}

}  // namespace penstock::execute
