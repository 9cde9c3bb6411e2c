#include "penstock/runtime/stage/value_hash.h"

#include "penstock/core/content_hash.h"

namespace penstock::stage {

std::string hash_of_values(const at::Tensor& tensor) {
  if (tensor.is_meta() || tensor.numel() == 0) return {};
  const at::Tensor host = tensor.detach().cpu().contiguous();
  return content_hash({static_cast<const char*>(host.const_data_ptr()), host.nbytes()});
}

}  // namespace penstock::stage
