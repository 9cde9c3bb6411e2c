#include "tests/support/foreign_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "penstock/core/check.h"
#include "tests/support/foreign_device.h"

namespace penstock::testing_support::foreign {
namespace {

thread_local int here = 0;
thread_local bool takes_fresh = false;
thread_local std::map<int, std::int64_t> current_streams;

// The device's memory, which is mapped twice: where its tensors are, closed, and for its kernels.
//
// What is freed is poisoned, and used again.  A child process has no memory of its own: no fork
// with live tensors.
class Memory {
 public:
  struct Block {
    std::size_t first;
    std::size_t bytes;  // A power of two.
  };

  static Memory& only() {
    static auto* const memory = new Memory;  // Outlives static tensors.
    return *memory;
  }

  static std::size_t rounded(std::size_t bytes) {
    return std::bit_ceil(std::max<std::size_t>(bytes, 64));
  }

  Block take(std::size_t bytes) {
    const std::size_t size = rounded(bytes);
    const std::lock_guard lock(mutex_);
    std::vector<std::size_t>& free = free_[size];
    if (free.empty()) {
      if (end_ + size > kBytes) throw std::bad_alloc();
      const Block fresh{.first = std::exchange(end_, end_ + size), .bytes = size};
      poison(fresh);
      return fresh;
    }
    const std::size_t first = free.back();
    free.pop_back();
    return {.first = first, .bytes = size};
  }
  void give_back(const Block& block) {
    poison(block);
    const std::lock_guard lock(mutex_);
    free_[block.bytes].push_back(block.first);
  }

  void* closed(const Block& block) const { return closed_ + block.first; }
  // Where the host may touch what is at a closed address.
  void* opened(const void* closed) const {
    if (closed == nullptr) return nullptr;  // Of no element.
    return open_ + (static_cast<const std::byte*>(closed) - closed_);
  }

  // No float of it is a number.
  void poison(const Block& block) { std::memset(open_ + block.first, 0xFF, block.bytes); }

 private:
  static constexpr std::size_t kBytes = std::size_t{1} << 35;  // Of addresses.

  Memory() {
    const int file = ::memfd_create("foreign device", MFD_CLOEXEC);
    const bool is_sized = file >= 0 && ::ftruncate(file, kBytes) == 0;
    PENSTOCK_CHECK(is_sized, "no memory for the foreign device");
    const auto map = [&](int protection) {
      void* const address =
          ::mmap(nullptr, kBytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
      if (address == MAP_FAILED) throw std::bad_alloc();
      return static_cast<std::byte*>(address);
    };
    closed_ = map(PROT_NONE);
    open_ = map(PROT_READ | PROT_WRITE);
    ::close(file);
  }

  std::byte* closed_ = nullptr;
  std::byte* open_ = nullptr;
  std::mutex mutex_;
  std::size_t end_ = 0;
  std::map<std::size_t, std::vector<std::size_t>> free_;  // First bytes, by size.
};

// Where a block was taken.
struct Place {
  int device = 0;
  std::int64_t stream = 0;
  auto operator<=>(const Place&) const = default;
};

struct Taken {
  Memory::Block block;
  Place place;
  std::vector<Place> others;  // Streams that use it, too.
};

// Memory that was freed while streams are late, for the stream that took it.
class Freed {
 public:
  static Freed& only() {
    static auto* const freed = new Freed;
    return *freed;
  }

  // A block that the stream may use at once, if there is one.
  bool take(const Place& place, Memory::Block& block) {
    const std::lock_guard lock(mutex_);
    std::erase_if(kept_, [&](const auto& each) {
      if (!std::ranges::all_of(each.second, &is_over)) return false;
      put(each.first);
      return true;
    });
    auto& blocks = free_[{place, block.bytes}];
    if (blocks.empty()) return false;
    block = blocks.back();
    blocks.pop_back();
    return true;
  }

  void give_back(Taken taken) {
    const std::lock_guard lock(mutex_);
    std::vector<MarkPtr> users;
    for (const Place& other : taken.others)
      users.push_back(mark(stream(other.device, other.stream)));
    if (users.empty()) return put(taken);
    kept_.emplace_back(std::move(taken), std::move(users));
  }

  void forget() {
    const std::lock_guard lock(mutex_);
    for (const auto& [taken, users] : kept_) all_.push_back(taken.block);
    for (const auto& [key, blocks] : free_) all_.insert(all_.end(), blocks.begin(), blocks.end());
    kept_.clear();
    free_.clear();
  }
  void take_back() {
    const std::lock_guard lock(mutex_);
    for (const Memory::Block& block : all_) Memory::only().give_back(block);
    all_.clear();
  }

 private:
  void put(const Taken& taken) {
    enqueue(stream(taken.place.device, taken.place.stream),
            [block = taken.block] { Memory::only().poison(block); });
    free_[{taken.place, taken.block.bytes}].push_back(taken.block);
  }

  std::mutex mutex_;
  std::map<std::pair<Place, std::size_t>, std::vector<Memory::Block>> free_;
  std::vector<std::pair<Taken, std::vector<MarkPtr>>> kept_;
  std::vector<Memory::Block> all_;
};

struct ForeignAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(kForeign, static_cast<c10::DeviceIndex>(here));
    if (bytes == 0) return {nullptr, device};
    auto taken = std::make_unique<Taken>();
    taken->place = {here, current_stream(here)};
    taken->block.bytes = Memory::rounded(bytes);
    const bool may_wait = are_late() && !takes_fresh;
    if (!may_wait || !Freed::only().take(taken->place, taken->block)) {
      taken->block = Memory::only().take(bytes);
    }
    void* const address = Memory::only().closed(taken->block);
    return {address, taken.release(), &give_back, device};
  }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "nobody copies storages of the foreign device");
  }
  static void give_back(void* context) {
    const std::unique_ptr<Taken> taken(static_cast<Taken*>(context));
    if (are_late()) return Freed::only().give_back(std::move(*taken));
    Memory::only().give_back(taken->block);
  }
};

}  // namespace

c10::Allocator& allocator() {
  static ForeignAllocator only;
  return only;
}

void* opened(const void* closed) { return Memory::only().opened(closed); }

int current_device() { return here; }
int exchange_device(int device) { return std::exchange(here, device); }

std::int64_t current_stream(int device) { return current_streams[device]; }
std::int64_t exchange_stream(int device, std::int64_t id) {
  return std::exchange(current_streams[device], id);
}

void keep_for(const c10::DataPtr& memory, int device, std::int64_t stream) {
  auto* const taken = static_cast<Taken*>(memory.get_context());
  if (taken == nullptr || taken->place == Place{device, stream}) return;
  taken->others.push_back({device, stream});
}

TakesFreshMemory::TakesFreshMemory() : before_(std::exchange(takes_fresh, true)) {}
TakesFreshMemory::~TakesFreshMemory() { takes_fresh = before_; }

void forget_freed_memory() { Freed::only().forget(); }
void take_back_memory() { Freed::only().take_back(); }

}  // namespace penstock::testing_support::foreign
