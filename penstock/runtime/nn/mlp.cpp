#include "penstock/runtime/nn/mlp.h"

#include <ATen/ops/relu.h>
#include <torch/nn/modules/linear.h>

namespace penstock::nn {
namespace {

class HiddenBlock : public Layer {
 public:
  explicit HiddenBlock(std::int64_t width)
      : net1_(register_module("net1", torch::nn::Linear(width, width))),
        net2_(register_module("net2", torch::nn::Linear(width, width))) {}

  at::Tensor forward(const at::Tensor& x) override {
    return net2_->forward(at::relu(net1_->forward(x)));
  }

 private:
  torch::nn::Linear net1_;
  torch::nn::Linear net2_;
};

}  // namespace

std::vector<LayerSpec> mlp_layers(std::int64_t width, std::int64_t blocks) {
  std::vector<LayerSpec> layers;
  for (std::int64_t i = 0; i < blocks; ++i) {
    layers.push_back({{std::to_string(i), "Block", 2 * (width * width + width)},
                      [width] { return std::make_shared<HiddenBlock>(width); }});
  }
  return layers;
}

}  // namespace penstock::nn
