#include "penstock/runtime/emulate/virtual_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <map>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "penstock/core/check.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/emulate/operators.h"
#include "penstock/runtime/emulate/virtual_memory.h"
#include "penstock/runtime/nn/draw.h"

namespace penstock::emulate {
namespace {

struct Machine {
  std::vector<std::shared_ptr<VirtualRank>> ranks;
  ValueRead value_read;
  std::stop_token stop;
};
Machine& machine() {
  static Machine* const only = new Machine;  // Lives until the process ends.
  return *only;
}

struct Event {
  c10::DeviceIndex device;
  double time;
};

thread_local std::map<c10::DeviceIndex, c10::StreamId> current_streams;

c10::Stream stream_of(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kVirtual, device), id);
}

c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index() : current_device();
}

// Streams and events are times on a rank's clocks.
struct VirtualGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kVirtual; }
  c10::Device getDevice() const override { return {kVirtual, current_device()}; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kVirtual, exchange_device(index_of(device))};
  }
  void setDevice(c10::Device device) const override { exchange_device(index_of(device)); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }
  c10::DeviceIndex deviceCount() const noexcept override {
    return kDevicesMost;  // Torch's engine asks once, and has a thread for each.
  }

  c10::Stream getStream(c10::Device device) const override {
    return stream_of(index_of(device), current_streams[index_of(device)]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(index_of(device), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    static std::atomic<c10::StreamId> next = 1;
    return stream_of(index_of(device), next++);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto& current = current_streams[stream.device_index()];
    return stream_of(stream.device_index(), std::exchange(current, stream.id()));
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    const c10::DeviceIndex device = stream.device_index();
    *static_cast<Event*>(*event) = {device, rank_of(device).ready(stream.id())};
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    rank_of(stream.device_index()).block(stream.id(), static_cast<Event*>(event)->time);
  }
  // Who asks goes on asking until it is over: the host's clock goes there at once.
  bool queryEvent(void* event) const override {
    synchronizeEvent(event);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    const auto& marked = *static_cast<Event*>(event);
    rank_of(marked.device).await(marked.time);
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    constexpr double kMillisecondsPerSecond = 1e3;
    return (static_cast<Event*>(to)->time - static_cast<Event*>(from)->time) *
           kMillisecondsPerSecond;
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  bool queryStream(const c10::Stream& stream) const override {
    synchronizeStream(stream);
    return true;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    VirtualRank& rank = rank_of(stream.device_index());
    rank.await(rank.ready(stream.id()));
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    rank_of(device).await(rank_of(device).ledger().end_s);
  }
};

struct VirtualHooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return static_cast<int>(machine().ranks.size()); }
  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(getNumGPUs());
  }
  c10::DeviceIndex current_device() const override { return emulate::current_device(); }
  c10::DeviceIndex getCurrentDevice() const override { return emulate::current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { exchange_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return exchange_device(device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchange_device(device);
  }
  // Host memory is as good as pinned: nothing is copied.
  bool isPinnedPtr(const void*) const override { return true; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  c10::Allocator* getCUDADeviceAllocator() const override { return &virtual_allocator(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    thread_local const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>();
    return generator;
  }
};

// Torch keeps the hooks that it found when it was first asked for CUDA, as Python does while it
// imports torch: in a torch for CPUs an object without members, whose place ours can take.
void replace_hooks() {
  static_assert(sizeof(VirtualHooks) == sizeof(at::CUDAHooksInterface));
  new (const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks())) VirtualHooks;
  PENSTOCK_CHECK(at::hasCUDA(), "torch does not see the virtual device");
}

}  // namespace

void install(const devices::DeviceModel& device, std::int32_t ranks, ValueRead value_read,
             const std::stop_token& stop) {
  static bool is_there = false;
  PENSTOCK_CHECK(ranks <= kDevicesMost, ranks, " ranks");
  if (!is_there && c10::impl::hasDeviceGuardImpl(kVirtual)) {
    throw ConfigError("the virtual device needs a torch for CPUs, and this one is built for CUDA",
                      {"TORCH=cpu ./setup.sh makes a .venv with one"});
  }
  machine() = {.ranks = {}, .value_read = value_read, .stop = stop};
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    machine().ranks.push_back(std::make_shared<VirtualRank>(device, rank));
  }
  if (is_there) return;
  replace_hooks();
  c10::SetAllocator(kVirtual, &virtual_allocator());
  static VirtualGuard guard;
  static const c10::impl::DeviceGuardImplRegistrar registrar(kVirtual, &guard);
  install_operators();
  is_there = true;
}

std::int64_t current_stream(c10::DeviceIndex device) { return current_streams[device]; }

std::shared_ptr<VirtualRank> shared_rank(c10::DeviceIndex device) {
  return machine().ranks.at(static_cast<std::size_t>(device < 0 ? current_device() : device));
}

VirtualRank& rank_of(c10::DeviceIndex device) { return *shared_rank(device); }

void check_goes_on() {
  if (machine().stop.stop_requested()) throw Error("the emulated step was stopped");
}

ValueRead value_for_layers(std::string_view op) {
  if (nn::DrawScope::current() == nullptr) return std::nullopt;
  if (machine().value_read) return machine().value_read;
  throw Error(str(op, " reads values of a tensor in the host, and a virtual device has none"),
              {"compute with it on the device, or say in value_read what all values are"});
}

}  // namespace penstock::emulate
