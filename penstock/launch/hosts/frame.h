// What the launcher of a run and its part on another host tell each other, and its text form.
//
// remote_ranks.h is the one side, host_agent.h the other; a connection carries bytes in order
// (connection.h).  Text form: "VERB RANK LENGTH", a newline, and LENGTH bytes.  RANK counts the
// host's own ranks; it is 0 where a frame is of none.
//
// From the launcher:     start (a HostRun); message R (a line for a rank's control channel);
//                        signal R (a number); alive; end
// From the host:         port (a number); started R (a process id); said R (a line of a rank's
//                        control channel); output R, errors R (bytes); state R (a letter of
//                        /proc/PID/stat); ended R ("exited N" or "signalled N"); alive;
//                        failed (texts: an exit code, a message, notes)
// A host begins with a greeting, since a shell's start-up files may write something before it.
// Parsers are strict: what comes from another host is data, not trusted.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/launch/process.h"

namespace penstock::hosts {

enum class Verb : std::uint8_t {
  Start,
  Message,
  Signal,
  Alive,
  End,
  Port,
  Started,
  Said,
  Output,
  Errors,
  State,
  Ended,
  Failed
};

// The pace of both sides: how often one looks what has come, and says that it is alive.
inline constexpr int kTickMs = 100;
inline constexpr std::int64_t kBeatMs = 1000;

struct Frame {
  Verb verb = Verb::Alive;
  int rank = 0;
  std::string body{};
  friend bool operator==(const Frame&, const Frame&) = default;
};

inline constexpr std::size_t kBodyBytesMax = std::size_t{1} << 22;

std::string encode(const Frame& frame);

// Frames from bytes as they come.
class FrameReader {
 public:
  void add(std::string_view bytes) { waiting_.erase(0, std::exchange(begin_, 0)).append(bytes); }
  // The next whole one.  Nothing: it is not there yet, or is_broken().
  std::optional<Frame> next();
  // What came was no frame; nothing more is read.
  bool is_broken() const { return is_broken_; }

 private:
  std::string waiting_;
  std::size_t begin_ = 0;  // Begin of what is not read yet.
  bool is_broken_ = false;
};

// "penstock-host 1", by which each side knows how the other speaks; a line of its own.
inline constexpr std::string_view kGreeting = "penstock-host 1 ";

// Texts without NUL as one, and back.  decode_texts(encode_texts(t)) == t.
std::string encode_texts(const std::vector<std::string>& texts);
std::vector<std::string> decode_texts(std::string_view encoded);

std::string encode_ending(const launch::Ending& ending);
std::optional<launch::Ending> parse_ending(std::string_view text);

}  // namespace penstock::hosts
