#include "penstock/execute/progress.h"

#include <pthread.h>

#include <mutex>
#include <vector>

namespace penstock::execute {
namespace {

struct All {
  All();
  std::mutex mutex;
  std::vector<Progress*> progresses;
};

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

void Progress::forget(const lower::Plan* gone) {
  const std::lock_guard lock(all().mutex);
  plan.compare_exchange_strong(gone, nullptr);
}

void look_at_all(const std::function<void(std::span<Progress* const>)>& look) {
  const std::lock_guard lock(all().mutex);
  look(all().progresses);
}

}  // namespace penstock::execute
