#include "penstock/launch/restarts.h"

#include <algorithm>
#include <cmath>

#include "penstock/core/error.h"

namespace penstock::launch {

bool Restarts::may_pass(int exit_code) {
  return exit_code == static_cast<int>(ExitCode::PeerLost) ||
         exit_code == static_cast<int>(ExitCode::Hang);
}

std::optional<double> Restarts::after_failure(int exit_code, std::int64_t newest) {
  if (!may_pass(exit_code)) return std::nullopt;
  // An earlier step counts as new: the run passed over a checkpoint, and has saved since.
  if (newest != newest_) in_a_row_ = 0;
  newest_ = newest;
  if (in_a_row_ >= most_) return std::nullopt;
  ++in_a_row_;
  if (in_a_row_ == 1) return 0.0;
  return std::min(kLongestPause, std::exp2(in_a_row_ - 2));
}

}  // namespace penstock::launch
