// What layers and stages map to each other: a tuple of tensors of any types.
//
// One tensor is the usual case and converts by itself.  Some of the others may take no gradient
// (masks, indices), and a place may be empty: an undefined tensor.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace penstock::nn {

class Values : public std::vector<at::Tensor> {
 public:
  using std::vector<at::Tensor>::vector;
  Values(at::Tensor tensor) { push_back(std::move(tensor)); }  // NOLINT: meant to convert.
  Values(std::vector<at::Tensor> tensors)                      // NOLINT: likewise.
      : std::vector<at::Tensor>(std::move(tensors)) {}
};

// The tensor of a tuple of one.
// Throws: Error, "`what` takes one tensor, and gets 2", for any other number.
const at::Tensor& the_only(const Values& values, const char* what);

// The same on `device`: a tensor that is there already is itself, a copy requires a gradient where
// it does.  The host waits for no work of the device.
Values on_device(const Values& values, c10::Device device);
// The same of microbatches.  Those that were cut from one tensor, one after the other along the
// first dimension, go there by one copy.
std::vector<Values> on_device(const std::vector<Values>& microbatches, c10::Device device);

}  // namespace penstock::nn
