// A view whose storage has no more bytes than the view.
//
// torch.save() and pickle write the storage that a tensor is in, and that of a parameter in a page
// would be the page.  Knows no pages.
#pragma once
#include <ATen/core/Tensor.h>

namespace penstock::parameters {

// A tensor over the memory of `view`, which it keeps.  REQUIRES: that memory stays where it is.
at::Tensor with_own_storage(const at::Tensor& view);

}  // namespace penstock::parameters
