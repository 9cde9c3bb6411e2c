#include "penstock/zero/system_memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <memory>
#include <new>

namespace penstock::zero {
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

}  // namespace

at::Tensor zeros_of_system(at::IntArrayRef sizes, const at::TensorOptions& options) {
  static SystemMemory memory;
  const std::int64_t bytes =
      c10::multiply_integers(sizes) * static_cast<std::int64_t>(options.dtype().itemsize());
  if (!options.device().is_cpu() || bytes < kOwnMemoryBytes) return at::zeros(sizes, options);
  return at::detail::empty_generic(sizes, &memory, c10::DispatchKeySet(c10::DispatchKey::CPU),
                                   c10::typeMetaToScalarType(options.dtype()), std::nullopt);
}

}  // namespace penstock::zero
