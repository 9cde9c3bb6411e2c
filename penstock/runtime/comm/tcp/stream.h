// Tagged messages over one TCP connection, both ways, without a thread and without a wait.
//
// Who has it calls advance(), which writes what the kernel takes and reads what has come.  A
// message goes into the tensor of the receive that asks for its tag, or into memory of its own
// until one does.  Each message has a header of 16 bytes, which is checked: a mark, the tag, the
// length.
// Knows no deadlines and no ranks: tcp/link.cpp waits.
// Thread safety: any thread.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "penstock/core/file_descriptor.h"

namespace penstock::comm::tcp {

// A message on its way out.
struct Outgoing {
  std::atomic<bool> over{false};  // The kernel has all of it.
};

// A message that is asked for, or has come; both in the end.  What is not atomic may be read once
// `arrived`.
struct Incoming {
  std::atomic<bool> arrived{false};
  at::Tensor tensor;                     // The receive's, once there is one.
  std::unique_ptr<std::byte[]> unasked;  // The bytes, if they are not in the tensor.
  std::uint64_t bytes = 0;               // Size of the message.
  bool asked = false;
  bool announced = false;  // Its header has come.
};

class Stream {
 public:
  // REQUIRES: connected and non-blocking.
  explicit Stream(FileDescriptor socket);

  // The tensor is contiguous, in host memory, and held until the message has left.
  std::shared_ptr<Outgoing> send(const at::Tensor& tensor, std::int32_t tag);
  std::shared_ptr<Incoming> receive(const at::Tensor& tensor, std::int32_t tag);
  // Reads and writes as far as that goes now.  Never throws: failure() says what went wrong.
  void advance();

  // Why the connection is at its end; empty: it is not.
  std::string failure() const;
  int descriptor() const { return socket_.get(); }
  // What poll() is asked for, so that it tells when advance() can do something.
  short events() const;
  // Whether bytes go out, or a large message is asked for: it would not fit into what the kernel
  // holds, so somebody should advance() while this rank computes.
  bool is_busy() const;

 private:
  struct Header {
    std::uint32_t mark = 0;
    std::int32_t tag = 0;
    std::uint64_t bytes = 0;
  };
  struct Queued {
    Header header;
    at::Tensor tensor;
    std::shared_ptr<Outgoing> message;
    std::uint64_t sent = 0;  // Bytes of header and tensor together.
  };

  void write_queue();
  void take_sent(std::size_t bytes);
  void read_all();
  void take_read(std::size_t bytes);
  void begin_message();
  void end_message();
  void fail(const std::string& why);
  std::shared_ptr<Incoming> complete(std::int32_t tag, bool Incoming::* what);

  FileDescriptor socket_;
  mutable std::mutex mutex_;  // Guards what follows.
  std::string failure_;
  std::deque<Queued> queue_;
  // Messages asked for or announced, not yet both; by tag.
  std::unordered_map<std::int32_t, std::deque<std::shared_ptr<Incoming>>> open_;
  std::size_t large_asked_ = 0;        // Receives of large messages that have not arrived.
  std::shared_ptr<Incoming> current_;  // The message that is being read.
  std::byte* to_ = nullptr;            // The place of its next byte.
  std::uint64_t left_ = 0;             // How many are to come.
  std::array<std::byte, 8192> ahead_;  // What was read beyond it.
  std::size_t ahead_bytes_ = 0;
};

}  // namespace penstock::comm::tcp
