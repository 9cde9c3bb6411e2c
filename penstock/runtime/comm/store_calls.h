// Tells which of torch's two TCP stores this system can run.
//
// Rank 0 asks before it makes one.  Knows no addresses.
#pragma once

namespace penstock::comm {

// Whether the newer one runs, which is libuv's; where a call that it makes is refused, it ends the
// process, or takes no connections.
// Throws: CommError where the older one cannot run either.
bool runs_newer_store();

}  // namespace penstock::comm
