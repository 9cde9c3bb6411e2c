#include "penstock/runtime/nn/loss.h"

#include <ATen/ops/real.h>
#include <ATen/ops/zeros.h>

#include "penstock/core/error.h"

namespace penstock::nn {

at::Tensor loss_of_nothing(const Values& outputs, const Values& /*targets*/) {
  at::Tensor nothing = at::zeros({});
  for (const at::Tensor& output : outputs) {
    if (!output.defined()) continue;
    if (output.is_floating_point()) nothing = nothing + output.sum() * 0;
    if (output.is_complex()) nothing = nothing + at::real(output).sum() * 0;
  }
  return nothing;
}

void callable::refuse_pointer() {
  throw Error("the loss is a pointer to a function whose further parameters have no known defaults",
              {"give it as a lambda: [](const at::Tensor& y, const at::Tensor& t) { ... }"});
}

}  // namespace penstock::nn
