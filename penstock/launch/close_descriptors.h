// Closes what a process has inherited, on kernels of any age.
//
// The guard does so, to hold nothing of the launcher's.  Knows nothing of what is behind them.
#pragma once

namespace penstock::launch {

// All descriptors of this process but one.  Async-signal-safe, for a process that was just forked.
void close_all_but(int kept);

}  // namespace penstock::launch
