#include "penstock/runtime/parameters/own_storage.h"

#include <c10/core/Storage.h>

#include <memory>
#include <utility>

#include "penstock/core/check.h"

namespace penstock::parameters {

at::Tensor with_own_storage(const at::Tensor& view) {
  PENSTOCK_CHECK(view.is_contiguous(), view.sizes());
  auto whole = std::make_unique<c10::Storage>(view.storage());
  c10::DataPtr memory(
      view.mutable_data_ptr(), whole.get(),
      [](void* held) { delete static_cast<c10::Storage*>(held); }, view.device());
  whole.release();
  c10::Storage storage(c10::Storage::use_byte_size_t(), view.nbytes(), std::move(memory),
                       /*allocator=*/nullptr, /*resizable=*/false);
  at::Tensor tensor = view.detach();
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  tensor.unsafeGetTensorImpl()->set_storage_offset(0);
  return tensor;
}

}  // namespace penstock::parameters
