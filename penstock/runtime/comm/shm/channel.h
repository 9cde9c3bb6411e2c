// Messages from one process to another through shared memory, in one direction.
//
// The sender makes an Outbox, the receiver opens it as its Inbox.  A message is copied into a block
// of memory that both have mapped, and an entry of a ring names it; the receiver copies it out and
// so gives the block back.  Nothing runs in between: no thread, no system call unless the receiver
// sleeps.  The memory is a memfd that grows with what is in flight, so /dev/shm is not used.
// Knows no ranks and no tensors.  Linux only.
// Thread safety: one thread at a time on each end.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

namespace penstock::comm::shm {

// Two processes with one identity can open each other's boxes: they share a kernel, a process
// namespace and a user.  "" where the kernel has no memfd.
std::string host_identity();

// A memfd, mapped whole.
class Memory {
 public:
  static Memory create(std::size_t bytes);
  // Opens what `address()` names in another process.
  // Throws: std::system_error.
  static Memory open(const std::string& address);
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&&) = delete;
  ~Memory();

  // "/proc/4711/fd/12": good while this object and its process live.
  std::string address() const;
  // Makes the memory larger; its address in this process may change.
  void grow(std::size_t bytes);
  // Maps what the other end has grown to.
  void follow();
  std::size_t bytes() const { return bytes_; }
  template <class T>
  T* at(std::uint64_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }

 private:
  Memory(int file, std::size_t bytes);
  void map(std::size_t bytes);

  int file_ = -1;
  std::size_t bytes_ = 0;
  std::byte* base_ = nullptr;
};

// The place of a message in the memory.
struct Entry {
  std::int32_t tag = 0;
  std::uint64_t bytes = 0;
  std::uint64_t block = 0;  // Offset of its block in the memory.
};

class Outbox {
 public:
  Outbox();
  // Tells the reader that nothing will follow; what has been put can still be read.
  ~Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  std::string address() const { return memory_.address(); }

  // Copies the message.  False when as many messages as the ring holds are unread.
  // Throws: std::system_error when the memory cannot grow.
  bool put(const void* data, std::uint64_t bytes, std::int32_t tag);

 private:
  std::uint64_t find_block(std::uint64_t bytes);

  Memory memory_;
  std::uint64_t end_;  // End of the blocks made so far.
  std::map<std::uint64_t, std::deque<std::uint64_t>>
      blocks_;  // Offsets of blocks by size, oldest use first.
};

class Inbox {
 public:
  // Throws: std::system_error when there is no such box, or it is another user's.
  explicit Inbox(const std::string& address);

  // The oldest message that was not yet taken; taking it keeps it where it is.
  std::optional<Entry> take();
  // Copies a taken message out and gives its block back.
  void read(const Entry& entry, void* to);
  // Returns once there is something to take, or the sender has closed, or after `at_most`: spins
  // for `spin`, then sleeps.
  void await(std::chrono::microseconds spin, std::chrono::milliseconds at_most);
  // The sender is gone by its own will, and everything it sent has been taken.
  bool closed() const;

 private:
  bool empty() const;

  Memory memory_;
};

}  // namespace penstock::comm::shm
