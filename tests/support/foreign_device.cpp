#include "tests/support/foreign_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/HPUHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/core/check.h"

namespace penstock::testing_support {
namespace {

std::function<bool()> is_over;

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

  Block take(std::size_t bytes) {
    const std::size_t rounded = std::bit_ceil(std::max<std::size_t>(bytes, 64));
    const std::lock_guard lock(mutex_);
    std::vector<std::size_t>& free = free_[rounded];
    if (free.empty()) {
      if (end_ + rounded > kBytes) throw std::bad_alloc();
      const Block fresh{.first = std::exchange(end_, end_ + rounded), .bytes = rounded};
      poison(fresh);
      return fresh;
    }
    const std::size_t first = free.back();
    free.pop_back();
    return {.first = first, .bytes = rounded};
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

 private:
  // No float of it is a number.
  void poison(const Block& block) { std::memset(open_ + block.first, 0xFF, block.bytes); }

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

struct ForeignAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(kForeign, 0)};
    auto* const block = new Memory::Block(Memory::only().take(bytes));
    return {Memory::only().closed(*block), block, &give_back, c10::Device(kForeign, 0)};
  }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "nobody copies storages of the foreign device");
  }
  static void give_back(void* taken) {
    const std::unique_ptr<Memory::Block> block(static_cast<Memory::Block*>(taken));
    Memory::only().give_back(*block);
  }
};

ForeignAllocator& allocator() {
  static ForeignAllocator only;
  return only;
}

// Its one stream is done with everything at once, unless a test says that events are late.
struct ForeignGuard final : c10::impl::NoOpDeviceGuardImpl<kForeign> {
  c10::Device getDevice() const override { return c10::Device(kForeign, 0); }
  c10::Device exchangeDevice(c10::Device) const override { return c10::Device(kForeign, 0); }
  c10::Stream getStream(c10::Device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(kForeign, 0));
  }
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    *event = this_event();
  }
  bool queryEvent(void*) const override { return is_over ? is_over() : true; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}

 private:
  static void* this_event() {
    static int any = 0;
    return &any;
  }
};

// The tensor's memory as a tensor of the host's.
at::Tensor opened(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(Memory::only().opened(tensor.const_data_ptr()), tensor.sizes(),
                       tensor.strides(), tensor.options().device(at::kCPU));
}

thread_local DeviceCounts counts;
// In a kernel, whose copies are those of the stand-in.
thread_local bool is_in_kernel = false;

void count_copy(const at::Tensor& from, const at::Tensor& to) {
  if (is_in_kernel) return;
  if (from.is_cpu() == to.is_cpu()) {
    ++counts.kernels;
  } else if (to.is_cpu()) {
    ++counts.copies_out;
    counts.bytes_out += static_cast<std::int64_t>(to.nbytes());
  } else {
    ++counts.copies_in;
    counts.bytes_in += static_cast<std::int64_t>(to.nbytes());
  }
}

// Its kernels are the CPU's, and so is its generator's kind.
struct ForeignHooks final : at::HPUHooksInterface {
  explicit ForeignHooks(at::HPUHooksArgs) {}
  void init() const override {}
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>();
    return generator;
  }
};
using at::HPUHooksRegistry;
using at::RegistererHPUHooksRegistry;
C10_REGISTER_CLASS(HPUHooksRegistry, HPUHooks, ForeignHooks)

// A kernel of the device, for its own life; one within another is none.
struct InKernel {
  const bool is_outermost = !std::exchange(is_in_kernel, true);
  ~InKernel() { is_in_kernel = !is_outermost; }
};

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::HPU);

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::Tensor(
      at::detail::empty_generic(size, &allocator(), kKeys, dtype.value_or(at::kFloat), format));
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::Tensor(at::detail::empty_strided_generic(size, stride, &allocator(), kKeys,
                                                      dtype.value_or(at::kFloat)));
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool) {
  count_copy(self, destination);
  opened(destination).copy_(opened(self));
  return destination;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
  if (destination.sizes() != self.sizes()) destination.resize_(self.sizes());
  return copy_from(self, destination, false);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, std::int64_t offset,
                        c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(storage), offset, size, stride);
}

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const InKernel kernel;
  if (kernel.is_outermost) {
    ++(op.operator_name().name == "aten::_local_scalar_dense" ? counts.scalars : counts.kernels);
  }
  at::native::cpu_fallback(op, stack);
}

const c10::impl::DeviceGuardImplRegistrar guard(kForeign, new ForeignGuard);
const bool has_allocator = (c10::SetAllocator(kForeign, &allocator()), true);

TORCH_LIBRARY_IMPL(_, HPU, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, HPU, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("resize_", &at::native::resize_);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
}

}  // namespace

void set_late_events(std::function<bool()> query) { is_over = std::move(query); }

const DeviceCounts& device_counts() { return counts; }

c10::Device device_under_test() {
  const char* asked = std::getenv("PENSTOCK_TEST_DEVICE");
  if (asked == nullptr || std::string_view(asked).empty()) return {kForeign, 0};
  PENSTOCK_CHECK(std::string_view(asked) == "cuda",
                 "PENSTOCK_TEST_DEVICE: cuda, or unset: ", asked);
  // Sums by atomic additions would give other bits every time.
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  return {at::kCUDA, 0};
}

}  // namespace penstock::testing_support
