// The end of all waits of a communicator, asked for by another thread.
//
// Whoever learns that another rank has failed raises it; every wait under way then ends with that
// reason, and so does every later one, until it is cleared.
// Thread safety: any thread.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <string>

namespace penstock::comm {

class Interrupt {
 public:
  enum class Kind : std::uint8_t {
    Failure,  // A rank has failed.  Ranks that know of it may begin anew.
    End,      // All waits end, for good.
  };
  // The first reason stays.
  void raise(const std::string& reason, Kind kind = Kind::End);
  // A failure for which no wait under way need end: one that breaks by itself ends with it.
  void announce(const std::string& reason);
  bool raised() const { return raised_.load(std::memory_order_acquire); }
  // Whether it is raised, and for a failure alone.
  bool is_failure() const;
  // Returns: the reason of a failure, which it is raised for no more.
  std::string clear();
  // Throws: CommError with the reason, once raised.
  void check() const;
  // Does what check() does, when a peer's connection has just broken.  If that peer has failed, its
  // word why is on the way, and says more.  Returns after a moment without it.
  void check_soon();

  // While it lives, raise() calls `wake`, and calls it at once where it has been raised already.
  class Waiting {
   public:
    Waiting(Interrupt& interrupt, std::function<void()> wake);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Interrupt& interrupt_;
    std::list<std::function<void()>>::iterator place_;
  };

 private:
  std::string announced() const;

  std::atomic<bool> raised_{false};
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::string reason_;
  std::string announced_;
  Kind kind_ = Kind::Failure;
  std::list<std::function<void()>> wakes_;
};

}  // namespace penstock::comm
