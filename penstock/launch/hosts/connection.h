// A process that connects this one to a host: ssh, or what stands for it, and its three streams.
//
// remote_ranks.h has one for each host.  Frames go to its standard input and come from its standard
// output, behind a greeting; what came before that, and its standard error, is kept for errors.
#pragma once
#include <poll.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/launch/hosts/frame.h"
#include "penstock/launch/process.h"

namespace penstock::hosts {

class Connection {
 public:
  // Starts `words`, whose first is looked up in PATH.  Throws: ConfigError where that fails.
  explicit Connection(const std::vector<std::string>& words);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();  // Kills what is left of it.

  void add_to(std::vector<pollfd>& wanted) const;
  void send(const Frame& frame);
  // Reads and writes what can be now.
  void pump();

  // The greeting's words behind its first two, once it has come.
  const std::optional<std::vector<std::string>>& greeting() const { return greeting_; }
  std::optional<Frame> next();
  // Whether something came in the last pump().
  bool has_heard() const { return has_heard_; }
  // Whether its output has ended, or is no frames.
  bool is_over() const { return !output_; }

  // Ends what is sent: the other side ends then.
  void close_input() { input_.reset(); }
  // How it ended; nothing: it has not.
  std::optional<launch::Ending> ending();
  // The last lines that it wrote for people.
  std::string last_words() const;

 private:
  void take_greeting();

  launch::Process process_;
  std::optional<launch::Ending> ending_;
  FileDescriptor input_, output_, errors_;
  std::string waiting_;   // Bytes to be written.
  std::string preamble_;  // Bytes before the greeting.
  std::string words_;     // Words on its standard error.
  std::optional<std::vector<std::string>> greeting_;
  FrameReader reader_;
  bool has_heard_ = false;
};

}  // namespace penstock::hosts
