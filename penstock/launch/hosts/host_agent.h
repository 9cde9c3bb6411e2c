// A host's part of a run on several hosts: starts its ranks, passes on what they say and what they
// are told, and ends them when the launcher is gone.
//
// `penstock host`, which the launcher starts by ssh, is this.  Decides nothing: the launcher
// watches all ranks as if they were its own (remote_ranks.h).  Speaks frames (frame.h) on standard
// input and output.  Ends its ranks when the input ends, the launcher says nothing for the run's
// heartbeat, or nobody reads the output; and on SIGINT, SIGTERM or SIGHUP.
#pragma once

namespace penstock::hosts {

// Returns the exit code: 0 when the ranks have ended, however they did; 2 where they could not be
// started, 4 where the launcher is gone.
int serve_host(int input, int output);

}  // namespace penstock::hosts
