#include "penstock/core/progress_lines.h"

#include <algorithm>
#include <utility>

#include "penstock/core/background_thread.h"
#include "penstock/core/byte_size.h"
#include "penstock/core/error.h"
#include "penstock/core/program_output.h"
#include "penstock/core/text.h"

namespace penstock {

ProgressLines::ProgressLines(std::chrono::nanoseconds after)
    : ProgressLines([](const std::string& line) { write_message(line); }, after) {}

ProgressLines::ProgressLines(Write write, std::chrono::nanoseconds after)
    : write_(std::move(write)), after_(after) {
  try {
    thread_ = start_background_thread([this] { tell(); });
  } catch (const ConfigError&) {  // The work needs none of this.
  }
}

ProgressLines::~ProgressLines() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ProgressLines::at(std::string text) {
  const std::lock_guard lock(mutex_);
  text_ = std::move(text);
}

void ProgressLines::at(const std::string& doing, std::int64_t done, std::int64_t all,
                       const char* of_what) {
  at(str(doing, ": ", done, " of ", all, " ", of_what));
}

void ProgressLines::tell() {
  using Clock = std::chrono::steady_clock;
  constexpr int kShare = 10;
  const Clock::time_point start = Clock::now();
  std::string told;
  std::unique_lock lock(mutex_);
  while (true) {
    const auto due = std::max(after_, std::chrono::nanoseconds((Clock::now() - start) / kShare));
    if (changed_.wait_for(lock, due, [this] { return is_over_; })) return;
    if (text_ == told) continue;
    told = text_;
    lock.unlock();
    write_("penstock: " + told);
    lock.lock();
  }
}

ByteProgress::ByteProgress(std::string doing, std::uint64_t bytes)
    : doing_(std::move(doing)), bytes_(bytes) {}

void ByteProgress::add(std::uint64_t bytes) {
  done_ += std::min(bytes, bytes_ - done_);
  lines_.at(text());
}

std::string ByteProgress::text() const {
  return str(doing_, ": ", mebibytes(done_), " of ", mebibytes(bytes_));
}

}  // namespace penstock
