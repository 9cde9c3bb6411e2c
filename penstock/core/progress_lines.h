// Lines that say what long work is at, for who waits for it: "penstock: reading x: 3 of 9".
//
// Commands have one, and rank 0 where ranks work.  Work that is over within kAfter is told of in no
// line; later ones come kAfter apart, or a tenth of the time that has passed, if that is longer.
// A thread writes them, so that a part which takes long is told of before it is over; where the
// system starts no more threads, there are none.
// Knows no work and no files.  Thread safety: one thread calls it.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace penstock {

class ProgressLines {
 public:
  static constexpr std::chrono::seconds kAfter{2};
  // Takes a line without its end.
  using Write = std::function<void(const std::string& line)>;

  // Lines are messages of this program (program_output.h).
  explicit ProgressLines(std::chrono::nanoseconds after = kAfter);
  // `write` is called by the thread, and outlives this.
  explicit ProgressLines(Write write, std::chrono::nanoseconds after = kAfter);
  ~ProgressLines();
  ProgressLines(const ProgressLines&) = delete;
  ProgressLines& operator=(const ProgressLines&) = delete;

  // Work is here: "memory: measuring layer "fc"".  The last such text is told when a line is due,
  // and none twice in a row.
  void at(std::string text);
  // The same of work on so much: "evaluating: 3 of 9 samples".
  void at(const std::string& doing, std::int64_t done, std::int64_t all, const char* of_what);

 private:
  void tell();

  Write write_;
  std::chrono::nanoseconds after_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
  bool is_over_ = false;
  std::thread thread_;
};

// The same of work on bytes: "reading runs/a: 512 MiB of 2048 MiB".
class ByteProgress {
 public:
  // `doing` says what the work is; it is over after `bytes`.
  ByteProgress(std::string doing, std::uint64_t bytes);

  // Adds bytes that are done.
  void add(std::uint64_t bytes);
  // "reading runs/a: 512 MiB of 2048 MiB".
  std::string text() const;

 private:
  std::string doing_;
  std::uint64_t bytes_;
  std::uint64_t done_ = 0;
  ProgressLines lines_;
};

}  // namespace penstock
