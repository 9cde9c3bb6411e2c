// Small models that a seed chooses, of LibTorch's own modules and of what users write.
//
// A model is a chain of 2 to 8 layers: with draws, buffers, ties, skips, several inputs and
// outputs, branches that nothing uses and frozen parts, in every mixture.  Layers and losses come
// in the forms in which users write them: classes, objects, functions, makers.
#pragma once
#include <ATen/ops/dropout.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/loss.h>
#include <torch/nn/modules/normalization.h>

#include <array>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "penstock/core/text.h"
#include "tests/support/random.h"
#include "tests/train/model_kinds.h"

namespace penstock::train {

// A draw of torch's in a forward, as LibTorch's users write it.
class DropsInFunction : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& input) {
    if (!is_training()) return input;
    // Drawn in float, since bfloat16 draws other numbers.
    return at::dropout(input, 0.3, true) + 0.1 * at::rand(input.sizes()).to(input.scalar_type());
  }
};

// Counts its forwards, and the largest element that it has seen, in buffers.
class Remembers : public torch::nn::Module {
 public:
  Remembers()
      : fc_(register_module("fc", torch::nn::Linear(kWidth, kWidth))),
        calls_(register_buffer("calls", at::zeros({}, at::kLong))),
        largest_(register_buffer("largest", at::zeros({}))) {}
  at::Tensor forward(const at::Tensor& input) {
    if (is_training()) {
      const torch::NoGradGuard no_grad;
      calls_.add_(1);
      largest_.copy_(at::maximum(largest_, input.max()));
    }
    return fc_->forward(input).sin();
  }

 private:
  torch::nn::Linear fc_;
  at::Tensor calls_, largest_;
};

// One branch is never taken, and one is frozen.
class Branches : public torch::nn::Module {
 public:
  Branches()
      : taken_(register_module("taken", torch::nn::Linear(kWidth, kWidth))),
        unused_(register_module("unused", torch::nn::Linear(kWidth, kWidth))),
        frozen_(register_module("frozen", torch::nn::Linear(kWidth, kWidth))) {
    for (at::Tensor& each : frozen_->parameters()) each.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& input) {
    return taken_->forward(input) + frozen_->forward(input).tanh();
  }

 private:
  torch::nn::Linear taken_, unused_, frozen_;
};

// A tensor to a pair of which only one takes a gradient.
class Splits : public torch::nn::Module {
 public:
  Splits() : fc_(register_module("fc", torch::nn::Linear(kWidth, kWidth))) {}
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& input) {
    return {fc_->forward(input), (input > 0).to(at::kInt)};
  }

 private:
  torch::nn::Linear fc_;
};

// Such a pair to another.
class Passes : public torch::nn::Module {
 public:
  Passes() : scale_(register_parameter("scale", at::rand({kWidth}))) {}
  std::tuple<at::Tensor, at::Tensor> forward(const nn::Values& inputs) {
    return {at::where(inputs[1] > 0, inputs[0] * scale_, inputs[0]), inputs[1]};
  }

 private:
  at::Tensor scale_;
};

// A pair, as itself, to an array.
class Crosses : public torch::nn::Module {
 public:
  Crosses() : fc_(register_module("fc", torch::nn::Linear(kWidth, kWidth))) {}
  std::array<at::Tensor, 2> forward(std::pair<at::Tensor, at::Tensor> both) {
    return {fc_->forward(both.first) + both.second, both.second};
  }

 private:
  torch::nn::Linear fc_;
};

// Takes more than tensors, with defaults.
class HasDefaults : public torch::nn::Module {
 public:
  HasDefaults() : shift_(register_parameter("shift", at::rand({kWidth}))) {}
  at::Tensor forward(at::Tensor input, const std::optional<at::Tensor>& mask = std::nullopt,
                     bool negated = false) const {
    const at::Tensor shifted = mask ? input * *mask + shift_ : input + shift_;
    return negated ? -shifted : shifted;
  }

 private:
  at::Tensor shift_;
};

// Mean squares, whose weight is trained.
class WeighsSquares : public torch::nn::Module {
 public:
  WeighsSquares() : log_(register_parameter("log", at::zeros({1}))) {}
  at::Tensor forward(const at::Tensor& output, const at::Tensor& target) {
    return (log_.neg().exp() * at::mse_loss(output, target) + log_).sum();
  }

 private:
  at::Tensor log_;
};

inline at::Tensor absolutes(const nn::Values& outputs, const at::Tensor& target) {
  return (outputs[0] - target).abs().mean();
}

class RandomModel {
 public:
  explicit RandomModel(testing_support::Random& random) : random_(random) {}

