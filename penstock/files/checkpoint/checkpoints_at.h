// Finds the checkpoints that a user's path means: one itself, a folder of them, or a run's
// directory.
//
// `penstock checkpoint` and --resume ask.  Links and a slash at the end are as good.
#pragma once
#include <string>
#include <vector>

#include "penstock/files/checkpoint/checkpoint_directory.h"

namespace penstock::checkpoint {

bool is_checkpoint(const std::string& path);

// `path`, or the checkpoints of the run directory that it is.  Throws: ConfigError for no folder.
std::string directory_in(const std::string& path);

// The checkpoint itself, or all of a directory or a run directory, newest first.
// Throws: ConfigError where there is none.
std::vector<Found> checkpoints_at(const std::string& path);

}  // namespace penstock::checkpoint
