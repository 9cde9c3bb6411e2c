// Lets those outside a run see where it stands, and its ranks hear of each other's failures.
//
// run.cpp and evaluate.cpp use it.  Knows nothing of what is run.
#pragma once
#include <exception>

#include "penstock/comm/communicator.h"
#include "penstock/core/error.h"
#include "penstock/execute/progress.h"
#include "penstock/run/run.h"
#include "penstock/train/handshake.h"

namespace penstock::run {

// Lets the hooks look at the run's progress, for no longer than what it points to lives.
class Watch {
 public:
  Watch(const RunHooks& hooks, const execute::Progress& progress) : hooks_(hooks) {
    if (hooks_.watch) hooks_.watch(progress);
  }
  ~Watch() {
    if (hooks_.unwatch) hooks_.unwatch();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  const RunHooks& hooks_;
};

// What `work` returns.  What it throws is told to the other ranks, unless all of them find it.
template <class Work>
ExitCode telling_others(comm::Communicator& communicator, const Work& work) {
  try {
    return work();
  } catch (const NumericsError&) {
    throw;  // All ranks find it.
  } catch (const train::DifferenceError&) {
    throw;  // Same here.
  } catch (const std::exception& error) {
    communicator.fail(error);
    throw;
  }
}

}  // namespace penstock::run