  Kind make() {
    Kind kind;
    const bool two_inputs = random_.chance(0.3);
    if (two_inputs) kind.model.push_back(joins("inputs"));
    const std::int32_t layers = random_.between(2, 8) - (two_inputs ? 1 : 0);
    for (std::int32_t i = 0; i < layers; ++i) kind.model.push_back(next());
    if (kind.model.size() < 2) kind.model.push_back(next());
    nn::LayerSpec last = values_ == 2 ? joins("out") : linear("out");
    kind.model.push_back(is_given_ ? joins("out").takes("skip") : last);
    if (!ever_given_ && random_.chance(0.5)) tie(kind.model);
    kind.loss = loss();
    kind.batch = two_inputs ? two_vectors : vectors;
    for (const nn::LayerSpec& layer : kind.model) kind.name += " " + layer.meta.name;
    return kind;
  }

 private:
  static Batch2 two_vectors(std::int64_t samples, std::int64_t) {
    return {{at::rand({samples, kWidth}) - 0.5, at::rand({samples, kWidth})},
            at::rand({samples, kWidth})};
  }

  nn::Loss loss() {
    switch (random_.between(0, 6)) {
      case 0:
        return squares;
      case 1:
        return absolutes;
      case 2:
        return &at::mse_loss;
      case 3:
        return torch::nn::SmoothL1Loss();
      case 4:
        return nn::loss<Weighs>();
      case 5:
        return [] { return std::make_unique<WeighsSquares>(); };
      default:
        return [](at::Tensor output, const nn::Values& targets) {
          return at::mse_loss(output, targets.front());
        };
    }
  }

  nn::LayerSpec next() {
    const std::string number = std::to_string(number_++);
    if (values_ == 2) return of_two_tensors(number);
    if (is_given_ && random_.chance(0.5)) {
      is_given_ = random_.chance(0.2);
      return joins("takes" + number).takes("skip");
    }
    if (!ever_given_ && random_.chance(0.1)) {
      ever_given_ = is_given_ = true;
      return linear("gives" + number).gives("skip");
    }
    if (random_.chance(0.15)) {
      values_ = 2;
      return make_of<Splits>("splits" + number);
    }
    return of_one_tensor(number);
  }

  nn::LayerSpec of_two_tensors(const std::string& number) {
    switch (random_.between(0, 4)) {
      case 0:
        return make_of<Passes>("passes" + number);
      case 1:
        return make_of<Crosses>("crosses" + number);
      case 2:
        return nn::layer("sums" + number, [](const at::Tensor& a, at::Tensor b) {
          return std::make_pair(a + b, std::optional<at::Tensor>(b));
        });
      case 3:
        values_ = 1;
        return nn::layer("products" + number, [](at::TensorList all) { return all[0] * all[1]; });
      default:
        values_ = 1;
        return joins("joins" + number);
    }
  }

  nn::LayerSpec of_one_tensor(const std::string& number) {
    switch (random_.between(0, 12)) {
      case 0:
        return nn::layer<torch::nn::Tanh>("tanh" + number);
      case 1:
        return nn::layer<torch::nn::BatchNorm1d>("norm" + number, kWidth);
      case 2:
        return nn::layer<torch::nn::LayerNorm>("layernorm" + number,
                                               torch::nn::LayerNormOptions({kWidth}));
      case 3:
        return nn::layer<torch::nn::Dropout>("dropout" + number, 0.3);
      case 4:
        return make_of<DropsInFunction>("drops" + number);
      case 5:
        return make_of<Remembers>("remembers" + number);
      case 6:
        return make_of<Branches>("branches" + number);
      case 7:
        return nn::layer("sequence" + number, [] {
          return torch::nn::Sequential(torch::nn::Linear(kWidth, 2 * kWidth), torch::nn::ReLU(),
                                       torch::nn::Dropout(0.1),
                                       torch::nn::Linear(2 * kWidth, kWidth));
        });
      case 8:
        return nn::layer("function" + number, [](const at::Tensor& x) { return x + x.sin(); });
      case 9:
        return nn::layer("object" + number, torch::nn::Linear(kWidth, kWidth));
      case 10:
        return make_of<HasDefaults>("defaults" + number);
      case 11:
        return nn::layer("any" + number,
                         [] { return torch::nn::AnyModule(torch::nn::Linear(kWidth, kWidth)); });
      default:
        return linear("linear" + number);
    }
  }

  template <class Module>
  static nn::LayerSpec make_of(const std::string& name) {
    return nn::layer(name, [] { return std::make_shared<Module>(); });
  }

  // The first Linear's and the last one's weight are one.
  void tie(std::vector<nn::LayerSpec>& model) {
    std::vector<std::size_t> linears;
    for (std::size_t i = 0; i < model.size(); ++i) {
      if (model[i].meta.type == "Linear") linears.push_back(i);
    }
    if (linears.size() < 2) return;
    for (const std::size_t i : {linears.front(), linears.back()}) {
      nn::LayerSpec tied = nn::TiedLayerSpec("weight", model[i], {"weight"});
      tied.meta.name += "(tied)";
      model[i] = std::move(tied);
    }
  }

  testing_support::Random& random_;
  std::int32_t number_ = 0;
  int values_ = 1;  // Values that the next layer gets.
  bool is_given_ = false, ever_given_ = false;
};

}  // namespace penstock::train
