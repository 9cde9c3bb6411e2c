// Lets the ranks of a command hear of each other's failures.
//
// run.cpp, evaluate.cpp and continue_text.cpp use it.  Knows nothing of what is run.
#pragma once
#include <exception>

#include "penstock/comm/communicator.h"
#include "penstock/core/error.h"
#include "penstock/runtime/train/handshake.h"

namespace penstock::run {

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
