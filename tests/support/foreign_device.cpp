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

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "penstock/core/check.h"

namespace penstock::testing_support {
namespace {

std::function<bool()> is_over;

// Memory of one storage: open while somebody copies.
class Region {
 public:
  explicit Region(std::size_t bytes)
      : bytes_(bytes),
        address_(::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (address_ == MAP_FAILED) throw std::bad_alloc();
    const std::lock_guard lock(all_mutex());
    all()[first()] = this;
  }
  ~Region() {
    {
      const std::lock_guard lock(all_mutex());
      all().erase(first());
    }
    ::munmap(address_, bytes_);
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  void* address() const { return address_; }
  // That an address is in, null for none: a storage may have a part of another one's memory.
  static Region* at(const void* address) {
    const std::lock_guard lock(all_mutex());
    const auto* const byte = static_cast<const std::byte*>(address);
    const auto behind = all().upper_bound(byte);
    if (behind == all().begin()) return nullptr;
    Region* const region = std::prev(behind)->second;
    return byte < region->first() + region->bytes_ ? region : nullptr;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    if (users_++ == 0) ::mprotect(address_, bytes_, PROT_READ | PROT_WRITE);
  }
  void close() {
    const std::lock_guard lock(mutex_);
    if (--users_ == 0) ::mprotect(address_, bytes_, PROT_NONE);
  }

 private:
  using All = std::map<const std::byte*, Region*>;  // By their first bytes.
  static All& all() {
    static All regions;
    return regions;
  }
  static std::mutex& all_mutex() {
    static std::mutex mutex;
    return mutex;
  }
  const std::byte* first() const { return static_cast<const std::byte*>(address_); }

  std::size_t bytes_;
  void* address_;
  std::mutex mutex_;
  int users_ = 0;
};

struct ForeignAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(kForeign, 0)};
    auto* region = new Region(bytes);
    return {region->address(), region, &free_region, c10::Device(kForeign, 0)};
  }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "nobody copies storages of the foreign device");
  }
  static void free_region(void* region) { delete static_cast<Region*>(region); }
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

// The tensor's bytes as a tensor of the host's, for as long as it lives.
class Opened {
 public:
  explicit Opened(const at::Tensor& tensor) : host_(tensor) {
    if (tensor.is_cpu()) return;
    region_ = Region::at(tensor.const_data_ptr());
    if (region_ != nullptr) region_->open();
    host_ = at::from_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(),
                          tensor.strides(), tensor.options().device(at::kCPU));
  }
  ~Opened() {
    if (region_ != nullptr) region_->close();
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  const at::Tensor& host() const { return host_; }

 private:
  Region* region_ = nullptr;
  at::Tensor host_;
};

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
  const Opened from(self), to(destination);
  to.host().copy_(from.host());
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
