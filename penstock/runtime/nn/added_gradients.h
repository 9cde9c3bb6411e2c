// Gradients of weights that a backward adds where they are, in place of memory of their own.
//
// A microbatch's gradient is added onto what earlier ones left, where a stage's backward runs and
// nobody has a hook that would see it.  Who adds rounds as autograd would: the gradient is whole
// before it is added.
// Thread safety: for the thread that makes one.
#pragma once
#include <ATen/core/Tensor.h>

namespace penstock::nn {

// While one lives, backwards of this thread may add gradients of weights where they are: all that
// they give is added to weights' grad().
class AddsGradients {
 public:
  AddsGradients();
  ~AddsGradients();
  AddsGradients(const AddsGradients&) = delete;
  AddsGradients& operator=(const AddsGradients&) = delete;
};

// What to add onto, dense floats of the host; undefined: the gradient is to be returned.
at::Tensor earlier_gradient(const at::Tensor& weight);

// What waits for the weight's gradient is called.  REQUIRES: it has been added onto
// earlier_gradient(), and an undefined one is returned.
void tell_of_added(const at::Tensor& weight);

}  // namespace penstock::nn
