// Whether a run that failed is started again, and after which pause.
//
// `penstock train` asks it after each failure.  A pure function of what has happened so far: knows
// no processes, no files and no clock.
#pragma once
#include <cstdint>
#include <optional>

namespace penstock::launch {

class Restarts {
 public:
  static constexpr double kLongestPause = 60;  // Seconds.

  // `most`: starts in a row that saved nothing new; `newest`: the step of the newest checkpoint, 0
  // where there is none.
  Restarts(int most, std::int64_t newest) : most_(most), newest_(newest) {}

  // Whether what a run ended with may be over at the next start: a rank was lost, or it hung.
  static bool may_pass(int exit_code);

  // Judges a run that ended with `exit_code`, when `newest` is the step of the newest checkpoint.
  // Returns: seconds to wait before the next start, none after the first failure, and then 1, 2, 4
  // up to kLongestPause.  Absent: it is not started again.  Its starts are used up, or the next
  // start would end in the same way (!may_pass(exit_code)).
  std::optional<double> after_failure(int exit_code, std::int64_t newest);

  // Starts since the last new checkpoint.
  int in_a_row() const { return in_a_row_; }
  int most() const { return most_; }

 private:
  int most_;
  std::int64_t newest_;
  int in_a_row_ = 0;
};

}  // namespace penstock::launch
