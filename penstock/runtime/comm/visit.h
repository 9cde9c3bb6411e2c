// Calls on the acceptors of other ranks (acceptor.h): many at once, for a moment each.
//
// Alarms and questions go this way.  It needs no launcher, no store, and no rank but the two.
// Thread safety: any thread.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/runtime/comm/acceptor.h"

namespace penstock::comm {

// What came of a visit.
struct Visited {
  enum class End : std::uint8_t {
    Heard,   // The rank took all that was said, and, of a question, gave `answer`.
    Silent,  // The rank was not done in time, or it is no rank.
    Gone,    // Nobody listens there.
  };
  End end = End::Silent;
  std::string answer;
};

// Says `text` to the acceptors at those addresses, 256 at once; who is not done within `patience`
// is left.  By address.  Throws: std::bad_alloc, and nothing else.
std::vector<Visited> visit(const std::vector<std::string>& addresses, Purpose purpose, Rank from,
                           const std::string& text, std::chrono::milliseconds patience);

}  // namespace penstock::comm
