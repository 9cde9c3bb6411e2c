#include "penstock/runtime/comm/shm/channel.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <new>
#include <system_error>
#include <utility>

#include "penstock/core/blocked_signals.h"
#include "penstock/core/grow_file.h"
#include "penstock/core/round_up.h"
#include "penstock/core/text.h"

namespace penstock::comm::shm {
namespace {

constexpr std::uint32_t kRing = 4096;  // Messages under way; a power of two.
constexpr std::uint64_t kLine = 64;    // A line of the processor's cache.
constexpr std::size_t kFirstBytes = std::size_t{1} << 18;

using Word = std::atomic<std::uint32_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 4, "a futex is a plain 32-bit word");

// The head of the memory.  Counters run over 2^32; the ring's entry i is number i modulo its size.
struct Head {
  alignas(kLine) Word put;    // Written by the sender; the reader sleeps on it.
  Word closed;                // Written by the sender: nothing follows.
  alignas(kLine) Word taken;  // Written by the reader.
  Word asleep;                // Written by the reader.
  alignas(kLine) Entry ring[kRing];
};

// The head of a block; the message follows.
struct alignas(kLine) Block {
  Word in_use;
};

int check(int result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

void futex_wait(Word& word, std::uint32_t seen, std::chrono::milliseconds at_most) {
  const timespec time{.tv_sec = at_most.count() / 1000,
                      .tv_nsec = (at_most.count() % 1000) * 1'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}

void futex_wake(Word& word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Sizes of blocks: four to each power of two, so that a block fits the next message of about its
// size and wastes little.
std::uint64_t block_size(std::uint64_t bytes) {
  const std::uint64_t least = std::max(bytes + sizeof(Block), 4 * kLine);
  return round_up(least, std::bit_floor(least) / 4);
}

}  // namespace

std::string host_identity() {
  try {
    Memory::create(1);
  } catch (const std::system_error&) {
    return "";
  }
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char processes[64] = {};
  if (readlink("/proc/self/ns/pid", processes, sizeof processes - 1) < 0) return "";
  return boot.empty() ? "" : str(boot, " ", processes, " user ", geteuid());
}

Memory Memory::create(std::size_t bytes) {
  const int file = check(memfd_create("penstock", MFD_CLOEXEC), "memfd_create");
  Memory memory(file, 0);
  memory.grow(bytes);
  return memory;
}

Memory Memory::open(const std::string& address) {
  Memory memory(check(::open(address.c_str(), O_RDWR | O_CLOEXEC), address.c_str()), 0);
  memory.follow();
  return memory;
}

Memory::Memory(int file, std::size_t bytes) : file_(file), bytes_(bytes) {}

Memory::Memory(Memory&& other) noexcept
    : file_(std::exchange(other.file_, -1)),
      bytes_(std::exchange(other.bytes_, 0)),
      base_(std::exchange(other.base_, nullptr)) {}

Memory::~Memory() {
  if (base_) munmap(base_, bytes_);
  if (file_ >= 0) close(file_);
}

std::string Memory::address() const { return str("/proc/", getpid(), "/fd/", file_); }

void Memory::grow(std::size_t bytes) {
  // Reserves the pages: memory that is missing is an error here, not a SIGBUS later.  A signal
  // would undo what was done of it, so that frequent ones would let it never end.
  const BlockedSignals blocked;
  const int error = grow_file(file_, static_cast<std::int64_t>(bytes_),
                              static_cast<std::int64_t>(bytes - bytes_));
  if (error != 0) {
    throw std::system_error(error, std::generic_category(),
                            str("shared memory of ", bytes, " bytes"));
  }
  map(bytes);
}

void Memory::follow() {
  struct stat status{};
  check(fstat(file_, &status), "fstat");
  map(static_cast<std::size_t>(status.st_size));
}

void Memory::map(std::size_t bytes) {
  // Not mremap, of which the thread sanitizer knows nothing.
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (base == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  if (base_) munmap(base_, bytes_);
  base_ = static_cast<std::byte*>(base);
  bytes_ = bytes;
}

Outbox::Outbox() : memory_(Memory::create(kFirstBytes)), end_(sizeof(Head)) {
  static_assert(sizeof(Head) <= kFirstBytes);
  new (memory_.at<Head>(0)) Head{};
}

Outbox::~Outbox() {
  auto* head = memory_.at<Head>(0);
  head->closed.store(1);
  futex_wake(head->put);
}

std::uint64_t Outbox::find_block(std::uint64_t bytes) {
  // Messages are mostly read in the order in which they were sent: the oldest block is the
  // likeliest to be free.  A few that are not, because the receiver wants others first, must not
  // hide the rest.
  constexpr std::size_t kTries = 16;
  const std::uint64_t size = block_size(bytes);
  auto& blocks = blocks_[size];
  for (std::size_t i = 0; i < std::min(kTries, blocks.size()); ++i) {
    const std::uint64_t block = blocks.front();
    blocks.pop_front();
    blocks.push_back(block);
    if (memory_.at<Block>(block)->in_use.load(std::memory_order_acquire) == 0) return block;
  }
  const std::uint64_t block = end_;
  if (block + size > memory_.bytes()) memory_.grow(std::max(memory_.bytes() * 3 / 2, block + size));
  end_ += size;
  new (memory_.at<Block>(block)) Block{};
  blocks.push_back(block);
  return block;
}

bool Outbox::put(const void* data, std::uint64_t bytes, std::int32_t tag) {
  const std::uint32_t number = memory_.at<Head>(0)->put.load(std::memory_order_relaxed);
  if (number - memory_.at<Head>(0)->taken.load(std::memory_order_acquire) == kRing) return false;
  const std::uint64_t block = find_block(bytes);
  memory_.at<Block>(block)->in_use.store(1, std::memory_order_relaxed);
  if (bytes > 0) std::memcpy(memory_.at<std::byte>(block + sizeof(Block)), data, bytes);
  auto* head = memory_.at<Head>(0);
  head->ring[number % kRing] = {.tag = tag, .bytes = bytes, .block = block};
  // Sequentially consistent, as are the reader's: either it sees the message before it sleeps, or
  // we see that it sleeps.
  head->put.store(number + 1);
  if (head->asleep.load() != 0) futex_wake(head->put);
  return true;
}

Inbox::Inbox(const std::string& address) : memory_(Memory::open(address)) {}

bool Inbox::empty() const {
  const auto* head = memory_.at<Head>(0);
  return head->put.load(std::memory_order_acquire) == head->taken.load(std::memory_order_relaxed);
}

std::optional<Entry> Inbox::take() {
  if (empty()) return {};
  auto* head = memory_.at<Head>(0);
  const std::uint32_t number = head->taken.load(std::memory_order_relaxed);
  const Entry entry = head->ring[number % kRing];
  head->taken.store(number + 1, std::memory_order_release);
  return entry;
}

void Inbox::read(const Entry& entry, void* to) {
  if (entry.block + sizeof(Block) + entry.bytes > memory_.bytes()) memory_.follow();
  if (entry.bytes > 0) {
    std::memcpy(to, memory_.at<std::byte>(entry.block + sizeof(Block)), entry.bytes);
  }
  memory_.at<Block>(entry.block)->in_use.store(0, std::memory_order_release);
}

void Inbox::await(std::chrono::microseconds spin, std::chrono::milliseconds at_most) {
  const auto spin_end = std::chrono::steady_clock::now() + spin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (!empty()) return;
      pause();
    }
  } while (std::chrono::steady_clock::now() < spin_end);
  auto* head = memory_.at<Head>(0);
  head->asleep.store(1);
  const std::uint32_t seen = head->put.load();
  if (seen == head->taken.load() && head->closed.load() == 0) futex_wait(head->put, seen, at_most);
  head->asleep.store(0);
}

bool Inbox::closed() const { return memory_.at<Head>(0)->closed.load() != 0 && empty(); }

}  // namespace penstock::comm::shm
