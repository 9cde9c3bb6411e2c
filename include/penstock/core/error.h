// The errors that penstock throws, and the exit codes they turn into.
//
// Thrown at the boundary by whoever reads the user's or the world's input; caught once, in cli/.
// Does not know what any layer does: a subclass only says whose fault it was.
// A bug of ours is never an Error: see check.h.
#pragma once
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace penstock {

// Process exit codes; part of the interface (docs/exit_codes.md).  DO NOT CHANGE: scripts rely on
// them.
enum class ExitCode : int {
  Ok = 0,
  Failure = 1,  // An error without a code of its own.
  Usage = 2,    // Command line, config, data path, environment, or a schedule that does not verify.
  Checkpoint = 3,     // Weights that could not be read or written.
  PeerLost = 4,       // A rank died, or the connection to it broke.
  Hang = 5,           // A rank stopped answering, or nobody made progress.
  Numerics = 6,       // A loss or a gradient norm that is not finite.
  Preempted = 75,     // Stopped from outside before the last step.
  Interrupted = 130,  // Ctrl-C.
};

// Base of all errors.  `what()` is the whole text: one line, then a line "  note: ..." per note.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, std::vector<std::string> notes = {},
                 ExitCode exit_code = ExitCode::Failure);
  const std::string& message() const { return message_; }
  const std::vector<std::string>& notes() const { return notes_; }
  ExitCode exit_code() const { return exit_code_; }

 private:
  std::string message_;
  std::vector<std::string> notes_;
  ExitCode exit_code_;
};

// A value that the user wrote: config file, command line, environment, data path.
class ConfigError : public Error {
 public:
  explicit ConfigError(const std::string& message, std::vector<std::string> notes = {})
      : Error(message, std::move(notes), ExitCode::Usage) {}
};

// Text that does not follow its grammar; the message names line, column and what was expected.
class ParseError : public Error {
 public:
  explicit ParseError(const std::string& message, std::vector<std::string> notes = {})
      : Error(message, std::move(notes), ExitCode::Usage) {}
};

// A schedule that cannot be built or does not verify.
class ScheduleError : public Error {
 public:
  explicit ScheduleError(const std::string& message, std::vector<std::string> notes = {})
      : Error(message, std::move(notes), ExitCode::Usage) {}
};

// A peer that is gone, silent, or runs something else.
class CommError : public Error {
 public:
  explicit CommError(const std::string& message, std::vector<std::string> notes = {},
                     ExitCode exit_code = ExitCode::PeerLost)
      : Error(message, std::move(notes), exit_code) {}
};

// Weights on disk that could not be written or read.
class CheckpointError : public Error {
 public:
  explicit CheckpointError(const std::string& message, std::vector<std::string> notes = {})
      : Error(message, std::move(notes), ExitCode::Checkpoint) {}
};

// A loss or gradient norm that is not finite.
class NumericsError : public Error {
 public:
  explicit NumericsError(const std::string& message, std::vector<std::string> notes = {})
      : Error(message, std::move(notes), ExitCode::Numerics) {}
};

}  // namespace penstock
