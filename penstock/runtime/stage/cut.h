// The cut between the autograd graph of a stage, or of a part of it, and its neighbours' graphs.
//
// stage.h and segment.h cut with it.  A tensor that crosses a cut has no graph, and says with
// requires_grad() whether a gradient is wanted for it.
#pragma once
#include "penstock/runtime/nn/values.h"

namespace penstock::stage {

struct Cut {
  nn::Values leaves;  // Tensors at which gradients arrive; undefined for values that take none.
  nn::Values values;  // What layers get.
};

// The layers do not get the leaves, which must not be changed in place, but tensors of the same
// storage whose gradient goes there.
Cut cut_off(const nn::Values& inputs);

// Takes their memory from leaves that nobody reads: where a gradient of theirs goes is all that
// they say.  REQUIRES: they are a Cut's.
void empty(nn::Values& leaves);

// The same storage without a graph, requiring a gradient where `values` do.
nn::Values detached(const nn::Values& values);
// The same storage without a graph, requiring no gradient.
nn::Values without_gradient(const nn::Values& values);

}  // namespace penstock::stage
