// Tells the other ranks of what goes wrong on this one, outside of a program.
//
// An executor does it for its program itself.
#pragma once
#include <exception>
#include <string>

#include "penstock/comm/communicator.h"
#include "penstock/core/error.h"
#include "penstock/core/exception_text.h"
#include "penstock/core/text.h"

namespace penstock::comm {

// What goes wrong here, on this rank alone: the others, who wait for it, are told.
// Throws: what `action` does; an Error for what is no std::exception.
template <class Action>
auto or_fail(Communicator& communicator, const Action& action) {
  try {
    return action();
  } catch (const std::exception& error) {
    communicator.fail(error);
    throw;
  } catch (...) {
    const Error error(handled_text());
    communicator.fail(error);
    std::throw_with_nested(error);
  }
}

// The same, where `action` is a user's code, or calls it.  Throws: an Error that begins with this
// rank and what `where()` says: "rank 1, step 3: ".
template <class Where, class Action>
auto or_fail_at(Communicator& communicator, const Where& where, const Action& action) {
  return or_fail(communicator, [&] {
    try {
      return action();
    } catch (...) {
      rethrow_from(str("rank ", communicator.rank(), where()));
    }
  });
}

}  // namespace penstock::comm
