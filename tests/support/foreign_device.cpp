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
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/core/check.h"
#include "tests/support/foreign_kernels.h"
#include "tests/support/foreign_memory.h"
#include "tests/support/foreign_streams.h"

namespace penstock::testing_support {
namespace {

std::function<bool()> is_over;

int index_of(c10::Device device) {
  return device.has_index() ? device.index() : foreign::current_device();
}

c10::Stream stream_of(int device, std::int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE,
                     c10::Device(kForeign, static_cast<c10::DeviceIndex>(device)), id);
}

foreign::Stream& late_stream(const c10::Stream& stream) {
  return foreign::stream(stream.device_index(), stream.id());
}
foreign::Stream& late_stream(int device) {
  return foreign::stream(device, foreign::current_stream(device));
}

// Its streams are done with everything at once, unless they are late, or a test says that events
// are.
struct ForeignGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kForeign; }
  c10::Device getDevice() const override { return device_at(foreign::current_device()); }
  c10::Device exchangeDevice(c10::Device device) const override {
    return device_at(foreign::exchange_device(index_of(device)));
  }
  void setDevice(c10::Device device) const override { foreign::exchange_device(index_of(device)); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }
  c10::DeviceIndex deviceCount() const noexcept override { return 32; }

  c10::Stream getStream(c10::Device device) const override {
    return stream_of(index_of(device), foreign::current_stream(index_of(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(index_of(device), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return stream_of(index_of(device), foreign::new_stream_id());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const int device = stream.device_index();
    return stream_of(device, foreign::exchange_stream(device, stream.id()));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return &late_stream(stream);
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    if (*event == nullptr) *event = new foreign::MarkPtr;
    auto& mark = *static_cast<foreign::MarkPtr*>(*event);
    mark = foreign::are_late() ? foreign::mark(late_stream(stream)) : nullptr;
  }
  void block(void* event, const c10::Stream& stream) const override {
    const auto& mark = *static_cast<foreign::MarkPtr*>(event);
    if (mark == nullptr || !foreign::are_late()) return;
    foreign::await_in_stream(late_stream(stream), mark);
  }
  bool queryEvent(void* event) const override {
    if (is_over) return is_over();
    const auto& mark = *static_cast<foreign::MarkPtr*>(event);
    return mark == nullptr || !foreign::are_late() || foreign::is_over(mark);
  }
  void synchronizeEvent(void* event) const override {
    const auto& mark = *static_cast<foreign::MarkPtr*>(event);
    if (mark != nullptr && foreign::are_late()) foreign::await(mark);
  }
  // What is not late takes no time.
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    if (!foreign::are_late()) return 0;
    return foreign::milliseconds_between(*static_cast<foreign::MarkPtr*>(from),
                                         *static_cast<foreign::MarkPtr*>(to));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<foreign::MarkPtr*>(event);
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    if (foreign::are_late()) foreign::await(late_stream(stream));
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    if (!foreign::are_late()) return;
    foreign::keep_for(memory, stream.device_index(), stream.id());
  }

 private:
  static c10::Device device_at(int index) {
    return c10::Device(kForeign, static_cast<c10::DeviceIndex>(index));
  }
};

// The tensor's memory as a tensor of the host's.
at::Tensor opened(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(foreign::opened(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       tensor.options().device(at::kCPU));
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

c10::DeviceGuard at_device(std::optional<at::Device> device) {
  return c10::DeviceGuard(device.value_or(c10::Device(kForeign, -1)));
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard there = at_device(device);
  return at::Tensor(at::detail::empty_generic(size, &foreign::allocator(), kKeys,
                                              dtype.value_or(at::kFloat), format));
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard there = at_device(device);
  return at::Tensor(at::detail::empty_strided_generic(size, stride, &foreign::allocator(), kKeys,
                                                      dtype.value_or(at::kFloat)));
}

// What the host has is read at once, as from memory that is not pinned.
void copy_late(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  foreign::Stream& stream =
      late_stream(from.is_cpu() ? to.device().index() : from.device().index());
  if (to.is_cpu() && !non_blocking) {
    foreign::await_copy(stream);
    to.copy_(opened(from));
    return;
  }
  const at::Tensor source = from.is_cpu() ? from.detach().clone() : opened(from);
  foreign::enqueue(stream, [source, into = opened(to)] { into.copy_(source); });
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking) {
  count_copy(self, destination);
  if (foreign::are_late() && !is_in_kernel) {
    copy_late(self, destination, non_blocking);
  } else {
    opened(destination).copy_(opened(self));
  }
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
  if (!foreign::are_late() || !kernel.is_outermost) return at::native::cpu_fallback(op, stack);
  const int device = foreign::device_of(op, *stack);
  const c10::DeviceGuard there(c10::Device(kForeign, static_cast<c10::DeviceIndex>(device)));
  if (foreign::can_be_late(op)) return foreign::call_late(op, *stack, late_stream(device));
  foreign::await(late_stream(device));
  const foreign::TakesFreshMemory fresh;
  at::native::cpu_fallback(op, stack);
}

const c10::impl::DeviceGuardImplRegistrar guard(kForeign, new ForeignGuard);
const bool has_allocator = (c10::SetAllocator(kForeign, &foreign::allocator()), true);

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
