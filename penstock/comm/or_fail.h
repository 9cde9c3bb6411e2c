// Tells the other ranks of what goes wrong on this one, outside of a program.
//
// An executor does it for its program itself.
#pragma once
#include <exception>

#include "penstock/comm/communicator.h"

namespace penstock::comm {

// What goes wrong here, on this rank alone: the others, who wait for it, are told.
template <class Action>
auto or_fail(Communicator& communicator, const Action& action) {
  try {
    return action();
  } catch (const std::exception& error) {
    communicator.fail(error);
    throw;
  }
}

}  // namespace penstock::comm
