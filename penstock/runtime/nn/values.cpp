#include "penstock/runtime/nn/values.h"

#include <algorithm>
#include <cstdint>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::nn {
namespace {

// Copies from memory that the device reads by itself, whenever it comes to it.
at::Tensor copy(const at::Tensor& tensor, c10::Device device) {
  const bool is_pinned_first = device.is_cuda() && tensor.is_cpu();
  const at::Tensor from = is_pinned_first ? tensor.pin_memory() : tensor;
  return from.to(tensor.options().device(device), /*non_blocking=*/!device.is_cpu());
}

bool is_elsewhere(const at::Tensor& tensor, c10::Device device) {
  return tensor.defined() && tensor.device() != device;
}

void put_on(c10::Device device, Values& values) {
  for (at::Tensor& value : values) {
    if (!is_elsewhere(value, device)) continue;
    value = copy(value.detach(), device).requires_grad_(value.requires_grad());
  }
}

// Whether `next` is the rows behind those of `tensor`.
bool are_next(const at::Tensor& tensor, const at::Tensor& next) {
  if (!next.defined() || next.dim() != tensor.dim() || next.requires_grad()) return false;
  if (next.scalar_type() != tensor.scalar_type() || next.strides() != tensor.strides())
    return false;
  if (next.sizes().slice(1) != tensor.sizes().slice(1)) return false;
  return next.is_alias_of(tensor) &&
         next.storage_offset() == tensor.storage_offset() + tensor.size(0) * tensor.stride(0);
}

// The tensor whose rows are the microbatches' `place`-th tensors, if it has to be copied.
at::Tensor whole(const std::vector<Values>& microbatches, std::size_t place, c10::Device device) {
  const at::Tensor& first = microbatches.front()[place];
  if (!is_elsewhere(first, device) || first.dim() == 0 || first.requires_grad()) return {};
  std::int64_t rows = first.size(0);
  for (std::size_t m = 1; m < microbatches.size(); ++m) {
    if (microbatches[m].size() <= place) return {};
    if (!are_next(microbatches[m - 1][place], microbatches[m][place])) return {};
    rows += microbatches[m][place].size(0);
  }
  std::vector<std::int64_t> sizes = first.sizes().vec();
  sizes.front() = rows;
  return first.as_strided(sizes, first.strides());
}

}  // namespace

const at::Tensor& the_only(const Values& values, const char* what) {
  if (values.size() != 1) {
    throw Error(penstock::str(what, " takes one tensor, and gets ", values.size()));
  }
  return values.front();
}

Values on_device(const Values& values, c10::Device device) {
  Values there = values;
  put_on(device, there);
  return there;
}

std::vector<Values> on_device(const std::vector<Values>& microbatches, c10::Device device) {
  std::vector<Values> there = microbatches;
  for (std::size_t place = 0; !there.empty() && place < there.front().size(); ++place) {
    const at::Tensor together = whole(microbatches, place, device);
    if (!together.defined()) continue;
    const at::Tensor copied = copy(together, device);
    std::int64_t row = 0;
    for (Values& values : there) {
      const std::int64_t rows = values[place].size(0);
      values[place] = copied.narrow(0, row, rows);
      row += rows;
    }
  }
  for (Values& values : there) put_on(device, values);
  return there;
}

}  // namespace penstock::nn
