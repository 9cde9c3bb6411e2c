#include "penstock/cli/runtime/late_lines.h"

#include "penstock/core/background_thread.h"
#include "penstock/core/program_output.h"

namespace penstock::cli {

LateLines::LateLines() {
  thread_ = start_background_thread([this] {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, kAfter, [this] { return is_over_; })) return;
    is_late_ = true;
    if (!part_.empty()) write_message(part_);
  });
}

LateLines::~LateLines() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void LateLines::begin(const std::string& part) {
  const std::lock_guard lock(mutex_);
  part_ = part;
  if (is_late_) write_message(part_);
}

}  // namespace penstock::cli
