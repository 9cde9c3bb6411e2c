// The variables that ranks on other hosts get: those of a file, DeepSpeed's .deepspeed_env, and
// those of this process that say where programs are and how they talk.
//
// Knows no hosts.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::hosts {

using Variables = std::vector<std::pair<std::string, std::string>>;

// A line NAME=VALUE each; blank lines and those that begin with '#' are passed over.  A value is
// all that stands behind the '=', without blanks at its end.
// Throws: ConfigError, which says all that is wrong, each with `name` and the line.
Variables parse_environment_file(std::string_view text, const std::string& name);

// Picks the "NAME=value" entries that go along: PATH, LD_LIBRARY_PATH, OMP_NUM_THREADS, and all
// that begin with PYTHON, PENSTOCK_, NCCL_, GLOO_, UCX_, MV2_, MLFLOW_ or WANDB_.  Never those of a
// launch.
Variables exported(const std::vector<std::string>& entries);

}  // namespace penstock::hosts
