#include "penstock/runtime/offload/system_memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <memory>
#include <new>

namespace penstock::offload {
namespace {

struct Mapping {
  void* base = nullptr;
  std::size_t bytes = 0;
};

// Told to torch's profiler like memory of its own allocator.
void unmap(void* context) {
  const std::unique_ptr<Mapping> mapping(static_cast<Mapping*>(context));
  c10::profiledCPUMemoryReporter().Delete(mapping->base);
  ::munmap(mapping->base, mapping->bytes);
}

class SystemMemory : public c10::Allocator {
 public:
  at::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, at::Device(at::kCPU)};
    auto mapping = std::make_unique<Mapping>();
    mapping->bytes = bytes;
    mapping->base =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping->base == MAP_FAILED) throw std::bad_alloc();
    ::madvise(mapping->base, bytes, MADV_HUGEPAGE);  // Advice, which may be refused.
    c10::profiledCPUMemoryReporter().New(mapping->base, bytes);
    void* base = mapping->base;
    return {base, mapping.release(), &unmap, at::Device(at::kCPU)};
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

bool is_of_system(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const std::int64_t bytes =
      c10::multiply_integers(sizes) * static_cast<std::int64_t>(options.dtype().itemsize());
  return options.device().is_cpu() && bytes >= kOwnMemoryBytes;
}

at::Tensor of_system(at::IntArrayRef sizes, const at::TensorOptions& options) {
  static SystemMemory memory;
  return at::detail::empty_generic(sizes, &memory, c10::DispatchKeySet(c10::DispatchKey::CPU),
                                   c10::typeMetaToScalarType(options.dtype()), std::nullopt);
}

}  // namespace

at::Tensor zeros_of_system(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return is_of_system(sizes, options) ? of_system(sizes, options) : at::zeros(sizes, options);
}

at::Tensor without_memory(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const at::Tensor tensor =
      is_of_system(sizes, options) ? of_system({0}, options) : at::empty({0}, options);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  tensor.storage().unsafeGetStorageImpl()->set_nbytes(tensor.nbytes());
  return tensor;
}

}  // namespace penstock::offload
