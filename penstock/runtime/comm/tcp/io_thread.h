// Advances streams while their rank computes.
//
// A rank that waits reads and writes itself, and small messages need nobody else: the kernel holds
// them.  This thread is for what it does not hold: the rest of a message that it did not take, and
// large messages that are asked for.  It starts with the first of them, and sleeps while the rank
// attends to its streams.
// Thread safety: one thread at a time; the streams may be advanced by any.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "penstock/core/file_descriptor.h"
#include "penstock/core/wake_up.h"
#include "penstock/runtime/comm/tcp/stream.h"

namespace penstock::comm::tcp {

class IoThread {
 public:
  IoThread() = default;
  ~IoThread();
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  void add(std::shared_ptr<Stream> stream);
  void remove(const Stream& stream);
  // Looks after a stream from now on, if that is busy.
  void help(const std::shared_ptr<Stream>& stream);

  // While it lives, the rank advances all streams, and the thread none.
  class Attending {
   public:
    explicit Attending(IoThread& thread);
    ~Attending();
    Attending(const Attending&) = delete;
    Attending& operator=(const Attending&) = delete;

   private:
    IoThread& thread_;
  };

 private:
  struct Entry {
    std::shared_ptr<Stream> stream;
    bool is_known = false;  // Epoll knows it.
    bool is_armed = false;
  };

  void start();
  void run();
  void advance(int descriptor);
  void arm_if_busy(Entry& entry);

  std::mutex mutex_;              // Guards what follows; held while the thread advances a stream.
  std::map<int, Entry> entries_;  // Streams by descriptor.
  bool attended_ = false;
  FileDescriptor epoll_;
  std::optional<WakeUp> stop_;  // Absent until start().
  std::thread thread_;
};

}  // namespace penstock::comm::tcp
