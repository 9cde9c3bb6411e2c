#include "penstock/execute/progress.h"

#include <pthread.h>

#include <mutex>
#include <vector>

namespace penstock::execute {
namespace {

struct All {
  std::mutex mutex;
  std::vector<Progress*> progresses;
};

// Never ends: a Progress may end after everything else of its process.  A child of the process
// finds the mutex free, whoever had it.
All& all() {
  static All* made = nullptr;
  static const bool is_made = [] {
    made = new All;
    ::pthread_atfork([] { made->mutex.lock(); }, [] { made->mutex.unlock(); },
                     [] { made->mutex.unlock(); });
    return true;
  }();
  (void)is_made;
  return *made;
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

void Progress::forget(const lower::Plan* gone) {
  const std::lock_guard lock(all().mutex);
  plan.compare_exchange_strong(gone, nullptr);
}

void look_at_all(const std::function<void(std::span<Progress* const>)>& look) {
  const std::lock_guard lock(all().mutex);
  look(all().progresses);
}

}  // namespace penstock::execute
