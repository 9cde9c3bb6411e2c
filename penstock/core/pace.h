// Tells when the next line of progress is due.
//
// Whoever works for long asks it after each piece of work.  Knows no lines.
#pragma once
#include <chrono>

namespace penstock {

class Pace {
 public:
  explicit Pace(std::chrono::nanoseconds every) : every_(every) {}

  // Once in `every` at most, and not before that time has passed.
  bool is_due() {
    const Clock::time_point now = Clock::now();
    if (now - last_ < every_) return false;
    last_ = now;
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::chrono::nanoseconds every_;
  Clock::time_point last_ = Clock::now();
};

}  // namespace penstock
