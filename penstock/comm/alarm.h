// How a rank tells all others that it has failed, and hears it from them.
//
// Each rank listens on a socket of its own, with a thread that sleeps; a rank that fails connects
// to every other one and says why.  So the news needs no launcher, no store, and no rank but the
// two. Connections exist for that moment only.  A connection without the run's word is not heard.
// Thread safety: any thread.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace penstock::comm {

class Alarm {
 public:
  // Listens at `host`; `on_alarm` is called by the listening thread with another rank's text.
  // Throws: CommError when it cannot listen.
  Alarm(const std::string& host, std::function<void(const std::string&)> on_alarm);
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  // Where others reach it, and the word that they must say: "127.0.0.1 4711 8d1f...".
  const std::string& address() const { return address_; }

  // Tells `text` (at most 32 KiB of it) to the alarms at those addresses, 256 at once; who does not
  // take it within a second is left.  Never throws.
  static void raise(const std::vector<std::string>& addresses, const std::string& text) noexcept;

 private:
  struct Listener;
  std::string address_;
  std::unique_ptr<Listener> listener_;
};

}  // namespace penstock::comm
