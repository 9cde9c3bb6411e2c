// The end of all waits of a communicator, asked for by another thread.
//
// Whoever learns that another rank has failed raises it; every wait under way then ends with that
// reason, and so does every later one.
// Thread safety: any thread.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <string>

namespace penstock::comm {

class Interrupt {
 public:
  // The first reason stays.
  void raise(const std::string& reason);
  bool raised() const { return raised_.load(std::memory_order_acquire); }
  // Throws: CommError with the reason, once raised.
  void check() const;
  // As check(), when a peer's connection has just broken: if that peer has failed, its word why is
  // on the way, and says more.  Returns after a moment without it.
  void check_soon() const;

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
  std::atomic<bool> raised_{false};
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::string reason_;
  std::list<std::function<void()>> wakes_;
};

}  // namespace penstock::comm
