// The ranks of a run, wherever they are, as those who watch them know them.
//
// launcher.h watches them.  rank_processes.h has this machine's; hosts/remote_ranks.h those of
// several hosts.  What is seen is entered into an Observation; nothing is decided here.
#pragma once
#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/launch/control_message.h"
#include "penstock/launch/verdict.h"

namespace penstock::launch {

class Ranks {
 public:
  Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  virtual ~Ranks() = default;  // No rank is left after it.

  // Throws ConfigError as launch() does; the ranks started so far end with this object.
  virtual void start_all() = 0;

  virtual std::size_t alive_count() const = 0;
  virtual bool alive(std::size_t rank) const = 0;

  // Waits until a message, an end, one of `others`, or a tick has passed.
  virtual void wait(std::vector<pollfd> others) const = 0;
  // Enters all messages that have arrived, as of the observation's now_ms.
  virtual void hear() = 0;
  // Enters and buries the ranks that have ended.
  virtual void bury() = 0;

  // Sends to a rank that is alive and listens; may be lost.
  virtual void send(std::size_t rank, const LauncherMessage& message) = 0;
  // Signals a rank's process group.
  virtual void signal(std::size_t rank, int number) = 0;
  void signal_all(int number, std::size_t ranks) {
    for (std::size_t rank = 0; rank < ranks; ++rank) signal(rank, number);
  }

  // Leaves behind the ranks that even SIGKILL does not end; a note about each.
  virtual std::vector<std::string> abandon() = 0;

  // What ends the run beside what the ranks' records say: a host that is gone.
  virtual std::optional<Verdict> loss() const { return std::nullopt; }
  // The host of a rank; "": this machine.
  virtual std::string host_of(std::size_t) const { return ""; }
  // Milliseconds from the first failure to the verdict, for reports that explain it.
  virtual std::int64_t settle_ms() const { return 300; }
};

}  // namespace penstock::launch
