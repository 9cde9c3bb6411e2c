#include "penstock/runtime/nn/fill_parameter.h"

#include <ATen/ops/empty.h>

#include "penstock/runtime/nn/making.h"

namespace penstock::nn {

FillParameter::Part FillParameter::part_of_whole(Whole fill) {
  return [fill = std::move(fill)](const std::string& name, at::Tensor& part,
                                  const partition::Cut& cut) {
    if (cut.is_whole()) return fill(name, part);
    at::Tensor whole = at::empty(partition::shape_of_whole(part.sizes().vec(), cut),
                                 part.options().requires_grad(false));
    fill(name, whole);
    part.copy_(part_of(whole, cut));
  };
}

}  // namespace penstock::nn
