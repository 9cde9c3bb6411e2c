// Lines that say what long work is at: the first one when the work has taken a while, even if it is
// still at its first part.
//
// Commands that run layers at full size have one.  Thread safety: one thread calls it.
#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace penstock::cli {

class LateLines {
 public:
  static constexpr std::chrono::seconds kAfter{2};

  // Lines are messages of this program (core/program_output.h).
  LateLines();
  ~LateLines();
  LateLines(const LateLines&) = delete;
  LateLines& operator=(const LateLines&) = delete;

  // A part of the work begins: "penstock: memory: measuring layer "fc"".
  void begin(const std::string& part);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string part_;
  bool is_late_ = false;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace penstock::cli
