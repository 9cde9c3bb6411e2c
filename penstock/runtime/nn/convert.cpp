#include "penstock/runtime/nn/convert.h"

namespace penstock::nn {
namespace {

void convert(const at::Tensor& tensor, at::ScalarType type) {
  if (tensor.defined() && tensor.is_floating_point()) tensor.set_data(tensor.detach().to(type));
}

}  // namespace

void convert(const Layer& layer, at::ScalarType type) {
  for (const at::Tensor& parameter : layer.parameters()) convert(parameter, type);
  for (const at::Tensor& buffer : layer.buffers()) convert(buffer, type);
}

}  // namespace penstock::nn
