// Tells all other ranks that this one has failed.
//
// It connects to each one's acceptor and says why.  So the news needs no launcher, no store, and no
// rank but the two.  Connections exist for that moment only.
// Thread safety: any thread.
#pragma once
#include <string>
#include <vector>

#include "penstock/core/ids.h"

namespace penstock::comm {

// Tells `text` (at most 32 KiB of it) to the acceptors at those addresses, 256 at once; who does
// not take it within a second is left.  Never throws.
void raise_alarm(const std::vector<std::string>& addresses, Rank from,
                 const std::string& text) noexcept;

}  // namespace penstock::comm
