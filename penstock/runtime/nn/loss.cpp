#include "penstock/runtime/nn/loss.h"

#include "penstock/core/error.h"

namespace penstock::nn::callable {

void refuse_pointer() {
  throw Error("the loss is a pointer to a function whose further parameters have no known defaults",
              {"give it as a lambda: [](const at::Tensor& y, const at::Tensor& t) { ... }"});
}

}  // namespace penstock::nn::callable
