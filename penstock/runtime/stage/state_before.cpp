#include "penstock/runtime/stage/state_before.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <utility>

namespace penstock::stage {
namespace {

at::Tensor copy_of(const at::Tensor& tensor) { return tensor.detach().clone(); }

// Overwrites without a new version: graphs of other microbatches may hold the tensor, and do not
// need it.  A tensor that has another size by now gets memory of its own.
void overwrite(const at::Tensor& tensor, const at::Tensor& with) {
  if (tensor.sizes() == with.sizes()) {
    tensor.variable_data().copy_(with);
  } else {
    tensor.set_data(copy_of(with));
  }
}

// Not of expand(): no operator writes to it.
bool may_change(const at::Tensor& buffer) {
  return buffer.defined() && at::has_internal_overlap(buffer) != at::MemOverlap::Yes;
}

}  // namespace

StateBefore::StateBefore(const std::vector<at::Tensor>& buffers) {
  for (const at::Tensor& buffer : buffers) {
    if (may_change(buffer)) buffers_.push_back({buffer, copy_of(buffer)});
  }
}

bool StateBefore::has(const at::Tensor& tensor) const {
  return std::ranges::any_of(buffers_,
                             [&](const Noted& each) { return each.buffer.is_alias_of(tensor); });
}

void StateBefore::renew() {
  for (const Noted& each : buffers_) overwrite(each.value, each.buffer.detach());
}

void StateBefore::exchange() {
  for (Noted& each : buffers_) {
    overwrite(each.buffer, std::exchange(each.value, copy_of(each.buffer)));
  }
  generators_.exchange();
}

void StateBefore::put_back() {
  for (const Noted& each : buffers_) overwrite(each.buffer, each.value);
  generators_.exchange();
}

}  // namespace penstock::stage
