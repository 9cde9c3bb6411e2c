#include "penstock/core/output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>

#include "penstock/core/background_thread.h"
#include "penstock/core/printable.h"
#include "penstock/core/text.h"

namespace penstock {

struct Output::State {
  explicit State(int fd) : descriptor(fd), terminal(::isatty(fd) != 0) {}

  void push(std::string_view text) {
    const std::lock_guard lock(mutex);
    if (gone || closing) return;
    left_out += std::exchange(failed, 0);
    if (waiting_bytes + text.size() > kWaitingBytesMax) {
      ++left_out;
      return;
    }
    if (left_out > 0) push_note();
    texts.emplace_back(text);
    waiting_bytes += text.size();
    changed.notify_all();
  }

  // REQUIRES: the lock.
  void push_note() {
    texts.push_back(
        str("penstock: output was not taken in time: ", left_out, " lines are left out here\n"));
    waiting_bytes += texts.back().size();
    left_out = 0;
  }

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return !texts.empty() || left_out > 0 || closing; });
      if (texts.empty() && left_out > 0) push_note();
      if (texts.empty()) break;
      const std::string text = std::move(texts.front());
      lock.unlock();
      const bool taken = write_all(text);
      const int error = errno;
      lock.lock();
      texts.pop_front();
      waiting_bytes -= text.size();
      if (!taken && error == EPIPE) break;  // Nobody will ever read.
      if (!taken) ++failed;                 // A full disk, perhaps: it may have room for the next.
    }
    gone = true;
    texts.clear();
    changed.notify_all();
  }

  // False, with errno, when not all of it could be written.
  bool write_all(std::string_view text) {
    while (!text.empty()) {
      const ssize_t written = ::write(descriptor, text.data(), text.size());
      if (written > 0) {
        text.remove_prefix(static_cast<std::size_t>(written));
        const std::lock_guard lock(mutex);
        taken_bytes += static_cast<std::uint64_t>(written);
        changed.notify_all();
      } else if (errno == EAGAIN) {  // Somebody else's choice for a descriptor that is shared.
        pollfd writable{descriptor, POLLOUT, 0};
        ::poll(&writable, 1, -1);
      } else if (errno != EINTR) {
        return false;
      }
    }
    return true;
  }

  void close() {
    std::unique_lock lock(mutex);
    closing = true;
    changed.notify_all();
    if (gave_up) return;
    for (std::uint64_t before = taken_bytes; !gone; before = taken_bytes) {
      const bool moved = changed.wait_for(lock, std::chrono::duration<double>(kPatienceSeconds),
                                          [&] { return gone || taken_bytes != before; });
      gave_up = !moved;
      if (gave_up) return;
    }
  }

  const int descriptor;
  const bool terminal;
  std::mutex mutex;  // Guards the rest.
  std::condition_variable changed;
  std::deque<std::string> texts;  // The first is being written.
  std::size_t waiting_bytes = 0;
  std::uint64_t taken_bytes = 0;
  std::int64_t left_out = 0;
  std::int64_t failed = 0;  // Left out as well; that is told with the next text.
  bool closing = false;
  bool gave_up = false;  // No longer waits for the reader.
  bool gone = false;     // The thread writes no more.
};

Output::Output(int descriptor) : state_(std::make_shared<State>(descriptor)) {
  // There, a reader that is gone is an error of write(), and not SIGPIPE.
  start_detached_thread([state = state_] { state->run(); });
}

Output::~Output() { finish(); }

void Output::finish() { state_->close(); }

void Output::write(std::string_view text) { state_->push(printable(text)); }

void Output::rewrite_line(std::string_view text) { state_->push("\r\033[K" + printable(text)); }

void Output::relay(std::string_view bytes) { state_->push(bytes); }

bool Output::is_terminal() const { return state_->terminal; }

class OutputStream::Buffer : public std::stringbuf {
 public:
  explicit Buffer(Output& output) : output_(output) {}
  int sync() override {
    output_.write(view());
    str("");
    return 0;
  }

 private:
  Output& output_;
};

OutputStream::OutputStream(Output& output)
    : std::ostream(nullptr), buffer_(std::make_unique<Buffer>(output)) {
  rdbuf(buffer_.get());
}

OutputStream::~OutputStream() { flush(); }

}  // namespace penstock
