#include "penstock/runtime/emulate/virtual_memory.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "penstock/core/round_up.h"
#include "penstock/runtime/emulate/virtual_device.h"

namespace penstock::emulate {
namespace {

thread_local c10::DeviceIndex here = 0;

struct Block {
  std::shared_ptr<VirtualRank> rank;  // Tensors may live longer than their device.
  std::int64_t bytes;
  std::mutex mutex;
  std::string owner;
};

void give_back(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  block->rank->give_back(block->bytes, block->owner);
}

class VirtualAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(kVirtual, here);
    if (bytes == 0) return {nullptr, device};
    const auto size = static_cast<std::int64_t>(bytes);
    std::shared_ptr<VirtualRank> rank = shared_rank(here);
    rank->take(size);
    auto* const block = new Block{.rank = std::move(rank), .bytes = size, .mutex = {}, .owner = {}};
    const std::uint64_t address =
        next_.fetch_add(static_cast<std::uint64_t>(round_up(size, kMemoryBlock)));
    return {reinterpret_cast<void*>(address), block, &give_back, device};
  }
  void copy_data(void*, const void*, std::size_t) const override {}

 private:
  // No processor takes such an address: a host that reads there gets a signal at once.
  std::atomic<std::uint64_t> next_ = std::uint64_t{1} << 60;
};

}  // namespace

c10::Allocator& virtual_allocator() {
  static VirtualAllocator only;
  return only;
}

void own_memory(const c10::DataPtr& memory, const std::string& owner) {
  auto* const block = static_cast<Block*>(memory.get_context());
  if (block == nullptr) return;
  const std::lock_guard lock(block->mutex);
  if (!block->owner.empty()) return;
  block->owner = owner;
  block->rank->own(block->bytes, owner);
}

c10::DeviceIndex current_device() { return here; }

c10::DeviceIndex exchange_device(c10::DeviceIndex device) { return std::exchange(here, device); }

}  // namespace penstock::emulate
