// Layers whose parameters take no gradient, and a model that trains adapters beside them.
//
// Tests of ZeRO and of memory use it.  Knows no ranks.
#pragma once
#include <ATen/ops/linear.h>

#include <memory>
#include <utility>

#include "tests/train/model_kinds.h"

namespace penstock::train {

inline constexpr std::int64_t kHidden = 16;

inline nn::LayerSpec frozen(nn::LayerSpec spec) {
  spec.make = [make = std::move(spec.make)] {
    std::shared_ptr<nn::Layer> layer = make();
    for (const at::Tensor& parameter : layer->parameters()) parameter.set_requires_grad(false);
    return layer;
  };
  spec.meta.parameters = 0;
  return spec;
}

// x + tanh(W x + b) + B A x, of which A and B are trained (LoRA, arXiv 2106.09685).
class Adapted : public nn::Layer {
 public:
  static constexpr std::int64_t kRank = 2;

  explicit Adapted(std::int64_t width)
      : fc_(register_module("fc", torch::nn::Linear(width, width))),
        down_(register_parameter("down", at::rand({kRank, width}) - 0.5)),
        up_(register_parameter("up", at::rand({width, kRank}) - 0.5)) {
    for (const at::Tensor& parameter : fc_->parameters()) parameter.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& input) override {
    return input + fc_->forward(input).tanh() + at::linear(at::linear(input, down_), up_);
  }

 private:
  torch::nn::Linear fc_;
  at::Tensor down_, up_;
};

inline nn::LayerSpec adapted(const std::string& name, std::int64_t width) {
  return nn::layer(name, [=] { return std::make_shared<Adapted>(width); });
}

// Weights in eight bits, which no gradient can be for.
class Quantized : public nn::Layer {
 public:
  explicit Quantized(std::int64_t width)
      : weight_(register_parameter("weight", (at::rand({width, width}) * 200 - 100).to(at::kChar),
                                   /*requires_grad=*/false)) {}
  at::Tensor forward(const at::Tensor& input) override {
    return input + at::linear(input, weight_.to(input.scalar_type()) * 0.01).tanh();
  }

 private:
  at::Tensor weight_;
};

// A model of bytes: an embedding that is the head's weight, too, and a whole stage of four are
// frozen.
inline Kind adapters() {
  const auto tied = [](nn::LayerSpec layer) {
    return nn::TiedLayerSpec("wte", frozen(std::move(layer)), {"weight"});
  };
  const auto head = [] {
    return torch::nn::Linear(torch::nn::LinearOptions(kHidden, 256).bias(false));
  };
  return {"Adapters",
          {tied(nn::layer<torch::nn::Embedding>("wte", 256, kHidden)), adapted("a", kHidden),
           adapted("b", kHidden), adapted("c", kHidden),
           frozen(nn::layer<torch::nn::Linear>("d", kHidden, kHidden)),
           nn::layer("e", [] { return std::make_shared<Quantized>(kHidden); }),
           adapted("f", kHidden), tied(nn::layer("head", head))},
          nn::next_byte_loss,
          sentences};
}

}  // namespace penstock::train
