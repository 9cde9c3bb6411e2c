// What the launcher of this process sees of it: that it lives, where its training stands, and why
// it fails.
//
// connect_process() begins it, and so do the communicators of the Python package: whoever trains
// under `penstock launch` or `penstock run` is watched as the ranks of `penstock train` are.  With
// other launchers nothing listens.  A program of its user's own may compute, read or sleep for as
// long as it likes: only that all ranks wait for each other is a standstill.
// Thread safety: any thread may call each of these.
#pragma once
#include <optional>
#include <string>

#include "penstock/core/error.h"

namespace penstock::rank {

// Lets the launcher hear of this process, until that ends.  An exception that nobody
// catches is reported as the cause of its end (std::set_terminate).  Later calls change nothing.
// Returns: whether a launcher listens.
bool begin_presence();

// Tells why this process is about to end, in place of "rank 1 exited 1": with the step and the
// instruction that it was at.  It counts once the process has ended by it.  `code` says of what
// kind it is: a peer that is lost is no cause.  Without a launcher that listens it does nothing.
void report_failure(const std::string& message, ExitCode code = ExitCode::Failure);

// The code to exit with once a step is finished and saved, where the run is asked to stop; absent:
// go on.  Whoever has asked once ends by itself when the run is stopped; others get the signal.
std::optional<ExitCode> stop_requested();

}  // namespace penstock::rank
